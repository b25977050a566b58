"""The audit log says who did what: at which door, from where, and of what the name is the name."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest
from cli_program import Program
from door.client import Manager, connected, opened, run, token
from web.conftest import Served

from lazaretto import AuditEntry, Broker, Message, aio
from lazaretto.aio.witness import MOST_REFUSALS, Minutes, SigningRules, Witness
from lazaretto.commands import CreateLink, CreateToken, GrantRole, SetRedaction
from lazaretto.errors import InvalidOption, StoreReadOnly
from lazaretto.model.grants import SigningRule
from lazaretto.servicebus import AccessPolicy
from lazaretto.web import Proxies

sqlite = pytest.mark.stores("sqlite")


def who(entry: AuditEntry) -> tuple[str, str, str, str]:
    return entry.actor, entry.door, entry.address, entry.kind


def test_over_amqp_it_is_a_key_and_never_a_person_of_its_name(tmp_path: Path) -> None:
    async def work() -> None:
        policies = [AccessPolicy("ana", "secret")]
        async with opened(tmp_path, policies=policies) as (broker, door), connected(door) as client:
            await broker.create_topic("news")
            await broker.create_subscription("news", "all")
            await broker.sender("q").send(Message(b"x"))
            rule = SigningRule(name="bob", rights=("Manage",), primary="own", secondary="x")
            await SigningRules(broker).set("news", [rule], "me")
            cbs = Manager(client)
            await cbs.open("$cbs")
            for key, secret, path in (("ana", "secret", "q"), ("bob", "own", "news")):
                address = f"sb://h/{path}"
                assert (await cbs.put_token(address, token(key, secret, address)))[0] == 202
            queue, subscription = Manager(client), Manager(client)
            await queue.open("q/$management")
            told = {"message_count": 10, "enqueued_time_utc": 1 << 50}
            await queue.ask("batch-delete-messages", **told)
            await subscription.open("news/subscriptions/all/$management")
            assert (await subscription.ask("remove-rule", rule_name="$Default"))[0] == 200
            address = f"http://127.0.0.1:{door.port}"
            async with httpx.AsyncClient(base_url=address) as http:
                signed = {"Authorization": token("bob", "own", f"{address}/news"), "If-Match": "*"}
                assert (await http.delete("/news", headers=signed)).status_code == 200
            found = {one.action: who(one) for one in await broker.audit()}
            assert found["delete_messages"] == ("key:ana", "amqp", "127.0.0.1", "key")
            assert found["rules"] == ("key:news/bob", "amqp", "127.0.0.1", "key")
            assert found["delete"] == ("key:news/bob", "amqp", "127.0.0.1", "key")

    run(work)


PROXY = {"proxies": Proxies(["127.0.0.1"], "X-User")}


@sqlite
@pytest.mark.parametrize("served", [PROXY], indirect=True)
def test_nobody_can_be_named_like_a_key(broker: Broker, served: Served) -> None:
    for name in ("key:ana", "KEY:news/bob"):
        with pytest.raises(InvalidOption, match="key:"):
            broker.run(GrantRole(person=name, role="admin"))
        assert served.client(None).get("/access/me", headers={"X-User": name}).status_code == 401


@sqlite
@pytest.mark.parametrize("served", [PROXY], indirect=True)
def test_over_http_it_is_a_person_or_a_token_with_the_address(broker: Broker, served: Served) -> None:
    broker.run(GrantRole(person="ana", role="operator"))
    token = broker.run(CreateToken(person="ana"))["secret"]
    own = {"Origin": f"http://127.0.0.1:{served.port}"}
    for headers, kind in (
        ({"Authorization": f"Bearer {token}"}, "token"),
        ({"X-User": "ana", **own}, "person"),
    ):
        body = {"path": "q", "status": "disabled" if kind == "token" else "active"}
        done = served.client(None).post("/commands/set_status", json=body, headers=headers)
        assert done.status_code == 200
        assert who(broker.audit(action="status")[0]) == ("ana", "http", "127.0.0.1", kind)
    link = broker.run(CreateLink(person="ana"))["secret"]
    assert served.client(None).get(f"http://127.0.0.1:{served.port}/login?code={link}").status_code == 303
    assert who(broker.audit(action="access: login")[0]) == ("ana", "http", "127.0.0.1", "person")


def test_a_program_with_the_store_is_a_process(broker: Broker) -> None:
    """Whatever it calls itself."""
    for actor in (None, "ana", "key:ana"):
        broker.set_status("q", "disabled", actor=actor)
        broker.set_status("q", "active", actor=actor)
        assert who(broker.audit(action="status")[0])[1:] == ("store", "", "process")


def test_exports_are_audited(broker: Broker, served: Served, tmp_path: Path, url: str) -> None:
    admin = served.client("admin")
    assert admin.get("/dead-letters/export?queue=q&format=csv").status_code == 200
    assert admin.get("/audit/export").status_code == 200
    letters, audit = reversed(broker.audit(action="export"))
    assert who(letters) == ("admin", "http", "127.0.0.1", "token")
    assert (letters.queue, letters.detail["format"], letters.detail["messages"]) == ("q", "csv", False)
    assert audit.detail["of"] == "audit log"
    program = Program(tmp_path / "other.db")
    program.ok("dead-letter", "export", "q", "--store", url)
    assert who(broker.audit(action="export")[0])[1:] == ("store", "", "process")


def test_reads_of_redacted_fields_are_audited_once_a_minute(broker: Broker, served: Served) -> None:
    broker.create_topic("news")
    broker.create_subscription("news", "all")
    broker.run(SetRedaction(queue="news", field="body.card", form="mask"))
    admin, viewer, shop = served.client("admin"), served.client("operator"), served.client("shop")
    for _ in range(3):
        for client in (admin, viewer):
            for path in ("q", "news/subscriptions/all", "news/subscriptions/all;poison"):
                assert client.get(f"/messages?queue={path}").status_code == 200
                assert client.get(f"/dead-letters?queue={path.partition(';')[0]}").status_code == 200
    assert shop.get("/messages?queue=q").status_code == 403
    (entry,) = broker.audit(action="read redacted")
    assert (*who(entry), entry.queue) == ("admin", "http", "127.0.0.1", "token", "news")


@sqlite
def test_refused_logins_are_audited_once_a_minute_for_an_address(broker: Broker, served: Served) -> None:
    for _ in range(5):
        wrong = {"Authorization": "Bearer lzt_wrong"}
        assert served.client(None).get("/queues", headers=wrong).status_code == 401
    # Who gives nothing has not tried to log in.
    assert served.client(None).get("/queues").status_code == 401
    (entry,) = broker.audit(action="access: refused")
    assert who(entry) == ("-", "http", "127.0.0.1", "process")
    assert "wrong" not in str(entry)


def test_refused_logins_over_amqp_are_audited_too(tmp_path: Path) -> None:
    async def work() -> None:
        policies = [AccessPolicy("server", "secret")]
        async with opened(tmp_path, policies=policies) as (broker, door), connected(door) as client:
            cbs = Manager(client)
            await cbs.open("$cbs")
            for _ in range(2):
                assert (await cbs.put_token("sb://h/q", token("server", "wrong", "sb://h/q")))[0] == 401
            (entry,) = await broker.audit(action="access: refused")
            assert who(entry)[1:3] == ("amqp", "127.0.0.1")

    run(work)


def test_strangers_make_at_most_a_hundred_entries_a_minute_and_the_rest_is_counted() -> None:
    minutes = Minutes(MOST_REFUSALS)
    noted = [minutes.note(f"10.0.{n // 256}.{n % 256}", n / 100) for n in range(3000) for _ in range(2)]
    assert sum(one is not None for one in noted) == MOST_REFUSALS
    left = 6000 - MOST_REFUSALS - sum(one for one in noted if one is not None)
    assert minutes.note("10.9.9.9", 61.0) == left


def test_a_read_only_store_is_left_alone_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with await aio.connect(f"sqlite:///{tmp_path / 'store.db'}") as broker:
            witness = Witness(broker)

            def refuse(operation: object) -> None:
                raise StoreReadOnly("the store cannot be written to")

            monkeypatch.setattr(witness._driver.store, "run", refuse)
            await witness.refused("10.0.0.1", "http")
            monkeypatch.undo()
            assert await broker.audit(action="access: refused") == []

    with caplog.at_level(logging.WARNING, "lazaretto.audit"):
        run(work)
    assert "the store is read-only" in caplog.text
