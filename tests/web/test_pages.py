"""Pages as a browser's script asks for them: again with their tags, below a prefix, and what they say."""

from __future__ import annotations

import asyncio
import csv
import html
import io
import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from lazaretto import Broker, DeadLetterFilter, Message, PoisonPolicy, QueueOptions, aio
from lazaretto.commands import CreateToken, GrantRole, WithdrawRole
from lazaretto.web import Access, Grant, Identity, Role, answers, web_app
from lazaretto.web.api import audit
from lazaretto.web.console import queues

ANA = Identity("ana", (Grant(Role.ADMIN),))

Ask = Callable[[httpx.AsyncClient], Awaitable[None]]


def browse(url: str, ask: Ask, who: Identity = ANA, prefix: str = "") -> None:
    """Have somebody ask a server for pages."""

    async def run() -> None:
        async with await aio.connect(url) as one:
            app = web_app(one, Access(anonymous=who))
            served = Starlette(routes=[Mount(prefix, app)]) if prefix else app
            transport = httpx.ASGITransport(app=served)
            headers = {"Accept": "text/html"}
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", headers=headers
            ) as client:
                await ask(client)

    asyncio.run(run())


def test_problems_lead_to_their_page_below_a_prefix(broker: Broker, url: str) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        answer = await client.get("/ops/lazaretto/api/v1/queues/none")
        assert answer.status_code == 404
        kind = answer.json()["type"]
        assert kind == "/ops/lazaretto/problems/entity_not_found"
        assert "entity_not_found" in (await client.get(kind)).text
        wrong = await client.get("/ops/lazaretto/api/v1/nothing")
        assert (await client.get(wrong.json()["type"])).status_code == 200
        lost = (await client.get("/ops/lazaretto/problems/message_lock_lost")).text
        assert "<code>sequence_numbers</code> lists the messages" in lost
        described = (await client.get("/ops/lazaretto/openapi.json")).json()
        assert described["servers"] == [{"url": "/ops/lazaretto"}]

    browse(url, ask, prefix="/ops/lazaretto")


def test_a_queue_without_a_breaker_says_so(broker: Broker, url: str) -> None:
    broker.create_queue("bare", QueueOptions(breaker=None))

    async def ask(client: httpx.AsyncClient) -> None:
        bare, usual = [(await client.get(f"/queue?queue={name}")).text for name in ("bare", "q")]
        assert "It has no breaker: every failure counts" in bare
        assert "Never pause" not in bare
        assert "It has no breaker" not in usual
        assert '<span class="state ">closed</span>' in usual
        broker.set_breaker("bare", "open")
        held = (await client.get("/queue?queue=bare")).text
        assert '<span class="state bad">held open</span>' in held
        assert "Hand out again" in held

    browse(url, ask)


async def settled(client: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None) -> str:
    """Return the tag of a page that is not drawn again: the server's own upkeep may commit a last time."""
    for _ in range(50):
        tag = (await client.get(path, headers=headers)).headers["etag"]
        again = await client.get(path, headers={**(headers or {}), "If-None-Match": tag})
        if again.status_code == 304:
            return str(tag)
    raise AssertionError(f"{path} is always drawn again")


class TestTags:
    def test_what_did_not_change_is_not_drawn_again(self, broker: Broker, url: str) -> None:
        paths = ("/", "/queues", "/queue?queue=q", "/activity", "/failures?queue=q")

        async def ask(client: httpx.AsyncClient) -> None:
            tags = {}
            for path in paths:
                tags[path] = tag = await settled(client, path)
                again = await client.get(path, headers={"If-None-Match": f'"other", {tag}'})
                assert again.content == b""
                assert again.headers["etag"] == tag
                assert again.headers["x-frame-options"] == "DENY"
            broker.sender("q").send(Message(b"x"))
            for path in paths:
                changed = await client.get(path, headers={"If-None-Match": tags[path]})
                assert changed.status_code == 200
                assert changed.headers["etag"] != tags[path]
                # Browsers keep nothing; the script has the tag.
                assert changed.headers["cache-control"] == "no-store"
                assert f'data-tag="{changed.headers["etag"]}"' in html.unescape(changed.text)

        browse(url, ask)

    def test_listings_of_the_api(self, broker: Broker, url: str) -> None:
        async def ask(client: httpx.AsyncClient) -> None:
            for path in ("/api/v1/queues", "/api/v1/overview", "/api/v1/messages?queue=q"):
                tag = await settled(client, path)
                broker.sender("q").send(Message(b"x"))
                assert (await client.get(path, headers={"If-None-Match": tag})).status_code == 200
            # That of an entity is for changes of its settings: its counts are others.
            entity = await client.get("/api/v1/queues/q")
            again = {"If-None-Match": entity.headers["etag"]}
            assert not entity.headers["etag"].startswith("W/")
            assert (await client.get("/api/v1/queues/q", headers=again)).status_code == 200
            assert "etag" not in (await client.get("/metrics")).headers

        browse(url, ask)

    def test_every_kind_of_change_counts(self, broker: Broker, url: str) -> None:
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=0, max_retry_cycles=0))

        def receive() -> None:
            with broker.receiver("q") as receiver:
                receiver.abandon(receiver.receive(1))

        async def ask(client: httpx.AsyncClient) -> None:
            for change in (
                lambda: broker.sender("q").send(Message(b"x")),
                receive,
                lambda: broker.set_breaker("q", "open"),
                lambda: broker.set_status("q", "disabled"),
                lambda: broker.note_cause("q", broker.triage("q").causes[0].number, "seen"),
                lambda: broker.create_queue("other"),
            ):
                tag = (await client.get("/queue?queue=q")).headers["etag"]
                await asyncio.to_thread(change)
                again = await client.get("/queue?queue=q", headers={"If-None-Match": tag})
                assert again.status_code == 200

        browse(url, ask)

    def test_another_person_or_right_has_another_tag(self, broker: Broker, url: str) -> None:
        tags = []

        async def ask(client: httpx.AsyncClient) -> None:
            tags.append(await settled(client, "/queues"))
            seen = [await client.get("/queues", headers={"If-None-Match": tag}) for tag in tags]
            assert [one.status_code for one in seen] == [200] * (len(tags) - 1) + [304]

        for who in (
            ANA,
            Identity("ben", (Grant(Role.ADMIN),)),
            Identity("ben", (Grant(Role.VIEWER),)),
            Identity("ben", (Grant(Role.VIEWER),), csrf="1"),
        ):
            browse(url, ask, who)

    def test_a_right_that_was_withdrawn(self, broker: Broker, url: str) -> None:
        """Whoever may not see a page any more is told so, whatever the browser has."""

        async def ask(client: httpx.AsyncClient) -> None:
            broker.run(GrantRole(person="eve", role="viewer"))
            made = await asyncio.to_thread(_token, broker, "eve")
            headers = {"Authorization": f"Bearer {made}"}
            headers["If-None-Match"] = await settled(client, "/queues", headers)
            broker.run(WithdrawRole(person="eve", role="viewer"))
            assert (await client.get("/queues", headers=headers)).status_code == 403

        browse(url, ask)

    def test_what_the_clock_changes_is_told_after_a_minute(
        self, broker: Broker, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        minutes = [1_000]
        monkeypatch.setattr(answers, "_minute", lambda: minutes[0])

        async def ask(client: httpx.AsyncClient) -> None:
            again = {"If-None-Match": await settled(client, "/")}
            minutes[0] += 1
            assert (await client.get("/", headers=again)).status_code == 200

        browse(url, ask)

    def test_errors_and_redirections_have_none(self, broker: Broker, url: str) -> None:
        async def ask(client: httpx.AsyncClient) -> None:
            missing = await client.get("/queue?queue=none")
            assert missing.status_code == 404
            assert "etag" not in missing.headers
            moved = await client.get("/failures?queue=q&explain=1")
            assert moved.status_code == 303
            assert "etag" not in moved.headers

        browse(url, ask)


def _token(broker: Broker, person: str) -> str:
    return str(broker.run(CreateToken(person=person))["secret"])


class TestPeeking:
    """The messages of a queue, by how they stand."""

    @pytest.fixture
    def stocked(self, broker: Broker) -> Broker:
        sender = broker.sender("q")
        sender.send([Message(b"m%d" % number) for number in range(1, 7)])
        sender.schedule(Message(b"later"), datetime.now(UTC) + timedelta(hours=1))
        receiver = broker.receiver("q")
        first, second, _ = receiver.receive(3)
        receiver.defer(first)
        receiver.abandon(second, delay=3600)
        return broker

    def test_by_state(self, stocked: Broker, url: str) -> None:
        expected = {
            "deferred": [1], "delayed": [2], "locked": [3], "active": [4, 5, 6], "scheduled": [7],
            "suspect": [],
        }  # fmt: skip

        async def ask(client: httpx.AsyncClient) -> None:
            for state, numbers in expected.items():
                shown = (await client.get(f"/queue?queue=q&state={state}")).text
                assert list(map(int, re.findall(r'<tr id="m-(\d+)"', shown))) == numbers, state
                assert (f"state={state}#messages" in shown) is bool(numbers or state == "suspect")
            everything = (await client.get("/queue?queue=q")).text
            assert len(re.findall(r'<tr id="m-', everything)) == 7
            wrong = await client.get("/queue?queue=q&state=odd")
            assert wrong.status_code == 422
            assert "expected state to be one of active, locked" in wrong.text
            assert (await client.get("/queue?queue=q&start=%C2%B2")).status_code == 422

        browse(url, ask)

    def test_page_by_page(self, stocked: Broker, url: str) -> None:
        stocked.sender("q").send([Message(b"x")] * 20)

        async def ask(client: httpx.AsyncClient) -> None:
            found, following = list[int](), "/queue?queue=q&state=active"
            while following:
                shown = (await client.get(following)).text
                found += map(int, re.findall(r'<tr id="m-(\d+)"', shown))
                following = "".join(re.findall(r'rel="next" href="([^"#]+)', shown)).replace("&amp;", "&")
            assert found == [4, 5, 6, *range(8, 28)]

        browse(url, ask)

    def test_what_is_rare_is_looked_for_only_for_a_moment(
        self, stocked: Broker, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(queues, "_BUDGET", 0.0)
        stocked.sender("q").send([Message(b"x")] * 250)
        stocked.sender("q").schedule(Message(b"last"), datetime.now(UTC) + timedelta(hours=1))

        async def ask(client: httpx.AsyncClient) -> None:
            shown = (await client.get("/queue?queue=q&state=suspect")).text
            assert "None is suspect among 100 that were looked at." in shown
            assert "start=101#messages" in shown
            assert "Look further, from 101" in shown
            last = (await client.get("/queue?queue=q&state=scheduled&start=201")).text
            assert '<tr id="m-258"' in last
            assert 'rel="next"' not in last

        browse(url, ask)


class TestActivity:
    @pytest.fixture
    def busy(self, broker: Broker) -> Broker:
        broker.sender("q").send([Message(b"x")] * 3)
        with broker.receiver("q") as receiver:
            for message in receiver.receive(3):
                receiver.dead_letter(message, reason="A")
        for name in ("mend", "other"):
            plan = broker.plan_repair("q", DeadLetterFilter(), everything=True, name=name, actor="ana")
            broker.set_breaker("q", "open", actor="=ben")
            plan.cancel(actor="cleo")
        return broker

    def test_of_one_repair(self, busy: Broker, url: str) -> None:
        async def ask(client: httpx.AsyncClient) -> None:
            shown = (await client.get("/activity?repair=mend")).text
            assert "Activity of mend" in shown
            assert shown.count('<tr id="a-') == 2
            assert "other" not in shown.partition("<tbody>")[2].partition("</tbody>")[0]
            everything = (await client.get("/activity?queue=q")).text
            assert 'href="/activity?repair=mend"' in everything
            assert everything.count('<tr id="a-') == 7
            assert 'href="/activity?repair=mend"' in (await client.get("/repairs/mend")).text
            assert (await client.get("/activity?repair=none")).status_code == 404

        browse(url, ask)

    def test_exported(self, busy: Broker, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit, "_PAGE", 2)
        monkeypatch.setattr(audit, "_LINES", 3)
        path = "/api/v1/audit/export"

        async def ask(client: httpx.AsyncClient) -> None:
            listed = (await client.get("/api/v1/audit", params={"limit": 1000})).json()
            lines = await client.get(path)
            assert lines.headers["content-disposition"] == 'attachment; filename="activity.jsonl"'
            assert [json.loads(line) for line in lines.text.splitlines()] == listed
            # An export is in the log itself.
            listed = (await client.get("/api/v1/audit", params={"limit": 1000})).json()
            as_csv = await client.get(path, params={"format": "csv"})
            rows = list(csv.DictReader(io.StringIO(as_csv.text)))
            assert [int(row["position"]) for row in rows] == [entry["position"] for entry in listed]
            assert {row["actor"] for row in rows if row["action"] == "breaker"} == {"'=ben"}
            assert json.loads(rows[0]["detail"]) == listed[0]["detail"]
            own = await client.get(path, params={"repair": "mend"})
            assert [json.loads(line)["action"] for line in own.text.splitlines()] == [
                "repair: cancel", "repair: plan"
            ]  # fmt: skip
            nothing = await client.get(path, params={"actor": "nobody", "format": "csv"})
            assert nothing.text.splitlines() == ["position,time,actor,action,queue,detail,door,address,kind"]
            for wrong, status in (({"repair": "no"}, 404), ({"repair": "mend", "queue": "q"}, 422)):
                assert (await client.get(path, params=wrong)).status_code == status
            for edge in ("since", "until"):
                for which in ({}, {"repair": "mend"}):
                    zoneless = {edge: "2020-01-01T00:00:00", **which}
                    assert (await client.get(path, params=zoneless)).status_code == 422, zoneless
            later = {"repair": "mend", "since": "2999-01-01T00:00:00Z"}
            assert (await client.get(path, params=later)).text == ""

        browse(url, ask)
