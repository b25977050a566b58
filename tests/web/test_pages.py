"""Pages as a browser's script asks for them: again with their tags, below a prefix, and what they say."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Awaitable, Callable

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from lazaretto import Broker, Message, PoisonPolicy, QueueOptions, aio
from lazaretto.commands import CreateToken, GrantRole, WithdrawRole
from lazaretto.web import Access, Grant, Identity, Role, unchanged, web_app

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
        described = (await client.get("/ops/lazaretto/openapi.json")).json()
        assert described["servers"] == [{"url": "/ops/lazaretto"}]

    browse(url, ask, prefix="/ops/lazaretto")


def test_a_queue_without_a_breaker_says_so(broker: Broker, url: str) -> None:
    broker.create_queue("bare", QueueOptions(breaker=None))

    async def ask(client: httpx.AsyncClient) -> None:
        bare, usual = [(await client.get(f"/queue?queue={name}")).text for name in ("bare", "q")]
        assert "It has no breaker: every failure counts" in bare
        assert "Keep it closed" not in bare
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
        monkeypatch.setattr(unchanged, "_minute", lambda: minutes[0])

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
