"""Rights hold while they are granted, and at every place that is told of or sent to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator

import httpx
import pytest
from web.conftest import Served

from lazaretto import Broker, Message, PoisonPolicy, QueueOptions
from lazaretto.commands import CreateToken, GrantRole, RemovePerson, RevokeToken, WithdrawRole
from lazaretto.web import routes
from lazaretto.web.api import dead_letters

sqlite = pytest.mark.stores("sqlite")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    assert routes.AUTHORIZED_EVERY <= 5
    monkeypatch.setattr(routes, "AUTHORIZED_EVERY", 0.05)


def ana(broker: Broker, served: Served, role: str, queue: str = "*") -> tuple[str, httpx.Client]:
    """Return the ID of a token of somebody with a role, and a client that uses it."""
    broker.run(GrantRole(person="ana", role=role, queue=queue))
    made = broker.run(CreateToken(person="ana"))
    client = served.client(None)
    client.headers["Authorization"] = f"Bearer {made['secret']}"
    return made["id"], client


@sqlite
@pytest.mark.parametrize("ends", ["token", "person", "role"])
def test_a_stream_of_events_ends_when_its_reader_loses_the_right(
    broker: Broker, served: Served, ends: str
) -> None:
    id_, client = ana(broker, served, "viewer")
    with client.stream("GET", "/events/stream") as stream:
        lines = stream.iter_lines()
        broker.create_queue("seen")
        assert any("queue_created" in line for line in lines)
        if ends == "token":
            broker.run(RevokeToken(id=id_))
        elif ends == "person":
            broker.run(RemovePerson(person="ana"))
        else:
            broker.run(WithdrawRole(person="ana", role="viewer", queue="*"))
        rest = list(lines)
    assert "event: bye" in rest
    broker.create_queue("later")
    assert client.get("/events").status_code in (401, 403)


@sqlite
def test_who_gets_another_role_meanwhile_keeps_the_stream(broker: Broker, served: Served) -> None:
    _, client = ana(broker, served, "viewer")
    with client.stream("GET", "/events/stream") as stream:
        lines = stream.iter_lines()
        broker.run(GrantRole(person="ana", role="operator"))
        for number in range(3):
            broker.create_queue(f"queue-{number}")
            assert any(f"queue-{number}" in line for line in lines)


@sqlite
def test_an_export_is_cut_off_when_its_reader_loses_the_right(
    broker: Broker, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_, client = ana(broker, served, "reader", "q")
    begun, go_on = threading.Event(), threading.Event()

    async def endless(*_: object) -> AsyncGenerator[bytes]:
        yield b"first\n"
        while True:
            begun.set()
            await asyncio.to_thread(go_on.wait, 0.01)
            yield b"more\n"

    monkeypatch.setattr(dead_letters, "_jsonl", endless)
    with client.stream("GET", "/dead-letters/export?queue=q") as stream:
        parts = stream.iter_bytes()
        assert next(parts).startswith(b"first")
        assert begun.wait(120)
        broker.run(RevokeToken(id=id_))
        # What has no end is no whole export.
        with pytest.raises(httpx.RemoteProtocolError):
            list(parts)


@sqlite
def test_a_receive_that_waits_hands_nothing_to_who_lost_the_right(broker: Broker, served: Served) -> None:
    id_, client = ana(broker, served, "client", "q")
    answers: list[httpx.Response] = []
    waiting = threading.Thread(
        target=lambda: answers.append(client.post("/messages/receive?queue=q&wait=60"))
    )
    waiting.start()
    broker.run(RevokeToken(id=id_))
    waiting.join(120)
    assert answers[0].status_code == 401
    broker.sender("q").send(Message(b"later"))
    assert [one.body for one in broker.receiver("q").receive(1)] == [b"later"]


@pytest.fixture
def moved(broker: Broker) -> Iterator[tuple[int, int]]:
    """A dead letter of a queue that is moved to another and fails there, and its numbers at both."""
    broker.create_queue("vault")
    broker.sender("q").send(Message(b"{}"))
    broker.receiver("q").dead_letter(broker.receiver("q").receive(1), reason="Mine", error="own trouble")
    (first,) = [one.sequence_number for one in broker.dead_letters("q")]
    broker.move_dead_letters("q", [first], "vault")
    receiver = broker.receiver("vault")
    receiver.dead_letter(receiver.receive(1), reason="Theirs", error="the vault's secret")
    (second,) = [one.sequence_number for one in broker.dead_letters("vault")]
    yield first, second


def test_a_history_tells_only_of_places_that_the_reader_may_read(
    broker: Broker, served: Served, api: httpx.Client, moved: tuple[int, int]
) -> None:
    _, client = ana(broker, served, "reader", "q")
    for queue, number, other in (("q", moved[0], "vault"), ("vault", moved[1], "q")):
        whole = api.get(f"/messages/{number}?queue={queue}").json()
        assert {one["queue"] for one in whole["generations"]} == {"q", "vault"}
        if queue == "q":
            found = client.get(f"/messages/{number}?queue={queue}")
            assert [one["queue"] for one in found.json()["generations"]] == ["q"]
            assert found.json()["complete"] is False
            assert "secret" not in found.text
            page = client.get(f"http://127.0.0.1:{served.port}/dead-letters/{number}?queue={queue}")
            assert page.status_code == 200
            assert "own trouble" in page.text
            assert "secret" not in page.text
        else:
            assert client.get(f"/messages/{number}?queue={queue}").status_code == 403, other


@sqlite
def test_who_makes_an_entity_forward_needs_the_right_to_send_there(broker: Broker, served: Served) -> None:
    broker.create_queue("vault")
    broker.create_queue("shop/own")
    broker.create_topic("shop/news")
    broker.create_subscription("shop/news", "all")
    _, client = ana(broker, served, "admin", "shop/*")

    def refused(method: str, path: str, body: object) -> None:
        said = client.request(method, path, json=body)
        assert (said.status_code, said.json()["code"]) == (403, "not_permitted"), (path, said.text)

    for name in ("forward_to", "forward_dead_lettered_messages_to"):
        options = {name: "vault"}
        refused("PUT", "/queues/shop/new", options)
        refused("PATCH", "/queues/shop/own", options)
        refused("PUT", "/subscriptions/more?topic=shop/news", {"options": options})
        refused("PATCH", "/subscriptions/all?topic=shop/news", options)
        for command in (
            {"type": "create_queue", "path": "shop/new", "options": options},
            {"type": "create_queues", "paths": ["shop/a", "shop/b"], "options": options},
            {"type": "update_queue", "path": "shop/own", "changes": options},
            {"type": "create_subscription", "topic": "shop/news", "subscription": "b", "options": options},
            {
                "type": "update_subscription", "topic": "shop/news", "subscription": "all",
                "changes": options,
            },
        ):  # fmt: skip
            refused("POST", f"/commands/{command.pop('type')}", command)
    changed = client.patch("/queues/shop/own", json={"forward_to": "shop/news"})
    assert changed.json()["options"]["forward_to"] == "shop/news"
    broker.run(GrantRole(person="ana", role="client", queue="vault"))
    changed = client.patch("/queues/shop/own", json={"forward_to": "vault"})
    assert changed.json()["options"]["forward_to"] == "vault"


def test_a_circle_is_told_without_what_the_asker_may_not_see(broker: Broker, served: Served) -> None:
    for path, to in (("shop/own", None), ("board/secret", "shop/own"), ("vault", "board/secret")):
        detects = path == "board/secret"
        broker.create_queue(path, QueueOptions(forward_to=to, requires_duplicate_detection=detects))
    _, client = ana(broker, served, "admin", "shop/*")
    broker.run(GrantRole(person="ana", role="client", queue="vault"))

    def told() -> str:
        answer = client.patch("/queues/shop/own", json={"forward_to": "vault"})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_option")
        return str(answer.json()["detail"])

    dropped = "dropped there as duplicates of themselves; forward them elsewhere"
    assert told() == f"messages would come back, and be {dropped}"
    broker.run(GrantRole(person="ana", role="viewer"))
    assert told() == f"messages would come back to 'board/secret', and be {dropped}"


@sqlite
def test_a_message_names_no_queue_that_its_sender_may_not_use(broker: Broker, served: Served) -> None:
    """What `peek` tells of another message is no wish, so that no right is asked for."""
    broker.create_queue("vault")
    _, client = ana(broker, served, "client", "q")
    sent = {"body": "x", "dead_letter_queue": "vault", "reply_to": "vault", "to": "vault"}
    assert client.post("/messages?queue=q", json=sent).status_code == 201
    broker.update_queue("q", policy=PoisonPolicy(on_invalid="reject"))
    receiver = broker.receiver("q")
    receiver.invalid(receiver.receive(1))
    assert not broker.peek("vault")
    assert [one.reply_to for one in broker.peek("$system/deadletter")] == ["vault"]
