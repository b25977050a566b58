"""Properties that clients change keep the types of AMQP that they are given, through every verb and rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from door.test_residue import exact, section
from lazaretto import Broker, Rule, SqlAction, TrueFilter, connect
from lazaretto.model.messages import StoredMessage
from lazaretto.servicebus.amqp import Section, Sections
from lazaretto.servicebus.amqp.performatives import Error, Modified, Rejected
from lazaretto.servicebus.amqp.values import (
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    UByte,
    UInt,
)
from lazaretto.servicebus.answers import settlement_of, verb_of
from lazaretto.servicebus.conversions import encode_message, message_of

SENT: dict[str, Any] = {"kept": Int(1), "count": Short(2), "text": "t", "list": [Int(1)], "price": 1.5}
#: What a client changes: new ones, and others of what was sent.
CHANGES: dict[str, Any] = {
    "when": Int(5), "small": UByte(7), "single": Float(1.5), "letter": Char("é"), "name": Symbol("n"),
    "none": None, "long": 5, "count": UInt(3), "text": Byte(-1), "list": Int(9), "price": 7,
    "decimal": Decimal(bytes.fromhex("303c00000000000000000000000004e2")),
    "span": Described(Symbol("com.microsoft:timespan"), 36_000_000_000),
    "offset": Described(Symbol("com.microsoft:datetime-offset"), 638_500_000_000_000_000),
}  # fmt: skip
CHANGED = SENT | CHANGES


def properties_of(message: StoredMessage) -> Any:
    return exact(Sections(encode_message(message)).mapping(Section.APPLICATION_PROPERTIES))


def sent(**properties: Any) -> Any:
    return message_of(section(Section.APPLICATION_PROPERTIES, properties) + section(Section.DATA, b"x"))


@pytest.fixture
def broker(place: str) -> Any:
    with connect(place) as opened:
        opened.create_queue("q")
        yield opened


@pytest.mark.parametrize("verb", ["abandon", "defer", "dead_letter"])
def test_types_that_a_settlement_gives(broker: Broker, verb: str) -> None:
    states: dict[str, Modified | Rejected] = {
        "abandon": Modified(True, False, CHANGES),
        "defer": Modified(True, True, CHANGES),
        "dead_letter": Rejected(Error("com.microsoft:dead-letter", None, dict(CHANGES))),
    }
    broker.sender("q").send(sent(**SENT))
    receiver = broker.receiver("q")
    (message,) = receiver.receive(1)
    wanted = settlement_of(states[verb])
    assert wanted is not None
    name, details = verb_of(wanted)
    getattr(receiver, name)(message, **details)
    read: dict[str, Callable[[], Any]] = {
        "abandon": lambda: receiver.receive(1),
        "defer": lambda: receiver.receive_deferred([message.sequence_number]),
        "dead_letter": lambda: broker.receiver("q/$deadletterqueue").receive(1),
    }
    (now,) = read[verb]()
    assert properties_of(now) == exact(CHANGED)
    if verb == "abandon":
        # Python's own values say all of theirs, and a later change counts.
        receiver.abandon(now, properties={"when": 6, "kept": 8})
        (again,) = receiver.receive(1)
        assert properties_of(again) == exact(CHANGED | {"when": 6, "kept": 8})


def test_types_that_an_action_gives(broker: Broker) -> None:
    parameters = {"@int": 7, "@far": 1 << 40, "@byte": 3, "@text": "x"}
    action = SqlAction(
        "SET a = @int; SET b = @far; SET c = @byte; SET d = count; SET e = d; SET f = 7; SET count = 9; "
        "SET Kept = @text; SET g = count + 1; SET count = count + 1",
        parameters,
        {"@byte": "byte 3"},
    )
    broker.create_topic("t")
    broker.create_subscription("t", "s", rules=[Rule("r", TrueFilter(), action)])
    broker.sender("t").send(sent(kept=Int(1), count=Short(2)))
    (message,) = broker.receiver("t/subscriptions/s").receive(1)
    assert properties_of(message) == exact({
        "kept": "x", "count": Short(10), "a": Int(7), "b": 1 << 40, "c": Byte(3), "d": Short(2),
        "e": Short(2), "f": 7, "g": 10, "RuleName": "r",
    })  # fmt: skip
