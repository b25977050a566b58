"""Clients for JavaScript at the door, unchanged: Azure's own for Service Bus, and rhea."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from door.javascript_clients import node
from door.served import Served
from door.test_administration import authority, guarded, string, trusted
from lazaretto import Broker, Message, MessageState, PoisonPolicy, QueueOptions

__all__ = ["authority", "guarded", "trusted"]

pytestmark = pytest.mark.stores("sqlite")

#: Outcomes in the protocol.
ACCEPTED, REJECTED = 0x24, 0x25


class TestServiceBus:
    @pytest.fixture
    def tell(self, served: Served, packages: Path) -> Any:
        return lambda story: node(packages, "service_bus.js", served.connection_string, story)

    def test_settlements(self, tell: Any, broker: Broker) -> None:
        properties = {"number": 1, "text": "x", "yes": True, "date": 0}
        assert tell("settlements") == {
            "first": [{"hello": "world"}, "m1", "s", properties, 0],
            "again": [1, 1],
            "state": "deferred",
            "dead": ["why", "because"],
        }
        assert broker.queue("q").counts.total == 0

    def test_batches_and_locks(self, tell: Any, broker: Broker) -> None:
        three = ["a", "b", "c"]
        assert tell("batches") == {"peeked": three, "found": three, "renewed": True, "gone": "gone"}
        assert broker.queue("q").counts.total == 0

    def test_a_handler(self, tell: Any, broker: Broker) -> None:
        assert tell("subscribes") == {"bodies": [1, 2, 3]}
        assert broker.queue("q").counts.total == 0

    def test_sessions(self, tell: Any, broker: Broker) -> None:
        broker.create_queue("s", QueueOptions(requires_session=True))
        assert tell("sessions") == {
            "id": "A",
            "locked": True,
            "state": "half",
            "renewed": True,
            "bodies": [1, 2],
            "refused": "SessionCannotBeLocked",
        }

    def test_rules(self, tell: Any, broker: Broker) -> None:
        broker.create_topic("t")
        broker.create_subscription("t", "sub", options=QueueOptions(policy=PoisonPolicy()))
        assert tell("rules") == {
            "rules": [["large", "amount >= 10", "SET big = TRUE"]],
            "body": 50,
            "big": True,
        }

    def test_errors(self, tell: Any) -> None:
        codes = ["MessagingEntityNotFound", "MessageNotFound"]
        assert tell("errors") == {"codes": codes}


def test_administration_and_web_sockets(
    guarded: Served, trusted: str, packages: Path, broker: Broker
) -> None:
    """Both with TLS, which this client always wants there, and with keys."""
    broker.delete_queue("q")
    told = node(packages, "administration.js", string(guarded), authority=trusted)
    assert told.pop("administered") == {
        "queue": ["orders", "PT30S", 3, "P1D", "<owner>"],
        "updated": "PT40S",
        "queues": ["orders"],
        "topics": ["news"],
        "subscriptions": ["large"],
        "rules": ["lamp", "size"],
        "sql": ["size > @least", 10, "SET big = TRUE"],
        "correlation": ["lamp", "red"],
        "exist": [True, False, True],
        "twice": ["MessageEntityAlreadyExistsError", 409],
        # As Service Bus answers: with a feed that has nothing in it.
        "missing": ["MessageEntityNotFoundError", 200],
    }
    assert told == {"messages": {"body": 50, "big": True}, "counts": [2, 1, 1], "left": []}


def test_rhea_gets_back_what_it_sent(served: Served, packages: Path) -> None:
    seen = node(packages, "rhea.js", str(served.port))
    assert seen["accepted"] == 5
    text, full, data, sequence, plain = seen["found"]
    assert text["body"] == "text"
    assert full["body"] == {"a": 1, "b": [1, 2, "x"]}
    assert full["application_properties"] == {
        "int": 5,
        "ubyte": 3,
        "symbol": "sym",
        "double": 1.5,
        "yes": True,
    }
    kept = {"message_id": "m1", "durable": True, "priority": 8, "content_encoding": "gzip"}
    assert {name: full[name] for name in kept} == kept
    assert (full["group_sequence"], full["footer"]) == (3, {"x-foot": 1})
    assert "x-mine" in full["message_annotations"]
    assert [bytes(one["data"]) for one in data["body"]["content"]] == [b"a", b"b"]
    assert sequence["body"]["content"] == [1, "two", None]
    assert bytes(plain["body"]["content"]["data"]) == b"bytes"


def test_rhea_settles_in_transactions(served: Served, packages: Path, broker: Broker) -> None:
    broker.sender("q").send([Message(body) for body in (b"a", b"b", b"c")])
    told = node(packages, "rhea_transactions.js", str(served.port))
    assert told == {"aborted": ACCEPTED, "committed": ACCEPTED, "unknown": REJECTED}
    # One that is rolled back leaves its locks.
    (left,) = broker.peek("q", 5)
    assert (left.body, left.state) == (b"a", MessageState.LOCKED)
    assert [letter.sequence_number for letter in broker.dead_letters("q")] == [3]
