"""The HTTP API, as a program in any language uses it."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from traced import PARENT

from lazaretto import Broker, Message, PoisonPolicy, QueueOptions, Rule, SqlFilter
from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.model.records.messages import message_of
from lazaretto.store.records.messages import FOR_CLIENTS
from lazaretto.web.api import entities

from .conftest import Served, beside_the_loop


def send(api: httpx.Client, *bodies: Any, queue: str = "q") -> list[int]:
    answer = api.post("/messages", params={"queue": queue}, json=[{"body": body} for body in bodies])
    assert answer.status_code == 201, answer.text
    numbers: list[int] = answer.json()["sequence_numbers"]
    return numbers


def receive(api: httpx.Client, queue: str = "q", **parameters: Any) -> list[dict[str, Any]]:
    answer = api.post("/messages/receive", params={"queue": queue, **parameters})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def settle(
    api: httpx.Client, verb: str, *messages: dict[str, Any], queue: str = "q", **how: Any
) -> httpx.Response:
    tokens = [message["lock_token"] for message in messages]
    return api.post(
        "/messages/settle", params={"queue": queue}, json={"verb": verb, "lock_tokens": tokens, **how}
    )


class TestMessages:
    """Sent, received, settled."""

    @pytest.mark.parametrize("given", [PARENT, "", "nonsense", PARENT.upper(), "\u00ff" * 55])
    def test_a_request_gives_its_trace_context_to_messages_without_one(
        self, broker: Broker, api: httpx.Client, given: str
    ) -> None:
        headers = [(b"traceparent", given.encode("latin-1")), (b"tracestate", b"a=1")]
        own = {"traceparent": "mine"}
        message = [{"body": "1"}, {"body": "2", "properties": {"n": 1}}, {"body": "3", "properties": own}]
        answer = api.post("/messages", params={"queue": "q"}, json=message, headers=headers)
        assert answer.status_code == 201
        added = {"traceparent": PARENT, "tracestate": "a=1"} if given == PARENT else {}
        assert [m.properties for m in broker.peek("q", 9)] == [added, {"n": 1} | added, own]

    @pytest.mark.stores("sqlite")
    def test_a_message_that_just_fits_has_no_trace_context(self, broker: Broker, api: httpx.Client) -> None:
        broker.create_queue("small", QueueOptions(max_message_size=1024))
        headers = {"traceparent": PARENT, "tracestate": "a=1"}
        for path, message in (
            ("q", {"body": "x", "properties": {"a": "x" * 32_700, "b": "x" * 32_760}}),
            ("small", {"body": "x" * 1000}),
        ):
            answer = api.post("/messages", params={"queue": path}, json=message, headers=headers)
            assert answer.status_code == 201, answer.text
            (found,) = broker.peek(path, 9)
            assert found.properties == message.get("properties", {})
        refused = api.post("/messages", params={"queue": "small"}, json={"body": "x" * 1025}, headers=headers)
        assert refused.json()["code"] == "message_too_large"

    def test_there_and_back(self, broker: Broker, api: httpx.Client) -> None:
        message = {
            "body_base64": base64.b64encode(b"\xff\0").decode(), "message_id": "m", "subject": "s",
            "properties": {"text": "t", "number": 5, "raw": {"base64": "AAE="}},
        }  # fmt: skip
        assert api.post("/messages", params={"queue": "q"}, json=message).json() == {"sequence_numbers": [1]}
        (found,) = broker.peek("q")
        assert (found.body, found.message_id, found.subject) == (b"\xff\0", "m", "s")
        assert found.properties == {"text": "t", "number": 5, "raw": b"\0\1"}
        (taken,) = receive(api)
        for name, value in message.items():
            assert taken[name] == value
        assert settle(api, "complete", taken).status_code == 204
        assert broker.peek("q") == []

    def test_a_body_of_json_is_sent_as_it_is_spelled(self, broker: Broker, api: httpx.Client) -> None:
        content = b'{"body": {"price": 1.10, "big": 12345678901234567890123}}'
        assert api.post("/messages", params={"queue": "q"}, content=content).status_code == 201
        assert broker.peek("q")[0].body == b'{"price": 1.10, "big": 12345678901234567890123}'

    def test_every_verb(self, broker: Broker, api: httpx.Client) -> None:
        send(api, "a", "b", "c", "d", "e")
        a, b, c, d, e = receive(api, limit=5)
        assert settle(api, "complete", a).status_code == 204
        assert settle(api, "abandon", b, error="no", properties={"k": 1}).status_code == 204
        assert settle(api, "dead_letter", c, reason="R", description="D").status_code == 204
        assert settle(api, "defer", d).status_code == 204
        assert settle(api, "release", e).status_code == 204
        states = {m["body"]: m["state"] for m in api.get("/messages", params={"queue": "q"}).json()}
        assert states == {"b": "active", "d": "deferred", "e": "active"}
        letter = api.get(f"/dead-letters/{c['sequence_number']}", params={"queue": "q"}).json()
        assert (letter["reason"], letter["description"]) == ("R", "D")
        numbers = {"sequence_numbers": [d["sequence_number"]]}
        (deferred,) = api.post("/messages/receive-deferred", params={"queue": "q"}, json=numbers).json()
        assert settle(api, "invalid", deferred, error="bad").status_code == 204
        assert api.get("/queues/q").json()["counts"]["dead_letter"] == 2

    def test_a_lock_is_renewed_and_lost(self, broker: Broker, api: httpx.Client) -> None:
        send(api, "a")
        (taken,) = receive(api)
        tokens = {"lock_tokens": [taken["lock_token"]]}
        answer = api.post("/messages/renew", params={"queue": "q"}, json=tokens)
        assert answer.json()["locked_until"] >= taken["locked_until"]
        settle(api, "complete", taken)
        lost = settle(api, "complete", taken)
        assert lost.status_code == 409
        assert lost.headers["content-type"] == "application/problem+json"
        assert (lost.json()["code"], lost.json()["sequence_numbers"]) == ("message_lock_lost", [1])

    def test_what_the_server_remembers_is_not_believed(self, broker: Broker, api: httpx.Client) -> None:
        """The store says whether a lock is held, also of what this server has given out itself."""
        send(api, "a", "b")
        a, b = receive(api, limit=2)
        receiver = broker.receiver("q")
        receiver.abandon(receiver.messages_held(uuid.UUID(a["lock_token"])))
        for queue, status in (("other", 404), ("q", 409)):
            assert settle(api, "complete", a, b, queue=queue).status_code == status
        assert broker.queue("q").counts.total == 2
        assert settle(api, "complete", b).status_code == 204
        (again,) = receive(api)
        assert again["delivery_count"] == 1
        assert settle(api, "complete", a).status_code == 409
        assert settle(api, "complete", again).status_code == 204

    def test_several_settlements_at_once(self, broker: Broker, served: Served) -> None:
        """Of one token: one of them holds."""
        one = served.client("admin")
        send(one, "a")
        (taken,) = receive(one)
        with ThreadPoolExecutor(4) as pool:
            clients = [served.client("admin") for _ in range(4)]
            found = [f.status_code for f in pool.map(lambda api: settle(api, "complete", taken), clients)]
        assert sorted(found) == [204, 409, 409, 409]

    def test_a_receive_waits(self, broker: Broker, api: httpx.Client) -> None:
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.extend(receive(api, wait=20)))
        waiting.start()
        broker.sender("q").send(Message(b"late"))
        waiting.join(120)
        assert [m["body"] for m in found] == ["late"]

    def test_what_a_client_holds_is_not_blamed_on_the_server(self, broker: Broker, api: httpx.Client) -> None:
        send(api, "a")
        receive(api)
        ((holder, _key),) = store_of(broker).read(lambda tx: tx.workers.holders(10))
        (worker,) = broker.workers()
        assert holder == f"{worker.name}{FOR_CLIENTS}"
        assert [held.sequence_numbers for held in worker.holds] == [(1,)]

    def test_a_client_that_goes_away_locks_nothing(self, broker: Broker, served: Served) -> None:
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.sendall(
                b"POST /api/v1/messages/receive?queue=q&wait=30 HTTP/1.1\r\nHost: localhost\r\n"
                b"Authorization: Bearer token-of-admin\r\nContent-Length: 0\r\n\r\n"
            )
            # Answered on the same connection of the server, after it has begun to wait.
            assert served.client("admin").get("/queues/q").status_code == 200
        broker.sender("q").send(Message(b"x"))
        (taken,) = broker.receiver("q").receive(max_wait=120)
        assert taken.body == b"x"

    def test_received_and_deleted(self, broker: Broker, api: httpx.Client) -> None:
        send(api, "a")
        (taken,) = receive(api, mode="receive_and_delete")
        assert "lock_token" not in taken
        assert broker.peek("q") == []

    def test_scheduled_and_cancelled(self, broker: Broker, api: httpx.Client) -> None:
        message = {"body": "x", "scheduled_enqueue_time": "2999-01-01T00:00:00Z"}
        numbers = api.post("/messages", params={"queue": "q"}, json=message).json()
        assert api.get("/queues/q").json()["counts"]["scheduled"] == 1
        assert api.post("/messages/cancel", params={"queue": "q"}, json=numbers).status_code == 204
        assert api.get("/queues/q").json()["counts"]["scheduled"] == 0


class TestEntities:
    """Made, changed, listed, deleted; with slashes in their paths."""

    def test_a_queue(self, broker: Broker, api: httpx.Client) -> None:
        options = {"lock_duration": 30, "policy": {"receive_retry_count": 2, "on_poison": "drop"}}
        assert api.put("/queues/shop/orders", json=options).status_code == 201
        assert api.put("/queues/shop/orders", json=options).status_code == 200
        other = api.put("/queues/shop/orders", json={}).json()
        assert other["code"] == "entity_exists"
        assert "is left as it is: " in other["detail"]
        made = broker.queue("shop/orders").options
        assert (made.lock_duration, made.policy.receive_retry_count) == (30, 2)
        assert api.patch("/queues/shop/orders", json={"policy": {"max_retry_cycles": 1}}).status_code == 200
        policy = broker.queue("shop/orders").options.policy
        assert (policy.receive_retry_count, policy.max_retry_cycles) == (2, 1)
        assert api.get("/queues/shop%2Forders").json()["path"] == "shop/orders"
        assert api.delete("/queues/shop/orders").status_code == 204
        assert api.get("/queues/shop/orders").status_code == 404

    def test_pages_of_queues(self, broker: Broker, api: httpx.Client) -> None:
        for number in range(5):
            broker.create_queue(f"a{number}")
        seen, after = [], None
        while True:
            page = api.get(
                "/queues", params={"limit": 2} | ({} if after is None else {"after": after})
            ).json()
            seen += [queue["path"] for queue in page["items"]]
            after = page["next"]
            if after is None:
                break
        assert seen == [queue.path for queue in broker.queues()]

    def test_a_topic(self, broker: Broker, api: httpx.Client) -> None:
        assert api.put("/topics/t", json={}).status_code == 201
        rules = [{"name": "big", "filter": {"kind": "sql", "expression": "size > 5"}}]
        made = api.put("/subscriptions/s", params={"topic": "t"}, json={"rules": rules})
        again = api.put("/subscriptions/s", params={"topic": "t"}, json={"rules": rules})
        assert (made.status_code, again.status_code, again.json()) == (201, 200, made.json())
        assert made.status_code == 201, made.text
        where = {"topic": "t", "subscription": "s"}
        rule = {"filter": {"kind": "correlation", "subject": "x"}, "action": {"expression": "SET a = 1"}}
        assert api.put("/rules/mine", params=where, json=rule).status_code == 201
        assert api.put("/rules/mine", params=where, json=rule).status_code == 200
        assert send(api, "x", queue="t") == [1]
        assert api.get("/subscriptions/s", params={"topic": "t"}).json()["queue"]["counts"]["active"] == 0
        assert api.delete("/rules/big", params=where).status_code == 200
        assert [rule.name for rule in broker.subscription("t", "s").rules] == ["mine"]
        assert api.get("/topics").json()[0]["path"] == "t"
        assert api.delete("/subscriptions/s", params={"topic": "t"}).status_code == 204
        assert api.delete("/topics/t").status_code == 204

    def test_entity_tags(self, broker: Broker, api: httpx.Client) -> None:
        """What was shown is what is changed."""
        made = api.put("/queues/shop/a", json={"lock_duration": 30})
        seen = made.headers["etag"]
        assert seen == api.get("/queues/shop/a").headers["etag"]
        assert re.fullmatch(r'"[0-9a-f]{24}"', seen)
        send(api, "x", queue="shop/a")
        changed = api.patch("/queues/shop/a", json={"lock_duration": 31}, headers={"If-Match": seen})
        assert changed.status_code == 200, changed.text
        assert changed.headers["etag"] == api.get("/queues/shop/a").headers["etag"] != seen
        for old in (seen, f"W/{changed.headers['etag']}"):
            given = {"If-Match": old}
            status = {"path": "shop/a", "status": "disabled"}
            for answer in (
                api.patch("/queues/shop/a", json={"lock_duration": 32}, headers=given),
                api.delete("/queues/shop/a", headers=given),
                api.post("/commands/set_status", json=status, headers=given),
            ):
                assert (answer.status_code, answer.json()["code"]) == (412, "changed_meanwhile")
                assert answer.headers["content-type"] == "application/problem+json"
        for wrong in ("x", '"a", "b"', '""'):
            answer = api.patch("/queues/shop/a", json={"lock_duration": 32}, headers={"If-Match": wrong})
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
        assert broker.queue("shop/a").options.lock_duration == 31
        given = {"If-Match": changed.headers["etag"]}
        assert api.delete("/queues/shop/a", headers=given).status_code == 204
        assert api.delete("/queues/q", headers={"If-Match": "*"}).status_code == 204

    def test_entity_tags_of_topics_and_subscriptions(self, broker: Broker, api: httpx.Client) -> None:
        api.put("/topics/t", json={})
        where = {"topic": "t"}
        api.put("/subscriptions/s", params=where, json={})
        topic, seen = (
            api.get(path, params=given).headers["etag"]
            for path, given in (("/topics/t", {}), ("/subscriptions/s", where))
        )
        rule = {"filter": {"kind": "true"}}
        api.put("/rules/r", params={**where, "subscription": "s"}, json=rule, headers={"If-Match": seen})
        old = api.patch("/subscriptions/s", params=where, json={}, headers={"If-Match": seen})
        assert old.status_code == 412
        size = {"max_message_size": 5000}
        assert api.patch("/topics/t", json=size, headers={"If-Match": topic}).status_code == 200
        assert api.delete("/topics/t", headers={"If-Match": topic}).status_code == 412


class TestDeadLetters:
    """Pages, searches, causes, exports."""

    @pytest.fixture(autouse=True)
    def letters(self, broker: Broker) -> None:
        broker.create_queue("d", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
        sender, receiver = broker.sender("d"), broker.receiver("d")
        sender.send([Message(json.dumps({"n": n}).encode(), message_id=f"=m{n}") for n in range(25)])
        for message in receiver.receive(25):
            receiver.dead_letter(message, reason="Odd" if message.sequence_number % 2 else "Even")

    def test_pages(self, api: httpx.Client) -> None:
        first = api.get("/dead-letters", params={"queue": "d", "limit": 10}).json()
        assert [letter["sequence_number"] for letter in first["letters"]] == list(range(25, 15, -1))
        cursor = {"queue": "d", "limit": 10, "cursor": first["next"]}
        second = api.get("/dead-letters", params=cursor).json()
        assert [letter["sequence_number"] for letter in second["letters"]] == list(range(15, 5, -1))
        other = api.get("/dead-letters", params={**cursor, "reason": "Odd"})
        assert other.json()["code"] == "invalid_option"

    def test_filters(self, api: httpx.Client) -> None:
        for given, count in ({"reason": "Odd"}, 13), ({"where": "body.n < 3"}, 3), ({"numbers": "3,4"}, 2):
            found = api.get("/dead-letters", params={"queue": "d", **given}).json()
            assert len(found["letters"]) == count
        assert api.get("/dead-letters", params={"queue": "d", "where": "body.n <"}).status_code == 422
        assert api.get("/dead-letters", params={"queue": "d", "numbers": "x"}).status_code == 422

    def test_causes(self, api: httpx.Client) -> None:
        found = api.get("/causes", params={"queue": "d"}).json()
        assert sorted((c["reason"], c["letters"]) for c in found["causes"]) == [("Even", 12), ("Odd", 13)]
        number = found["causes"][0]["number"]
        assert api.get(f"/causes/{number}", params={"queue": "d"}).json()["letters"] == 13

    def test_exports(self, broker: Broker, api: httpx.Client) -> None:
        lines = api.get("/dead-letters/export", params={"queue": "d"}).text.splitlines()
        assert [json.loads(line)["message"]["body"] for line in lines] == [f'{{"n": {n}}}' for n in range(25)]
        table = api.get("/dead-letters/export", params={"queue": "d", "format": "csv", "reason": "Odd"})
        rows = table.text.splitlines()
        assert len(rows) == 14
        # No spreadsheet takes an id for a formula.
        assert rows[1].startswith("1,'=m0,Odd")
        assert "attachment" in table.headers["content-disposition"]
        assert api.get("/dead-letters/export", params={"queue": "none"}).status_code == 404


class TestEvents:
    """Listed, and streamed without a gap."""

    def test_a_stream_goes_on_where_it_was(self, broker: Broker, api: httpx.Client) -> None:
        start = broker.last_event()
        names = [f"e{n}" for n in range(6)]
        for name in names[:3]:
            broker.create_queue(name)
        first = self._read(api, 3, {"Last-Event-ID": str(start)})
        for name in names[3:]:
            broker.create_queue(name)
        second = self._read(api, 3, {"Last-Event-ID": first[-1][0]})
        assert [event["queue"] for _, event in first + second] == names

    def _read(
        self, api: httpx.Client, number: int, headers: dict[str, str]
    ) -> list[tuple[str, dict[str, Any]]]:
        found, position = [], ""
        with api.stream("GET", "/events/stream", headers=headers) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("id: "):
                    position = line[4:]
                elif line.startswith("data: "):
                    found.append((position, json.loads(line[6:])))
                    if len(found) == number:
                        break
        return found

    def test_a_page(self, broker: Broker, api: httpx.Client) -> None:
        found = api.get("/events", params={"kind": "queue_created"}).json()
        assert "q" in [event["queue"] for event in found]


def test_how_the_store_stands(broker: Broker, api: httpx.Client) -> None:
    assert api.get("/overview").json()["total"] == len(broker.queues())
    assert api.get("/audit").json() is not None
    assert api.get("/breaker", params={"queue": "q"}).json()["status"] == "closed"
    for path in ("/sessions", "/held-sessions"):
        assert api.get(path, params={"queue": "q"}).json() == []
    assert len(api.get("/rates", params={"queue": "q", "span": "hour", "limit": 24}).json()) == 24
    sent = api.post("/messages", params={"queue": "q"}, json={"body": "x"}).json()["sequence_numbers"]
    with broker.receiver("q") as receiver:
        messages = receiver.receive()
        (worker,) = api.get("/workers").json()
        assert [(one["queue"], one["sequence_numbers"]) for one in worker["holds"]] == [("q", sent)]
        receiver.complete(messages)
    assert api.get("/repairs").json() == []
    assert api.get("/repairs/none").json()["code"] == "repair_not_found"


def test_dialogs(broker: Broker, api: httpx.Client) -> None:
    for side in "front", "back":
        broker.dialogs.create_service(side, side, ["DEFAULT"], failures=1)
    for _ in range(2):
        with broker.dialogs.transaction() as transaction:
            transaction.send(transaction.begin_dialog("front", "back"), body=b"x")
    with contextlib.suppress(KeyError), broker.dialogs.transaction("back") as transaction:
        transaction.receive(max_messages=1)
        raise KeyError("x")
    first = api.get("/conversations", params={"limit": 3}).json()
    second = api.get("/conversations", params={"after": first["next"]}).json()
    found = [one["conversation"] for page in (first, second) for one in page["items"]]
    assert found == [c.conversation for c in broker.dialogs.conversations()]
    (held,) = api.get("/conversations", params={"held": True}).json()["items"]
    assert held["held"]["reason"] == "MaxDeliveryCountExceeded"
    ends = api.get(f"/dialogs/{held['dialog']}").json()
    assert [end["service"] for end in ends] == ["front", "back"]
    kinds = [entry["kind"] for entry in api.get(f"/dialogs/{held['dialog'][:12]}/timeline").json()]
    assert kinds[:2] == ["begun", "sent"]
    assert api.get(f"/dialogs/{'0' * 32}").json()["code"] == "conversation_not_found"
    services = api.get("/definitions").json()["definitions"]["services"]
    assert services["back"]["failures"] == 1
    resumed = {"handle": held["conversation"], "verdict": "drop"}
    assert api.post("/commands/resume_conversation", json=resumed).status_code in (200, 204)
    assert api.get("/conversations", params={"held": True}).json()["items"] == []


def test_claims(broker: Broker, api: httpx.Client) -> None:
    broker.sender("q").send([Message(b"x")] * 3)
    consumer = ClaimConsumer(broker._store, "q", "loader", lease=86_400)
    consumer.attach()
    consumer.take(0, max_rows=2)
    (claim,) = api.get("/claims", params={"queue": "q"}).json()
    assert (claim["consumer"], claim["state"], claim["rows"]) == ("loader", "open", 2)
    revoked = {"path": "q", "consumer": "loader", "number": 1}
    api.post("/commands/revoke_claim", json=revoked).raise_for_status()
    assert api.get("/claims", params={"queue": "q"}).json()[0]["state"] == "revoked"


def test_rules_are_tested(broker: Broker, api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entities, "message_of", beside_the_loop(message_of))
    broker.create_topic("sales")
    broker.create_subscription("sales", "large", rules=[Rule("large", SqlFilter("amount > 100"))])
    where = {"topic": "sales", "subscription": "large"}
    messages = [{"properties": {"amount": 7}}, {"body": {"a": 1}, "properties": {"amount": 700}}]
    tested = api.post("/rules/test", params=where, json={"messages": messages}).json()
    assert [(one["message"], one["rule"], one["matches"]) for one in tested] == [
        (1, "large", False), (2, "large", True)
    ]  # fmt: skip
    assert tested[0]["why"] == "amount is 7"
    given = {"filter": "body.a = 1", "messages": messages}
    tested = api.post("/rules/test", params=where, json=given).json()
    assert [one["matches"] for one in tested] == [False, True]
    for wrong in ({"filter": "a > >", "messages": []}, {"messages": [{"body": 1, "amount": 2}]}):
        answer = api.post("/rules/test", params=where, json=wrong)
        assert 400 <= answer.status_code < 500, answer.text
    # It needs a permission to look, so it takes no more than a command.
    answer = api.post("/rules/test", params=where, json={"messages": [{"body": "x" * (1 << 20)}]})
    assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")
    assert broker.subscription("sales", "large").queue.counts.active == 0


def test_a_repair_is_previewed(broker: Broker, api: httpx.Client) -> None:
    broker.create_queue("p", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
    broker.sender("p").send(Message(b'{"a": 1}'))
    with broker.receiver("p") as receiver:
        receiver.dead_letter(receiver.receive(), reason="R")
    broker.plan_repair("p", [1], name="mended", edit="SET body.a = 2")
    preview = api.get("/repairs/mended/preview").json()
    assert (preview["letters"], preview["changed"]) == (1, 1)
    assert "2" in str(preview["examples"])


def test_health(served: Served) -> None:
    base = f"http://127.0.0.1:{served.port}"
    assert httpx.get(f"{base}/healthz").status_code == 200
    assert httpx.get(f"{base}/readyz").status_code == 200


class TestCommands:
    """Changes under an idempotency key."""

    def test_once(self, broker: Broker, api: httpx.Client) -> None:
        key = {"Idempotency-Key": "k"}
        first = api.post("/commands/create_queue", json={"path": "new"}, headers=key)
        assert (first.status_code, first.json()["path"]) == (200, "new")
        again = api.post("/commands/create_queue", json={"path": "new"}, headers=key)
        assert again.json() == first.json()
        other = api.post("/commands/create_queue", json={"path": "other"}, headers=key)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
        assert api.post("/commands/create_queue", json={"path": "new"}).json()["code"] == "entity_exists"
        assert [entry["actor"] for entry in api.get("/audit", params={"queue": "new"}).json()] == ["admin"]

    def test_nothing_to_answer(self, broker: Broker, api: httpx.Client) -> None:
        assert api.post("/commands/delete_queue", json={"path": "q"}).status_code == 204

    def test_only_what_was_granted(self, broker: Broker, served: Served) -> None:
        for path in ("shop/a", "other"):
            broker.create_queue(path)
        client = served.client("shop")
        assert client.post("/commands/delete_queue", json={"path": "other"}).status_code == 403
        move = {"path": "shop/a", "sequence_numbers": [1], "to": "other"}
        assert client.post("/commands/move_dead_letters", json=move).status_code == 403
        repair = {"path": "shop/a", "name": "r", "everything": True, "to": "other"}
        assert client.post("/commands/plan_repair", json=repair).status_code == 403
        assert client.post("/commands/apply_repair", json={"name": "r"}).status_code == 403
        assert client.post("/commands/delete_queue", json={"path": "shop/a"}).status_code == 204
        viewer = served.client("viewer")
        assert viewer.post("/commands/delete_queue", json={"path": "other"}).status_code == 403
