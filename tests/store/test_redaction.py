"""Fields that people may not read: the rules in the store, what is kept of messages, and explanations."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest

from lazaretto import (
    Broker,
    ComparedWith,
    InvalidOption,
    Message,
    NotAllowed,
    QueueOptions,
    RedactionForm,
    RedactionRule,
    Rule,
    SqlFilter,
)
from lazaretto import commands as c
from lazaretto.broker.broker import store_of
from lazaretto.model.edits.redact import MASK
from lazaretto.model.redaction import encode_rules
from lazaretto.store.records.access import REDACTION
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

from .actions import create, send, stored

SECRET = "4111-1111"


def kept(broker: Broker) -> list[bytes]:
    rows = stored(broker, "SELECT headers, body FROM lazaretto_samples ORDER BY key")
    return [bytes(headers or b"") + bytes(body) for headers, body in rows]


def complete(broker: Broker, path: str = "q", number: int = 300, size: int = 50, **fields: Any) -> None:
    """Send messages with a secret, and complete them."""
    bodies = [json.dumps({"n": n, "card": SECRET, **fields}).encode() for n in range(number)]
    with broker.sender(path) as sender:
        sender.send([Message(body, properties={"token": SECRET, "left": "here"}) for body in bodies])
    with broker.receiver(path) as receiver:
        while messages := receiver.receive(size):
            assert all(SECRET in m.body.decode() and m.properties["token"] == SECRET for m in messages)
            receiver.complete(messages)


def test_rules_are_set_listed_replaced_and_removed(broker: Broker) -> None:
    assert broker.redaction() == []
    assert broker.run(c.SetRedaction(field="body.card")) == {
        "queue": "*",
        "field": "body.card",
        "form": "mask",
    }
    broker.run(c.SetRedaction(field="user.token", queue="shop/*", form="drop"), actor="ann")
    broker.run(c.SetRedaction(field="body.card", form="hash"))
    rules = [
        RedactionRule("*", "body.card", RedactionForm.HASH),
        RedactionRule("shop/*", "user.token", RedactionForm.DROP),
    ]
    assert broker.redaction() == rules
    before, *_ = broker.audit()
    assert (before.action, before.detail["before"]) == ("redaction: set", "mask")
    assert c.opposite_of(before) == c.SetRedaction(field="body.card", form="mask")
    entries = len(broker.audit())
    broker.run(c.SetRedaction(field="body.card", form="hash"))
    assert len(broker.audit()) == entries, "nothing changed"
    broker.run(c.RemoveRedaction(field="user.token", queue="shop/*"))
    assert broker.redaction() == rules[:1]
    assert c.opposite_of(broker.audit()[0]) == c.SetRedaction(field="user.token", queue="shop/*", form="drop")
    with pytest.raises(NotAllowed):
        broker.run(c.RemoveRedaction(field="user.token", queue="shop/*"))
    for wrong in ({"field": "card"}, {"field": "body", "form": "no"}, {"field": "body", "queue": ""}):
        with pytest.raises(InvalidOption):
            broker.run(c.SetRedaction(**wrong))
    assert broker.check() == []


@pytest.mark.parametrize("size", [1, 50])
def test_what_is_kept_of_completed_messages_is_redacted(broker: Broker, size: int) -> None:
    """The queue's good messages are kept without the field; receivers got them whole."""
    create(broker)
    create(broker, "other")
    for field in ("body.card", "user.token"):
        broker.run(c.SetRedaction(field=field, queue="q"))
    complete(broker, size=size)
    found = kept(broker)
    assert found
    assert all(SECRET.encode() not in one and MASK.encode() in one and b"here" in one for one in found)
    complete(broker, "other", size=size)
    assert any(SECRET.encode() in one for one in kept(broker)), "another queue has no rule"


def test_a_rule_holds_for_queues_that_come_later_and_forgets_what_was_kept(broker: Broker) -> None:
    create(broker, "shop/old")
    complete(broker, "shop/old")
    assert any(SECRET.encode() in one for one in kept(broker))
    broker.run(c.SetRedaction(field="body", queue="shop/*", form="drop"))
    broker.run(c.SetRedaction(field="user", queue="shop/*", form="drop"))
    assert kept(broker) == []
    create(broker, "shop/new")
    broker.create_topic("shop/news")
    broker.create_subscription("shop/news", "all", rules=[Rule("all", SqlFilter("1=1"))])
    complete(broker, "shop/new")
    complete(broker, "shop/old")
    with broker.sender("shop/news") as sender:
        sender.send([Message(json.dumps({"card": SECRET}).encode()) for _ in range(200)])
    with broker.receiver("shop/news/subscriptions/all") as receiver:
        while messages := receiver.receive(50):
            receiver.complete(messages)
    assert len(kept(broker)) > 10
    assert [one for one in kept(broker) if SECRET.encode() in one] == []
    for field in ("body", "user"):
        broker.run(c.RemoveRedaction(field=field, queue="shop/*"))
    assert kept(broker) == []
    complete(broker, "shop/old")
    assert any(SECRET.encode() in one for one in kept(broker))


def test_long_bodies_are_not_kept(broker: Broker) -> None:
    create(broker)
    broker.run(c.SetRedaction(field="body", form="drop"))
    complete(broker, text="x" * 70_000)
    assert kept(broker) == []


def kill(broker: Broker, bodies: list[dict[str, Any]], error: Exception) -> None:
    send(broker, *(json.dumps(body).encode() for body in bodies))
    with broker.receiver("q") as receiver:
        while messages := receiver.receive(500):
            for message in messages:
                receiver.dead_letter(message, reason="bad", error=error)


@pytest.mark.parametrize("form", ["drop", "mask", "hash"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_explanations_leave_redacted_fields_out(broker: Broker, form: str, when: str) -> None:
    """Neither the value sets nor the length of bodies tell what may not be read; what is left is found."""
    r = random.Random(1)
    broker.create_queue("q", QueueOptions(breaker=None, kept_samples=2_048))

    def order(card: str, to: str) -> dict[str, Any]:
        return {"n": r.randrange(10**6), "card": card, "to": to}

    def succeed() -> None:
        send(broker, *(json.dumps(order("good", r.choice("ABCD"))).encode() for _ in range(6_000)))
        with broker.receiver("q") as receiver:
            while messages := receiver.receive(1_000):
                receiver.complete(messages)

    if when == "before":
        broker.run(c.SetRedaction(field="body.card", form=form))
    succeed()
    kill(broker, [order(SECRET, "X") for _ in range(60)], KeyError("unknown"))
    kill(broker, [order(SECRET, r.choice("ABCD")) for _ in range(60)], ValueError("other"))
    if when == "after":
        found = str(broker.explain("q"))
        assert SECRET in found, "it is what they share, and nobody has hidden it yet"
        assert SECRET in str(broker.triage("q"))
        broker.run(c.SetRedaction(field="body.card", form=form))
        assert SECRET not in str(broker.triage("q"))
        assert all(cause.to_explain for cause in broker.triage("q").causes)
        succeed()
    explained = {e.error_type: e for e in broker.explain("q")}
    assert explained["KeyError"].filter == "body.to = 'X'"
    assert explained["ValueError"].filter is None
    told = str(broker.explain("q")) + str(broker.triage("q"))
    assert SECRET not in told
    assert "body.card" not in told
    assert explained["KeyError"].compared_with is ComparedWith.COMPLETED


def test_bodies_that_are_no_json_explain_nothing(broker: Broker) -> None:
    """What cannot be looked into is not decoded by others either."""
    create(broker, breaker=None)
    broker.run(c.SetRedaction(field="body.card"))
    send(broker, *(b"card=%s;to=X" % SECRET.encode() for _ in range(60)))
    with broker.receiver("q") as receiver:
        for message in receiver.receive(60):
            receiver.dead_letter(message, reason="bad")
    send(broker, *(b"card=good;to=A" for _ in range(300)))

    def decode(body: bytes) -> dict[str, str]:
        return dict(part.split("=") for part in body.decode().split(";"))

    (cause,) = broker.explain("q", decode=decode)
    assert cause.filter is None
    broker.run(c.RemoveRedaction(field="body.card"))
    (cause,) = broker.explain("q", decode=decode)
    assert cause.filter in ("body.to = 'X'", f"body.card = '{SECRET}'")


@dataclasses.dataclass
class _Fill(Operation[None]):
    """Give a store as many rules as it may have."""

    def run(self, tx: Transaction) -> None:
        rules = [RedactionRule("*", f"body.a{n}", RedactionForm.MASK) for n in range(1_000)]
        tx.access.save_setting(REDACTION, encode_rules(rules))


def test_many_rules(broker: Broker) -> None:
    store_of(broker).run(_Fill())
    with pytest.raises(NotAllowed):
        broker.run(c.SetRedaction(field="body.more"))
    assert broker.run(c.SetRedaction(field="body.a5", form="drop"))["form"] == "drop"
    assert len(broker.redaction()) == 1_000
