"""Whatever is given to a public method: it works, or one of our errors comes out, and the broker goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

import lazaretto
from lazaretto import (
    NEXT_SESSION,
    Backoff,
    BreakerPolicy,
    Broker,
    BrokerTransaction,
    CorrelationFilter,
    DeadLetterFilter,
    LazarettoError,
    Message,
    PoisonPolicy,
    QueueOptions,
    Receiver,
    Repair,
    Rule,
    Sender,
    SqlAction,
    SqlFilter,
    TopicOptions,
)
from lazaretto.commands import SetStatus
from lazaretto.model.records.plain import plain

from .actions import is_sqlite
from .conftest import Connect

#: They are refused before a store is asked: the short form asks one.
pytestmark = [] if os.environ.get("LAZARETTO_SOAK") else [pytest.mark.stores("sqlite")]


class _Text(str):
    """As numpy's texts are."""

    __slots__ = ()


class _Number(float):
    """As numpy's numbers are."""


class _Choice(str, Enum):  # noqa: UP042 - text of its own is what matters
    """Text that says something else when it is asked for its text."""

    ONE = "one"


class _Empty:
    """An object of somebody's."""

    def __repr__(self) -> str:
        return "an object"


_NAIVE = datetime(2024, 5, 1)  # noqa: DTZ001
HOSTILE: list[Any] = [
    None, True, 0, -1, 1 << 63, 10**400, 0.01, -0.0, math.nan, math.inf, -math.inf, 1e300,
    "", "q", "\0", "a\0b", "\ud800", "a\udcffb", "x" * 5000, "[red]", b"", b"q", b"\xff", bytearray(b"q"),
    [], {}, (), [None], ["\ud800"], [[1]], [1 << 80], {"a": _Empty()}, {"\ud800": 1}, {"a": "\0"}, {1: 2},
    {"a"},    _NAIVE, datetime.max.replace(tzinfo=timezone(-timedelta(hours=9))),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=9))), timedelta.max, timedelta(-1), UTC,
    _Empty(), _Text("q"), _Text("\ud800"), _Number(0.01), _Choice.ONE, len, _Empty, ValueError("x"),
    ValueError("\ud800"), ValueError("a\0b"), ValueError, Message(b"x"), Message(None), NEXT_SESSION,  # type: ignore[arg-type]
    QueueOptions(), DeadLetterFilter(),
]  # fmt: skip
try:
    import numpy as np
except ImportError:
    pass
else:
    HOSTILE += [
        np.int64(3), np.int64(-1), np.uint8(1), np.float64(0.01), np.float32(0.01), np.float64(math.nan),
        np.str_("q"), np.bytes_(b"q"), np.bool_(True), np.array([1, 2]), np.array(["q"]),
        np.datetime64("2024-01-01"),
    ]  # fmt: skip


def _name(value: object) -> str:
    return f"{type(value).__name__}-{ascii(value)[:24]}"


class World:
    """A broker with an entity of every kind, each with something in it; made again where it was deleted."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._opened: list[Any] = []

    def mend(self) -> None:
        """Make sure that all is there which the calls need."""
        broker = self.broker
        existing = {queue.path for queue in broker.queues()}
        policy = PoisonPolicy(receive_retry_count=0)
        if "q" not in existing:
            broker.create_queue("q", QueueOptions(policy=policy))
            broker.sender("q").send([Message(b"1"), Message(b"2", time_to_live=60)])
        if broker.queue("q").status.value != "active":
            broker.set_status("q", "active")
        if "s" not in existing:
            broker.create_queue("s", QueueOptions(requires_session=True, policy=policy))
        if not broker.topics():
            broker.create_topic("t")
        if not broker.subscriptions("t"):
            broker.create_subscription("t", "a")

    def message(self, path: str = "q") -> Any:
        """Return a message that was just received."""
        self.broker.sender(path).send(Message(b"x", session_id="one"))
        (found,) = self.broker.receiver(path).receive()
        return found

    def lock_token(self) -> Any:
        """Return the lock token of such a message."""
        return self.message().lock_token

    def sender(self) -> Sender:
        return self.broker.sender("q")

    def receiver(self) -> Receiver:
        return self.broker.receiver("q")

    def session(self) -> Receiver:
        self.broker.sender("s").send(Message(b"x", session_id="one"))
        receiver = self.broker.receiver("s", session="one")
        self._opened.append(receiver)
        return receiver

    def repair(self) -> Repair:
        return self.broker.plan_repair("q", DeadLetterFilter(), everything=True)

    def transaction(self) -> BrokerTransaction:
        work = self.broker.transaction()
        self._opened.append(work)
        return work

    def end(self) -> None:
        """End what a call was made on."""
        for opened in self._opened:
            if isinstance(opened, Receiver):
                opened.close()
            else:
                with contextlib.suppress(lazaretto.TransactionError):  # it has ended
                    opened.rollback()
        self._opened.clear()


#: A value that is right, by the parameter's name; where it is a function of the world, what that returns.
RIGHT: dict[str, Any] = {
    "path": "q", "subqueue": None, "mode": "peek_lock", "via": None, "session": None, "max_messages": 1,
    "from_sequence_number": 0, "sequence_number": 1, "sequence_numbers": 1, "session_id": "one", "limit": 10,
    "verdict": "retry", "actor": None, "consumer": "c", "number": 1, "handler": len, "batch_size": 10,
    "stop": threading.Event(), "stop_when_idle": True, "max_wait": 0.0, "on_batch": None, "which": [1],
    "edit": None, "on_chunk": None, "everything": False, "after": 0, "kind": None, "queue": None,
    "messages": World.message, "at": datetime(2030, 1, 1, tzinfo=UTC), "error": None, "delay": None,
    "properties": None, "reason": None, "description": None, "state": b"x", "options": None,
    "status": "active",    "verb": "auto", "topic": "t", "name": "a", "rules": None, "rule": Rule("r"),
    "sql": "SELECT 1",
    "parameters": (), "started": True, "paths": ["made"], "since": None, "over": False,
    "explain_for": 0, "numbers": [1, 2], "fingerprints": ["0123456789abcdef"], "note": "x",
    "parts": {2: ["0123456789abcdef"]}, "repair": None,
    "action": None, "before": None, "person": "ann", "until": None,
    "to": None, "order": None, "canary": 1, "canary_failures": 0, "canary_wait": 1.0, "in_flight": 10,
    "rate": None, "skipped": False, "letters": 10, "count": 0, "cursor": None, "budget": 0.25,
    "on_progress": None, "name_contains": None, "span": "minute", "idempotency_key": None, "version": None,
    "command": SetStatus(path="q", status="active"),
    "lock_tokens": World.lock_token, "active": False, "state_set_after": None, "enqueued_before": None,
    "skip": 0, "exist_ok": False, "failed": False, "subscription": "a", "role": "viewer", "text": "x",
    "field": "body.x", "form": "mask", "label": "x", "expires": None, "id": "x",
}  # fmt: skip
SENT = {"messages": Message(b"x")}
SPECIAL: dict[str, dict[str, Any]] = {
    "Sender.send": SENT,
    "Sender.schedule": SENT,
    "BrokerTransaction.send": SENT,
    "Broker.create_queue": {"path": "made"},
    "Broker.create_topic": {"path": "made-topic"},
    "Broker.topic": {"path": "t"},
    "Broker.update_topic": {"path": "t", **dataclasses.asdict(TopicOptions())},
    "Broker.delete_topic": {"path": "t"},
    "Broker.create_subscription": {"subscription": "made"},
    "Broker.remove_rule": {"rule": "$Default"},
    "Broker.update_rule": {"rule": Rule()},
    "Broker.update_queue": {
        name: getattr(QueueOptions(), name) for name in QueueOptions.__dataclass_fields__
    },
    "Broker.update_subscription": {"lock_duration": 5.0},
    "Broker.plan_repair": {"name": None, "limit": 5},
    "Broker.restore": {"which": [1]},
    "Broker.purge": {"which": DeadLetterFilter(), "everything": True},
    "Broker.resubmit": {"which": DeadLetterFilter()},
    "Broker.explain": {"which": None, "good": None, "decode": None, "leave_out": ()},
    "Broker.dead_letters": {"which": None, "messages": True, "order": "number"},
    "Broker.dead_letter_page": {"which": None, "order": "-number"},
    "Broker.queues": {"after": "p"},
    "Broker.sessions": {"after": "a"},
    "Broker.republish": {"path": "t/subscriptions/a", "topic": "t"},
    "Broker.count_republished": {"path": "t/subscriptions/a", "topic": "t"},
    "Broker.move_dead_letters": {"to": "s"},
    "Broker.delete_messages": {"count": 1, "session_id": None},
}
#: Ending is not calling, `run_repairs` goes on for ever, and `take`, the service host's, checks its own.
LEFT_OUT = {"close", "commit", "take", "run_repairs"}
OWNERS: dict[type, Callable[[World], Any]] = {
    Broker: lambda world: world.broker,
    Sender: World.sender,
    Receiver: World.receiver,
    BrokerTransaction: World.transaction,
    Repair: World.repair,
}
IN_SESSION = {"set_session_state"}


def _methods() -> Iterator[Any]:
    for owner in OWNERS:
        for name, method in inspect.getmembers(owner, inspect.isfunction):
            parameters = list(inspect.signature(method).parameters)[1:]
            if not name.startswith("_") and name not in LEFT_OUT and parameters:
                yield pytest.param(owner, name, id=f"{owner.__name__}.{name}")


def _hostile(name: str, served: bool) -> list[Any]:
    # None is for ever there, as it should be.
    values = [v for v in HOSTILE if v is not None] if name == "max_wait" else HOSTILE
    if name in ("on_chunk", "on_batch", "on_progress"):
        # What a function of the caller's raises is the caller's.
        values = [v for v in values if not callable(v)]
    # What all stores share looks at types before a server sees anything.
    return [v for v in values if isinstance(v, str | dict)] if served else values


def _call(call: Callable[..., object], arguments: dict[str, Any], what: str) -> None:
    """Call something; nothing but our errors may come out."""
    try:
        found = call(**arguments)
        if inspect.isgenerator(found):
            list(found)
    except LazarettoError as error:
        assert str(error).encode(), what
        assert len(str(error)) < 1000, what
    except Exception as error:
        if what.startswith("BrokerTransaction.execute") and isinstance(error, sqlite3.Error | psycopg.Error):
            # The user's own SQL fails as the user's SQL.
            return
        raise AssertionError(f"{type(error).__name__} from {what}: {error}") from error


def _check(
    call: Callable[..., object], right: dict[str, Any], what: str, end: Callable[[], None], served: bool
) -> None:
    failures = []
    for name in right:
        for value in _hostile(name, served):
            told = f"{what}({name}={_name(value)})"
            try:
                _call(call, {**right, name: value}, told)
            except AssertionError as error:
                failures.append(str(error))
            end()
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize(("owner", "name"), list(_methods()))
def test_methods(broker: Broker, owner: type, name: str) -> None:
    world, what = World(broker), f"{owner.__name__}.{name}"
    special = SPECIAL.get(what, {})
    given = inspect.signature(getattr(owner, name)).parameters
    plain = [p.name for p in list(given.values())[1:] if p.kind is not p.VAR_KEYWORD]
    right = {p: special.get(p, RIGHT.get(p)) for p in [*plain, *special]}
    assert all(p in RIGHT or p in special for p in right), f"no right value for a parameter of {what}"

    world.mend()

    def call(**arguments: Any) -> object:
        if owner is Broker:
            world.mend()
        subject = world.session() if name in IN_SESSION else OWNERS[owner](world)
        made = {
            p: v(world) if v is World.message or v is World.lock_token else v for p, v in arguments.items()
        }
        return getattr(subject, name)(**made)

    _check(call, right, what, world.end, not is_sqlite(broker))
    world.mend()
    assert world.message().body is not None


CLASSES: dict[type, dict[str, Any]] = {
    QueueOptions: {}, TopicOptions: {}, PoisonPolicy: {}, BreakerPolicy: {}, DeadLetterFilter: {}, Rule: {},
    Backoff: {"initial": 1.0}, CorrelationFilter: {"subject": "a"}, SqlFilter: {"expression": "a = 1"},
    SqlAction: {"expression": "SET a = 1"},
}  # fmt: skip


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.__name__)
def test_options(made: type, connect: Connect) -> None:
    """What is accepted can be stored, and read again."""
    broker = connect()
    broker.create_topic("t")
    uses: dict[type, Callable[[Any], object]] = {
        QueueOptions: lambda o: broker.create_queue("q", o),
        TopicOptions: lambda o: broker.create_topic("n", o),
        PoisonPolicy: lambda o: broker.create_queue("q", QueueOptions(policy=o)),
        BreakerPolicy: lambda o: broker.create_queue("q", QueueOptions(breaker=o)),
        Backoff: lambda o: broker.create_queue("q", QueueOptions(policy=PoisonPolicy(retry_cycle_delay=o))),
        DeadLetterFilter: lambda o: broker.purge("$system/deadletter", o, everything=True),
        Rule: lambda o: broker.create_subscription("t", "a", rules=[o]),
        SqlAction: lambda o: broker.create_subscription("t", "a", rules=[Rule(action=o)]),
    }

    def use(**options: Any) -> None:
        one = made(**options)
        use = uses.get(made, lambda o: broker.create_subscription("t", "a", rules=[Rule(filter=o)]))
        use(one)
        assert broker.queues()
        assert len(broker.topics()) <= 2
        for found in broker.subscriptions("t"):
            assert found.rules
        broker.sender("t").send(Message(b"x", properties={"a": 1}))

    def end() -> None:
        for queue in broker.queues():
            if queue.path == "q":
                broker.delete_queue("q")
        for topic in broker.topics():
            if topic.path == "n":
                broker.delete_topic("n")
        for subscription in broker.subscriptions("t"):
            broker.delete_subscription("t", subscription.name)

    right = {f.name: f.default for f in dataclasses.fields(made) if f.default is not dataclasses.MISSING}
    missing: dict[str, Any] = {f.name: {} for f in dataclasses.fields(made)}
    _check(use, {**missing, **right, **CLASSES[made]}, made.__name__, end, not is_sqlite(broker))


@pytest.mark.parametrize("name", [f for f in Message.__struct_fields__ if f != "body"] + ["body"])
def test_messages(broker: Broker, name: str) -> None:
    """What is sent can be peeked at, received, shown, set aside, sent back, and published."""
    broker.create_queue("q", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
    broker.create_topic("t")
    broker.create_subscription("t", "a", rules=[Rule(filter=SqlFilter("a = 1 OR sys.To = 'x' OR 1 = 1"))])

    def use(**fields: Any) -> None:
        message = Message(**{"body": b"x", **fields})
        broker.sender("q").send(message)
        broker.sender("t").send(message)
        for found in [*broker.peek("q"), *broker.peek("t/subscriptions/a")]:
            msgspec.json.encode(plain(found))
        with broker.receiver("q") as receiver:
            receiver.dead_letter(receiver.receive())
        broker.resubmit("q", DeadLetterFilter())

    def end() -> None:
        with broker.receiver("q", mode="receive_and_delete") as receiver:
            receiver.receive(10)
        with broker.receiver("t/subscriptions/a", mode="receive_and_delete") as receiver:
            receiver.receive(10)
        broker.purge("q", DeadLetterFilter(), everything=True)

    right = {name: None}
    served = not is_sqlite(broker)
    _check(use, right, "Message", end, served)
    if name == "properties":
        _check(lambda a: use(properties={"a": a}), {"a": 1}, "Message.properties", end, served)


CONNECT = {
    "url": "", "clock": None, "create": True, "adopt": False, "timeout": 1.0, "durable_attempts": False,
    "create_spans": True,
}  # fmt: skip


def test_connect(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def connect(**options: Any) -> None:
        lazaretto.connect(**options).close()

    _check(connect, {**CONNECT, "url": url}, "connect", lambda: None, False)
