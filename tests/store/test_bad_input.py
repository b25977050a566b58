"""Bad input: a clear error that says what was expected and what came, nothing lost, the broker usable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lazaretto
from lazaretto import (
    Broker,
    DeadLetterFilter,
    EntityNotFound,
    InvalidMessage,
    InvalidOption,
    InvalidPath,
    LazarettoError,
    Message,
    MessageLockLost,
    MessageTooLarge,
    NotAllowed,
    QueueOptions,
    StoreError,
)

from .actions import bodies, create, send, set_aside, take

NAIVE = datetime(2024, 5, 1)  # noqa: DTZ001
UNKNOWN: dict[str, Any] = {"locks": 5}
MISSPELT: dict[str, Any] = {"resaon": "x"}


@pytest.fixture(autouse=True)
def queue(broker: Broker) -> Iterator[None]:
    """A queue with a message and a dead letter, which are there afterwards, in a broker that works."""
    create(broker, max_message_size=2048)
    set_aside(broker, b"dead")
    send(broker, b"kept")
    events = broker.events()
    yield
    assert broker.events() == events
    assert bodies(broker.peek("q", 9)) == [b"kept"]
    assert bodies(broker.peek("q;poison", 9)) == [b"dead"]
    send(broker, b"more")
    receiver = broker.receiver("q")
    receiver.complete(receiver.receive(9))
    assert broker.queue("q").counts.total == 1


def _refused(kind: type[LazarettoError], expected: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=expected) as raised:
        call()
    assert type(raised.value) is kind
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    ("message", "kind", "expected"),
    [
        (Message("text"), InvalidMessage, "expected body to be bytes, got text 'text'; encode it"),  # type: ignore[arg-type]
        (Message(None), InvalidMessage, "expected body to be bytes, got None"),  # type: ignore[arg-type]
        (Message(b"x" * 2049), MessageTooLarge, "expected at most 2048 bytes .* got 2049"),
        (Message(b"x", message_id=""), InvalidMessage, "expected message_id of 1 to 128 characters, got 0"),
        (Message(b"x", message_id="x" * 129), InvalidMessage, "expected message_id of 1 to 128 .* got 129"),
        (Message(b"x", message_id=7), InvalidMessage, "expected message_id to be text or None, got 7"),  # type: ignore[arg-type]
        (Message(b"x", session_id="\ud800"), InvalidMessage, "expected session_id to be valid Unicode, got"),
        (Message(b"x", subject="a\udcffb"), InvalidMessage, "expected subject to be valid Unicode, got"),
        (Message(b"x", subject="s" * 70_000), MessageTooLarge, "expected at most 65536 bytes of headers"),
        (Message(b"x", time_to_live=-1), InvalidMessage, "expected time_to_live .* above 0 .* got -1"),
        (Message(b"x", time_to_live=timedelta(0)), InvalidMessage, "expected time_to_live .* got datetime"),
        (Message(b"x", scheduled_enqueue_time=NAIVE), InvalidMessage, "with a time zone, got datetime"),
        (Message(b"x", properties={"a": [1]}), InvalidMessage, r"property 'a' to be str, .* got \[1\]"),  # type: ignore[dict-item]
        (Message(b"x", properties={"a": 1 << 64}), InvalidMessage, "property 'a' to fit in 64 bits, got"),
        (Message(b"x", properties={1: 1}), InvalidMessage, "a property's name to be text .* got 1"),  # type: ignore[dict-item]
        (Message(b"x", properties="a"), InvalidMessage, "expected properties to be a mapping, got 'a'"),  # type: ignore[arg-type]
        (Message(b"x", properties={"a": "x" * 32_769}), MessageTooLarge, "at most 32768 bytes, got 32769"),
        (Message(b"x", dead_letter_queue=5), InvalidMessage, "expected dead_letter_queue to be text"),  # type: ignore[arg-type]
        (Message(b"x", dead_letter_queue="nowhere"), EntityNotFound, "no queue exists at 'nowhere'"),
        (b"x", InvalidMessage, "expected a lazaretto.Message or a list of them, got b'x'"),
        ("x", InvalidMessage, "expected a lazaretto.Message or a list of them, got 'x'"),
        (None, InvalidMessage, "expected a lazaretto.Message or a list of them, got None"),
        ([Message(b"x"), b"y"], InvalidMessage, "expected a lazaretto.Message, got b'y'"),
        ([Message(b"x"), Message(b"y" * 9000)], MessageTooLarge, "expected at most 2048 bytes .* got 9000"),
    ],
    ids=lambda value: "" if isinstance(value, type) else None,
)  # fmt: skip
def test_messages(broker: Broker, message: Any, kind: type[LazarettoError], expected: str) -> None:
    _refused(kind, expected, lambda: broker.sender("q").send(message))
    with broker.transaction() as tx, pytest.raises(LazarettoError):
        tx.send("q", message)
        tx.commit()


PATHS: list[tuple[object, str]] = [
    ("", "expected a queue path of 1 to 260 characters, got 0"),
    ("x" * 261, "expected a queue path of 1 to 260 characters, got 261"),
    ("a b", "expected each part of a path to be letters, .* got 'a b'"),
    ("a//b", "expected each part of a path to be letters, .* got '' in 'a//b'"),
    ("x\0", "expected each part of a path"),
    ("\ud800", "expected each part of a path"),
    (None, "expected a path to be text, got None"),
    (b"q", "expected a path to be text, got b'q'"),
]


@pytest.mark.parametrize(("path", "expected"), PATHS, ids=lambda value: repr(value)[:20])
def test_paths(broker: Broker, path: Any, expected: str) -> None:
    for call in ("create_queue", "queue", "delete_queue", "sender", "receiver", "peek", "dead_letters",
                 "dead_letter_groups", "sessions", "resume_queue"):  # fmt: skip
        _refused(InvalidPath, expected, partial(getattr(broker, call), path))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda b: b.create_queue("r", {"lock_duration": 5}), "expected options to be QueueOptions, got"),
        (lambda b: b.create_queue("r", QueueOptions(lock_duration=-1)), "expected lock_duration .* got -1"),
        (lambda b: b.create_queue("r", QueueOptions(**UNKNOWN)), "unknown option 'locks' of QueueOptions"),
        (lambda b: b.update_queue("q", lock_duration="long"), "expected lock_duration .* got 'long'"),
        (lambda b: b.update_queue("q", default_time_to_live=-5), "expected default_time_to_live .* got -5"),
        (lambda b: b.update_queue("q", policy={}), "expected policy to be a PoisonPolicy, got {}"),
        (lambda b: b.receiver("q", mode="peeklock"), "expected mode to be peek_lock or .* got 'peek"),
        (lambda b: b.receiver("q", session=5), "expected session to be text of 0 to 128 characters, got 5"),
        (lambda b: b.receiver("q").receive(0), "expected max_messages to be an integer from 1 to .* got 0"),
        (lambda b: b.receiver("q").receive("all"), "expected max_messages to be an integer .* got 'all'"),
        (lambda b: b.receiver("q").receive(1, -1), "expected max_wait to be a duration from 0 .* got -1"),
        (lambda b: b.receiver("q").receive(1, float("nan")), "expected max_wait to be a duration .* got nan"),
        (lambda b: b.receiver("q").receive_deferred(0), "expected sequence numbers, integers from 1, got 0"),
        (lambda b: b.receiver("q").receive_deferred("1"), "expected sequence numbers, .* got '1'"),
        (lambda b: b.receiver("q").receive_deferred(1 << 80), "expected sequence numbers, .* got 1208925"),
        (lambda b: b.receiver("q").complete("m"), "expected received messages, got 'm'"),
        (lambda b: b.receiver("q").complete([None]), "expected received messages, got None"),
        (lambda b: b.receiver("q").complete(5), "expected received messages, got 5"),
        (lambda b: b.receiver("q").abandon(b.peek("q")), "expected received messages, got PeekedMessage"),
        (lambda b: b.receiver("q").renew_lock([]), "expected at least one message"),
        (lambda b: b.peek("q", 0), "expected max_messages to be an integer from 1"),
        (lambda b: b.peek("q", 1, -1), "expected from_sequence_number to be an integer from 0"),
        (lambda b: b.sender("q").cancel("x"), "expected sequence numbers, integers from 1, got 'x'"),
        (lambda b: b.events(-1), "expected after to be an integer from 0"),
        (lambda b: b.events(limit=0), "expected limit to be an integer from 1"),
        (lambda b: b.events(max_wait="x"), "expected max_wait to be a duration"),
        (lambda b: b.audit(limit=True), "expected limit to be an integer from 1 .* got True"),
        (lambda b: b.consume("q", print, batch_size=0), "expected batch_size to be an integer from 1"),
        (lambda b: b.dead_letter("q", -1), "expected sequence_number to be an integer from 1 to .* got -1"),
        (lambda b: b.dead_letter("q", [1, 2]), r"expected sequence_number .* got \[1, 2\]"),
        (lambda b: b.attempts("q", "x"), "expected sequence_number to be an integer from 1 to .* got 'x'"),
        (lambda b: b.resubmit("q", "all"), "expected sequence numbers, integers from 1, got 'a'"),
        (lambda b: b.resubmit("q", None), "expected sequence numbers, integers from 1, got None"),
        (lambda b: b.purge("q", [1.5]), "expected sequence numbers, integers from 1, got 1.5"),
        (lambda b: list(b.dead_letters("q", limit=-1)), "expected limit to be an integer from 0"),
        (lambda b: list(b.dead_letters("q", "all")), "expected which to be a DeadLetterFilter .* got 'all'"),
        (lambda b: DeadLetterFilter(reason=""), "expected reason to be text of 1 to 4096 characters, got ''"),
        (lambda b: DeadLetterFilter(since=NAIVE), "expected since to be a datetime with a time zone, got"),
        (lambda b: DeadLetterFilter(**MISSPELT), r"unknown option 'resaon' .* did you mean 'reason'\?"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_options_and_arguments(broker: Broker, call: Callable[[Broker], object], expected: str) -> None:
    _refused(InvalidOption, expected, lambda: call(broker))


class TestSettling:
    """Wrong arguments to a settle leave the message locked, and it can be settled afterwards."""

    @pytest.mark.parametrize(
        ("verb", "options", "expected"),
        [
            ("abandon", {"delay": -1}, "expected delay to be a duration from 0 .* got -1"),
            ("abandon", {"delay": "soon"}, "expected delay to be a duration from 0 .* got 'soon'"),
            ("dead_letter", {"reason": 5}, "expected reason to be text or None, got 5"),
            ("dead_letter", {"description": b"x"}, "expected description to be text or None, got b'x'"),
            ("abandon", {"error": 5}, "expected error to be an exception, text or None, got 5"),
            ("dead_letter", {"error": 5}, "expected error to be an exception, text or None, got 5"),
            ("invalid", {"error": 5}, "expected error to be an exception, text or None, got 5"),
        ],
    )
    def test_arguments(self, broker: Broker, verb: str, options: dict[str, Any], expected: str) -> None:
        receiver = broker.receiver("q")
        (message,) = receiver.receive()
        _refused(InvalidOption, expected, lambda: getattr(receiver, verb)(message, **options))
        receiver.release(message)

    def test_by_a_message_of_another_store(self, broker: Broker, tmp_path: Path) -> None:
        with lazaretto.connect(tmp_path / "other.db") as other:
            create(other)
            send(other, b"1", b"2")
            take(other)
            foreign = take(other)
            _refused(
                MessageLockLost,
                "the lock on message 2 of 'q'",
                lambda: broker.receiver("q").complete(foreign),
            )

    def test_a_subqueue_cannot_be_sent_to(self, broker: Broker) -> None:
        _refused(NotAllowed, "send to 'q'", lambda: broker.sender("q;poison"))


class TestConnect:
    """Opening a store."""

    @pytest.mark.parametrize(
        ("address", "expected"),
        [
            ("", "expected a store such as 'sqlite:///orders.db', got ''"),
            ("mysql://localhost/x", "got the scheme 'mysql'"),
            ("sqlite:orders.db", "got 'sqlite:orders.db'"),
            ("sqlite:///", "expected a file's path after 'sqlite:///', got ''"),
            ("sqlite:///:memory:", "expected a file's path after 'sqlite:///', got ':memory:'"),
            ("sqlite:///x.db?mode=ro", "expected a file's path after 'sqlite:///', got 'x.db"),
            (b"x.db", "expected a store such as 'sqlite:///orders.db', got b'x.db'"),
            (None, "expected a store such as 'sqlite:///orders.db', got None"),
            (5, "expected a store such as 'sqlite:///orders.db', got 5"),
        ],
    )
    def test_addresses(self, address: Any, expected: str) -> None:
        _refused(InvalidOption, expected, lambda: lazaretto.connect(address))

    @pytest.mark.parametrize("timeout", [-1, "x", None])
    def test_timeout(self, tmp_path: Path, timeout: Any) -> None:
        _refused(
            InvalidOption,
            "expected timeout to be a duration",
            lambda: lazaretto.connect(tmp_path / "x.db", timeout=timeout),
        )
        assert not (tmp_path / "x.db").exists()

    def test_a_store_that_must_exist(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="no store exists here"):
            lazaretto.connect(tmp_path / "x.db", create=False)
        assert not (tmp_path / "x.db").exists()

    def test_a_folder_that_does_not_exist(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="check that its folder exists and can be written to"):
            lazaretto.connect(tmp_path / "nowhere" / "x.db")


def test_a_broker_of_an_address_says_how_one_is_opened() -> None:
    wrong: Any = "orders.db"
    with pytest.raises(InvalidOption, match=r"expected an open store, got 'orders.db'; lazaretto.connect"):
        Broker(wrong)
