"""Does the same to a real broker and to the model, and compares the answers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from memory import memory_folder
from stock import used_store

import lazaretto
from lazaretto import (
    ManualClock,
    Message,
    MessageState,
    PoisonPolicy,
    QueueOptions,
    Rule,
    SqlFilter,
    TopicOptions,
)
from lazaretto.broker.broker import Broker
from lazaretto.broker.receiver import Receiver
from lazaretto.errors import LazarettoError
from lazaretto.model.clock import MICROSECONDS, to_datetime
from lazaretto.model.entities import PoisonSession
from lazaretto.model.keys import PARTITION_SEQUENCE_BITS
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import UNLIMITED, Backoff, Disposition, Growth, Outcome

from .compare import compare_queue, model_message, real_message
from .records import SYSTEM, Copy, Draft, Handle, Refused, SessionHandle, Settlement
from .reference import Model
from .unit import ModelTransaction

T = TypeVar("T")
U = TypeVar("U")

START = 1_700_000_000
#: The path of a queue that stays empty: receiving from it lets the broker do what is due.
IDLE = "idle"


def _wcf(on_poison: str, cycles: int = 1, delay: float | Backoff = 30.0, **more: Any) -> PoisonPolicy:
    return PoisonPolicy(
        receive_retry_count=1,
        max_retry_cycles=cycles,
        retry_cycle_delay=delay,
        on_poison=Disposition(on_poison),
        **more,
    )


def _dead(on_poison: str, retries: int) -> PoisonPolicy:
    how = Disposition(on_poison)
    return PoisonPolicy(receive_retry_count=retries, max_retry_cycles=3, on_poison=how, on_invalid=how)


_LINEAR = Backoff(initial=10, growth=Growth.LINEAR, maximum=15)
QUEUES = {
    "plain": QueueOptions(lock_duration=30, policy=PoisonPolicy.service_bus(3)),
    "move": QueueOptions(
        lock_duration=20, policy=_wcf("move", 2, _LINEAR), dead_letter_policy=_dead("fault", 1)
    ),
    "fault": QueueOptions(
        lock_duration=20,
        policy=_wcf("fault", on_invalid=Disposition.FAULT),
        dead_letter_policy=_dead("drop", 0),
    ),
    "drop": QueueOptions(
        lock_duration=60, default_time_to_live=45, policy=_wcf("drop"), dead_letter_policy=_dead("reject", 1)
    ),
    "reject": QueueOptions(lock_duration=20, policy=_wcf("reject", on_invalid=Disposition.REJECT)),
    "returns": QueueOptions(policy=PoisonPolicy(receive_retry_count=0, on_poison=Disposition.REJECT)),
    "sessions": QueueOptions(lock_duration=20, requires_session=True, policy=_wcf("move", 1, 10.0)),
    "strict-sessions": QueueOptions(
        lock_duration=20,
        requires_session=True,
        default_time_to_live=60,
        policy=_wcf("fault", 0, disable_after_rollbacks=3),
    ),
    "units": QueueOptions(
        lock_duration=20,
        requires_session=True,
        on_poison_session=PoisonSession.WHOLE,
        policy=_wcf("move", 1, 10.0),
    ),
    "unique": QueueOptions(requires_duplicate_detection=True, duplicate_detection_window=40),
    "expiring": QueueOptions(lock_duration=20, default_time_to_live=50, dead_letter_on_expiration=True),
    "rollbacks": QueueOptions(
        lock_duration=20,
        policy=PoisonPolicy(receive_retry_count=UNLIMITED, disable_after_rollbacks=2),
    ),
    "news/subscriptions/all": QueueOptions(lock_duration=20, policy=_wcf("move")),
    "news/subscriptions/even": QueueOptions(
        lock_duration=20, default_time_to_live=50, policy=_wcf("reject"), dead_letter_on_expiration=True
    ),
}  # fmt: skip
TOPIC = "news"
TOPIC_OPTIONS = TopicOptions(default_time_to_live=70)
#: Of the ids m1, m2, m3 …: a subscription's filter, and the same for the model.
_EVEN = " OR ".join(f"sys.MessageId LIKE '%{digit}'" for digit in "02468")
SUBSCRIPTIONS: dict[str, tuple[list[Rule], Callable[[Draft], bool]]] = {
    "news/subscriptions/all": ([Rule()], lambda draft: True),
    "news/subscriptions/even": (
        [Rule("even", SqlFilter(_EVEN))],
        lambda draft: draft.message_id is not None and int(draft.message_id[1:]) % 2 == 0,
    ),
}
SESSIONS = ("sessions", "strict-sessions", "units")
OUTCOMES = {
    "complete": Outcome.COMPLETED,
    "abandon": Outcome.FAILED,
    "invalid": Outcome.INVALID,
    "defer": Outcome.DEFERRED,
    "dead_letter": Outcome.DEAD_LETTERED,
    "release": Outcome.RELEASED,
}

errors = st.sampled_from((None, "ValueError", "builtins.KeyError"))
delays = st.sampled_from((None, None, None, 0, 5, 100))


def _options(partitions: int) -> dict[str, QueueOptions]:
    """Return the options of all queues."""
    some = {**QUEUES, IDLE: QueueOptions()}
    return {name: dataclasses.replace(options, partitions=partitions) for name, options in some.items()}


def _furnish(broker: Broker, partitions: int) -> None:
    """Make all queues, and a table of the user's own."""
    broker.create_topic(TOPIC, TOPIC_OPTIONS)
    for name, options in _options(partitions).items():
        if name in SUBSCRIPTIONS:
            rules, _ = SUBSCRIPTIONS[name]
            broker.create_subscription(TOPIC, name.rpartition("/")[2], options, rules)
        else:
            broker.create_queue(name, options)
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE rows (number INTEGER, text TEXT)")


@functools.cache
def _template(partitions: int) -> Path:
    """Return a store with all that, to copy for every example."""
    path = Path(tempfile.mkdtemp(prefix="lazaretto-model-", dir=memory_folder())) / "template.db"
    with lazaretto.connect(path, clock=ManualClock(START)) as broker:
        _furnish(broker, partitions)
        # Into one file: the store's own is not whole without its log.
        whole = path.with_name("whole.db")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("VACUUM INTO ?", [str(whole)])
    return whole


class Broken(Exception):
    """Ends a transaction by an error of the user's."""


class Driver(RuleBasedStateMachine):
    """A broker and the model side by side; the rules are its heirs'."""

    #: The PostgreSQL server that the broker's store is on; None: it is in a file.
    server: str | None = None
    partitions = 1

    def __init__(self) -> None:
        super().__init__()
        #: What the store refused last with, None if nothing.
        self.told: str | None = None
        self.clock = ManualClock(START)
        self.opened = contextlib.ExitStack()
        if self.server is None:
            folder = Path(tempfile.mkdtemp(prefix="lazaretto-model-", dir=memory_folder()))
            self.opened.callback(shutil.rmtree, folder)
            shutil.copy(_template(self.partitions), folder / "store.db")
            self.url = str(folder / "store.db")
        else:
            self.url = self.opened.enter_context(used_store(self.server))
            with lazaretto.connect(self.url, clock=self.clock) as broker:
                _furnish(broker, self.partitions)
        self.broker = self.connect()
        self.position = self.broker.last_event()
        wants = {path: wants for path, (_, wants) in SUBSCRIPTIONS.items()}
        self.model = Model(START, _options(self.partitions), wants, TOPIC_OPTIONS)
        self.model.given = lambda path, last: self._given(path, last)
        self.model.still_there = lambda path, number: self._still_there(path, number)
        self.held: list[tuple[ReceivedMessage, Handle]] = []
        self.sessions: list[tuple[Receiver, SessionHandle]] = []
        self.focus: list[str] = list(QUEUES)
        self.touched: set[str] = set()
        self.sent = 0

    def _given(self, path: str, last: int) -> int:
        """Return the next number of a partition that the broker gave; one that is gone may have any."""
        some = [m for part in (None, "dead_letter") for m in self.broker.peek(path, 1000, subqueue=part)]
        above = [m.sequence_number for m in some if m.sequence_number > last]
        same = [n for n in above if n >> PARTITION_SEQUENCE_BITS == last >> PARTITION_SEQUENCE_BITS]
        return min(same, default=last + 1)

    def _still_there(self, path: str, number: int) -> bool:
        """Return whether the broker has a message that can be received."""
        found = self.broker.peek(path, 1, number)
        return bool(found) and found[0].sequence_number == number and found[0].state is MessageState.ACTIVE

    def connect(self) -> Broker:
        broker = lazaretto.connect(self.url, clock=self.clock, create=False)
        # The partition of what has no key: a server may not have noticed yet that the last broker is gone.
        broker._store._memory.homes.slot = 0
        return broker

    def teardown(self) -> None:
        try:
            for queue in self.model.queues.values():
                compare_queue(self.broker, queue)
        finally:
            self.broker.close()
            self.opened.close()

    # -- doing the same twice -------------------------------------------------------------------

    def both(self, real: Callable[[], T], model: Callable[[], U]) -> tuple[T, U] | None:
        """Do it to both and return both answers; None if both refused with the same error."""
        answer: list[T] = []
        refusal = expected_refusal = None
        self.model.taken = []
        try:
            answer.append(real())
            if isinstance(answer[0], list):
                self.model.taken = [m.sequence_number for m in answer[0] if isinstance(m, ReceivedMessage)]
        except LazarettoError as error:
            refusal = type(error).__name__
        except Broken:
            refusal = "Broken"
        self.told = refusal
        try:
            expected = model()
        except Refused as error:
            expected_refusal = error.error
        assert refusal == expected_refusal
        return None if refusal else (answer[0], expected)

    def got(self, found: tuple[list[ReceivedMessage], list[Handle]] | None, *, keep: bool = True) -> None:
        """Compare what was received with what the model handed over, and keep both."""
        if found is None:
            return
        messages, handles = found
        expected = [model_message(self.model.queues[h.queue], self.model.copy(h)) for h in handles]
        seen = [
            real_message(m, e["message_id"]) for m, e in zip(messages, expected, strict=False)
        ] + messages[len(expected) :]  # fmt: skip
        assert seen == expected
        for message, handle in zip(messages, handles, strict=True):
            until = self.model.copy(handle).locked_until
            if handle.session is None and keep:
                assert message.locked_until == to_datetime(until * MICROSECONDS if until else 0)
        if keep:
            self.held += zip(messages, handles, strict=True)

    def pick(self, numbers: list[int]) -> list[tuple[ReceivedMessage, Handle]]:
        """Return hand-overs: mostly good ones, some stale; those of late are the likelier."""
        good = [pair for pair in self.held if self.model.held(pair[1])]
        chosen = []
        for n in numbers:
            some = good if good and n % 12 else self.held
            chosen.append(some[-1 - n // 12 % min(len(some), 8)])
        self.touched.update(handle.queue for _, handle in chosen)
        return chosen

    def queue(self, number: int) -> str:
        """Return one of the queues this run is about, or one that rejected messages went to."""
        more = [p for p in ("returns", SYSTEM) if self.model.queues[p].copies]
        paths = self.focus * 3 + more
        path = paths[number % len(paths)]
        self.touched.add(path)
        return path

    def any(self, wanted: Callable[[Copy], bool]) -> list[str]:
        """Return the queues that have such a message."""
        return [q.path for q in self.model.queues.values() if any(map(wanted, q.copies.values()))]

    def queue_with(self, number: int, wanted: Callable[[Copy], bool]) -> str:
        """Return a queue that has such a message, if there is one."""
        paths = self.any(wanted)
        if not paths or not number % 15:
            return self.queue(number)
        self.touched.add(paths[number % len(paths)])
        return paths[number % len(paths)]

    def numbers(self, path: str, picks: list[int], wanted: Callable[[Copy], bool]) -> list[int]:
        """Return numbers of messages of a kind, or such that there are none of."""
        queue = self.model.queues[path]
        known = [c.number for c in queue.copies.values() if wanted(c)]
        return [
            known[n % len(known)] if known and n % 12 else n % (queue.last.get(0, 0) + 2) + 1 for n in picks
        ]


def to_send(draft: Draft) -> Message:
    at = None if draft.at is None else to_datetime(draft.at * MICROSECONDS)
    return Message(
        draft.body,
        message_id=draft.message_id,
        session_id=draft.session_id,
        time_to_live=draft.ttl,
        scheduled_enqueue_time=at,
        dead_letter_queue=draft.sender_queue,
    )


def draw_settlement(verb: str, data: st.DataObject) -> Settlement:
    """Return how a receiver's method of that name settles, with what it may be told."""
    error = data.draw(errors) if verb in ("abandon", "invalid", "dead_letter") else None
    delay = data.draw(delays) if verb == "abandon" else None
    reason = data.draw(st.sampled_from((None, "mine"))) if verb == "dead_letter" else None
    return Settlement(OUTCOMES[verb], error, delay, reason, "told so" if reason else None)


def settle_by(receiver: Any, messages: Any, settlement: Settlement) -> None:
    """Settle by the method for that, of a receiver or a transaction."""
    error = None if settlement.error is None else f"{settlement.error}: as it happens"
    match settlement.outcome:
        case Outcome.FAILED:
            receiver.abandon(messages, error=error, delay=settlement.delay)
        case Outcome.INVALID:
            receiver.invalid(messages, error=error)
        case Outcome.DEAD_LETTERED:
            receiver.dead_letter(
                messages, reason=settlement.reason, description=settlement.description, error=error
            )
        case Outcome.COMPLETED:
            receiver.complete(messages)
        case Outcome.DEFERRED:
            receiver.defer(messages)
        case _:
            receiver.release(messages)


def leave_by_error(tx: Any) -> None:
    with tx:
        raise Broken("as it happens")


def be_broken(expected: ModelTransaction) -> None:
    expected.roll_back(f"{Broken.__module__}.{Broken.__qualname__}")
    raise Refused("Broken")
