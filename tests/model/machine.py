"""The state machine: it does the same to a real broker and to the model, and compares after every step."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import lazaretto
from lazaretto import DeadLetterFilter, ManualClock, Message, PoisonPolicy, QueueOptions
from lazaretto.broker import Broker
from lazaretto.clock import MICROSECONDS, to_datetime, to_micros
from lazaretto.errors import LazarettoError
from lazaretto.messages import DeadLetter, ReceivedMessage
from lazaretto.policy import UNLIMITED, Backoff, Disposition, Growth, Outcome
from lazaretto.receiver import NEXT_SESSION, Receiver

from .compare import compare_events, compare_queue, model_message, real_message
from .records import SYSTEM, Draft, Handle, Refused, SessionHandle, Settlement
from .reference import Model
from .unit import ModelSavepoint, ModelTransaction

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
    "unique": QueueOptions(requires_duplicate_detection=True, duplicate_detection_window=40),
    "expiring": QueueOptions(lock_duration=20, default_time_to_live=50, dead_letter_on_expiration=True),
    "rollbacks": QueueOptions(
        lock_duration=20,
        policy=PoisonPolicy(receive_retry_count=UNLIMITED, disable_after_rollbacks=2),
    ),
}  # fmt: skip
SESSIONS = ("sessions", "strict-sessions")
OUTCOMES = ("complete", "abandon", "invalid", "defer", "dead_letter", "release")
_BY_VERB = {
    "complete": Outcome.COMPLETED,
    "abandon": Outcome.FAILED,
    "invalid": Outcome.INVALID,
    "defer": Outcome.DEFERRED,
    "dead_letter": Outcome.DEAD_LETTERED,
    "release": Outcome.RELEASED,
}

index = st.integers(0, 1000)
few = st.integers(1, 5)
spans = st.sampled_from((1, 5, 10, 15, 20, 30, 45, 61, 600, 90_000))
picked = st.lists(index, min_size=1, max_size=3)
errors = st.sampled_from((None, "ValueError", "builtins.KeyError"))
delays = st.sampled_from((None, None, 0, 5, 100))
lifetimes = st.sampled_from((None, None, None, 7, 40, 1000))
names = st.sampled_from(("a", "b", "c"))
sender_queues = st.sampled_from((SYSTEM, SYSTEM, "returns", "sessions", None, "missing"))


@functools.cache
def _template() -> Path:
    """Return a store with all queues and a table of the user's own, to copy for every example."""
    path = Path(tempfile.mkdtemp(prefix="lazaretto-model-")) / "template.db"
    with lazaretto.connect(path, clock=ManualClock(START)) as broker:
        for name, options in {**QUEUES, IDLE: QueueOptions()}.items():
            broker.create_queue(name, options)
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE rows (text TEXT)")
        # Into one file: the store's own is not whole without its log.
        whole = path.with_name("whole.db")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("VACUUM INTO ?", [str(whole)])
    return whole


class Broken(Exception):
    """Ends a transaction by an error of the user's."""


class BrokerMachine(RuleBasedStateMachine):
    """Drives a broker and the model side by side."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="lazaretto-model-"))
        shutil.copy(_template(), self.folder / "store.db")
        self.clock = ManualClock(START)
        self.broker = self._connect()
        self.position = self.broker.last_event()
        self.model = Model(START, {**QUEUES, IDLE: QueueOptions()})
        self.held: list[tuple[ReceivedMessage, Handle]] = []
        self.sessions: list[tuple[Receiver, SessionHandle]] = []
        self.focus: list[str] = list(QUEUES)
        self.touched: set[str] = set()
        self.sent = 0

    def _connect(self) -> Broker:
        return lazaretto.connect(self.folder / "store.db", clock=self.clock, create=False)

    def teardown(self) -> None:
        try:
            for queue in self.model.queues.values():
                compare_queue(self.broker, queue)
        finally:
            self.broker.close()
            shutil.rmtree(self.folder)

    @initialize(queues=st.lists(st.sampled_from(sorted(QUEUES)), min_size=1, max_size=3, unique=True))
    def choose(self, queues: list[str]) -> None:
        """Work on a few queues only, so that something happens to their messages."""
        self.focus = queues

    # -- doing the same twice -------------------------------------------------------------------

    def both(self, real: Callable[[], T], model: Callable[[], U]) -> tuple[T, U] | None:
        """Do it to both and return both answers; None if both refused with the same error."""
        answer: list[T] = []
        refusal = expected_refusal = None
        try:
            answer.append(real())
        except LazarettoError as error:
            refusal = type(error).__name__
        except Broken:
            refusal = "Broken"
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
        """Return hand-overs, good and stale; those of late are the likelier."""
        return [self.held[-1 - n % min(len(self.held), 4 + n % 30)] for n in numbers]

    def queue(self, number: int) -> str:
        """Return one of the queues this run is about, sometimes where rejected messages go."""
        paths = self.focus * 4 + ["returns", SYSTEM]
        path = paths[number % len(paths)]
        self.touched.add(path)
        return path

    def numbers(self, path: str, picks: list[int], wanted: Callable[[Any], bool]) -> list[int]:
        """Return numbers of messages of a kind, or such that there are none of."""
        queue = self.model.queues[path]
        known = [c.number for c in queue.copies.values() if wanted(c)]
        return [known[n % len(known)] if known and n % 10 else n % (queue.last + 2) + 1 for n in picks]

    # -- sending --------------------------------------------------------------------------------

    def drafts(self, data: st.DataObject, most: int, path: str) -> list[Draft]:
        found = []
        for _ in range(data.draw(st.integers(1, most))):
            self.sent += 1
            unique = path == "unique"
            message_id = data.draw(st.sampled_from(("x", "y", None))) if unique else f"m{self.sent}"
            with_session = path in SESSIONS or data.draw(st.integers(0, 5)) == 0
            session = data.draw(names) if with_session and data.draw(st.integers(0, 30)) else None
            found.append(
                Draft(
                    b"%d" % self.sent if self.sent % 7 else b"%2000d" % self.sent,
                    message_id,
                    session,
                    data.draw(lifetimes),
                    None,
                    data.draw(sender_queues) if data.draw(st.booleans()) else SYSTEM,
                )
            )
        return found

    @rule(n=index, data=st.data())
    def send(self, n: int, data: st.DataObject) -> None:
        path = self.queue(n)
        drafts = self.drafts(data, 4, path)
        found = self.both(
            lambda: self.broker.sender(path).send([_message(d) for d in drafts]),
            lambda: self.model.send(path, drafts),
        )
        assert found is None or found[0] == found[1]

    @rule(n=index, data=st.data())
    def send_more(self, n: int, data: st.DataObject) -> None:
        self.send(n, data)

    @rule(n=index, data=st.data(), after=st.integers(-5, 60))
    def schedule(self, n: int, data: st.DataObject, after: int) -> None:
        path, at = self.queue(n), self.model.now + after
        drafts = self.drafts(data, 2, path)
        moment = to_datetime(at * MICROSECONDS)
        later = [Draft(d.body, d.message_id, d.session_id, d.ttl, at, d.sender_queue) for d in drafts]
        found = self.both(
            lambda: self.broker.sender(path).schedule([_message(d) for d in drafts], moment),
            lambda: self.model.send(path, later),
        )
        assert found is None or found[0] == found[1]

    @rule(n=index, picks=st.lists(index, min_size=1, max_size=2))
    def cancel(self, n: int, picks: list[int]) -> None:
        path = self.queue(n)
        numbers = self.numbers(path, picks, lambda c: c.state.value == "scheduled")
        self.both(lambda: self.broker.sender(path).cancel(numbers), lambda: self.model.cancel(path, numbers))

    # -- receiving and settling -----------------------------------------------------------------

    @rule(n=index, limit=few, dead=st.sampled_from((False, False, True)))
    def receive(self, n: int, limit: int, dead: bool) -> None:
        path = self.queue(n)
        with self.broker.receiver(path, subqueue="dead_letter" if dead else None) as receiver:
            self.got(
                self.both(lambda: receiver.receive(limit), lambda: self.model.receive(path, limit, dead=dead))
            )

    @rule(n=index, limit=few)
    def receive_more(self, n: int, limit: int) -> None:
        self.receive(n, limit, False)

    @rule(n=index, limit=few, dead=st.booleans())
    def receive_and_delete(self, n: int, limit: int, dead: bool) -> None:
        path = self.queue(n)
        subqueue = "dead_letter" if dead else None
        with self.broker.receiver(path, subqueue=subqueue, mode="receive_and_delete") as receiver:
            found = self.both(
                lambda: receiver.receive(limit), lambda: self.model.receive(path, limit, dead=dead)
            )
        self._taken(found)

    def _taken(self, found: tuple[list[ReceivedMessage], list[Handle]] | None) -> None:
        self.got(found, keep=False)
        if found is not None:
            messages, handles = found
            self.model.take(handles)
            gone = [Handle(h.queue, h.dead, h.number, None, h.session) for h in handles]
            self.held += zip(messages, gone, strict=True)

    @rule(n=index, picks=picked, dead=st.sampled_from((False, False, True)))
    def receive_deferred(self, n: int, picks: list[int], dead: bool) -> None:
        path = self.queue(n)
        numbers = self.numbers(path, picks, lambda c: c.state.value == "deferred" and c.dead == dead)
        with self.broker.receiver(path, subqueue="dead_letter" if dead else None) as receiver:
            self.got(
                self.both(
                    lambda: receiver.receive_deferred(numbers),
                    lambda: self.model.receive_deferred(path, numbers, dead=dead),
                )
            )

    @precondition(lambda self: self.held)
    @rule(verb=st.sampled_from(OUTCOMES), picks=picked, data=st.data())
    def settle(self, verb: str, picks: list[int], data: st.DataObject) -> None:
        self._settle(verb, picks, data)

    @precondition(lambda self: self.held)
    @rule(n=index, delay=delays, error=errors)
    def abandon(self, n: int, delay: int | None, error: str | None) -> None:
        chosen = self.pick([n])
        self.touched.add(chosen[0][1].queue)
        more = _extras(error, delay)
        self.both(
            lambda: self._receiver(chosen).abandon([m for m, _ in chosen], **more),
            lambda: self.model.settle([(h, Settlement(Outcome.FAILED, error, delay)) for _, h in chosen]),
        )

    def _settle(self, verb: str, picks: list[int], data: st.DataObject) -> None:
        chosen = self.pick(picks)
        self.touched.update(handle.queue for _, handle in chosen)
        settlement = _settlement(verb, data)
        self.both(
            lambda: _call(self._receiver(chosen), verb, [m for m, _ in chosen], settlement),
            lambda: self.model.settle([(handle, settlement) for _, handle in chosen]),
        )

    def _receiver(self, chosen: list[tuple[ReceivedMessage, Handle]]) -> Receiver:
        """Return any receiver: a lock belongs to the entity."""
        handle = chosen[-1][1]
        number = chosen[-1][0].sequence_number
        path = handle.queue if number % 2 else IDLE
        return self.broker.receiver(path, subqueue="dead_letter" if handle.dead else None)

    @precondition(lambda self: self.held)
    @rule(picks=picked)
    def renew(self, picks: list[int]) -> None:
        chosen = self.pick(picks)
        self.touched.update(handle.queue for _, handle in chosen)
        found = self.both(
            lambda: self._receiver(chosen).renew_lock([m for m, _ in chosen]),
            lambda: self.model.renew([handle for _, handle in chosen]),
        )
        if found is not None:
            untils = [self.model.copy(handle).locked_until or 0 for _, handle in chosen]
            assert found[0] == to_datetime(min(untils) * MICROSECONDS)

    # -- time -----------------------------------------------------------------------------------

    def _advance(self, span: int) -> None:
        self.clock.advance(span)
        self.model.now += span
        self.touched.update(self.focus, ("returns", SYSTEM))

    @rule(span=spans)
    def advance(self, span: int) -> None:
        self._advance(span)

    @precondition(lambda self: self.held)
    @rule(span=spans, verb=st.sampled_from(OUTCOMES), picks=picked, data=st.data())
    def settle_late(self, span: int, verb: str, picks: list[int], data: st.DataObject) -> None:
        """Settle before anybody has noticed what time did to the locks."""
        self._advance(span)
        self._settle(verb, picks, data)

    @rule(span=spans, n=index, limit=few)
    def receive_late(self, span: int, n: int, limit: int) -> None:
        """Receive before anybody else has noticed what time did."""
        self._advance(span)
        self.receive(n, limit, False)

    # -- sessions -------------------------------------------------------------------------------

    def _session_queue(self, n: int) -> str:
        paths = [p for p in self.focus if p in SESSIONS] or ["sessions"]
        path = paths[n % len(paths)] if n % 20 else self.focus[0]
        self.touched.add(path)
        return path

    @rule(n=index, name=names)
    def accept(self, n: int, name: str) -> None:
        path = self._session_queue(n)
        found = self.both(
            lambda: self.broker.receiver(path, session=name), lambda: self.model.accept(path, name)
        )
        if found is not None and found[1] is not None:
            self.sessions.append((found[0], found[1]))

    @rule(n=index, limit=few)
    def accept_next(self, n: int, limit: int) -> None:
        path = self._session_queue(n)
        receiver = self.broker.receiver(path, session=NEXT_SESSION)

        def expected() -> list[Handle]:
            handle = self.model.accept(path, None)
            if handle is None:
                return []
            self.sessions.append((receiver, handle))
            return self.model.receive(path, limit, session=handle)

        known = len(self.sessions)
        self.got(self.both(lambda: receiver.receive(limit), expected))
        assert receiver.session_id == (self.sessions[-1][1].name if len(self.sessions) > known else None)

    def _session(self, n: int) -> tuple[Receiver, SessionHandle]:
        receiver, handle = self.sessions[-1 - n % min(len(self.sessions), 4)]
        self.touched.add(handle.queue)
        return receiver, handle

    @precondition(lambda self: self.sessions)
    @rule(n=index, limit=few)
    def receive_session(self, n: int, limit: int) -> None:
        receiver, handle = self._session(n)
        self.got(
            self.both(
                lambda: receiver.receive(limit),
                lambda: self.model.receive(handle.queue, limit, session=handle),
            )
        )

    @precondition(lambda self: self.sessions)
    @rule(n=index, picks=st.lists(index, min_size=1, max_size=2))
    def receive_deferred_session(self, n: int, picks: list[int]) -> None:
        receiver, handle = self._session(n)
        numbers = self.numbers(handle.queue, picks, lambda c: c.state.value == "deferred" and not c.dead)
        self.got(
            self.both(
                lambda: receiver.receive_deferred(numbers),
                lambda: self.model.receive_deferred(handle.queue, numbers, session=handle),
            )
        )

    @precondition(lambda self: self.sessions)
    @rule(n=index, state=st.sampled_from((None, b"", b"state")), what=st.sampled_from("gsr"))
    def use_session(self, n: int, state: bytes | None, what: str) -> None:
        receiver, handle = self._session(n)
        if what == "g":
            read = self.both(receiver.get_session_state, lambda: self.model.session_state(handle))
            assert read is None or read[0] == read[1]
        elif what == "s":
            self.both(
                lambda: receiver.set_session_state(state), lambda: self.model.set_session_state(handle, state)
            )
        else:
            until = self.both(receiver.renew_session_lock, lambda: self.model.renew_session(handle))
            assert until is None or to_micros(until[0]) == until[1] * MICROSECONDS

    @precondition(lambda self: self.sessions)
    @rule(n=index)
    def close_session(self, n: int) -> None:
        receiver, handle = self._session(n)
        self.both(receiver.close, lambda: self.model.close_session(handle))
        self.sessions.remove((receiver, handle))

    # -- transactions ---------------------------------------------------------------------------

    @rule(data=st.data(), end=st.sampled_from(("commit", "commit", "raise", "roll back")))
    def transact(self, data: st.DataObject, end: str) -> None:
        """Run a whole transaction; a failing commit rolls back too."""
        tx, expected = self.broker.transaction(), ModelTransaction(self.model)
        points: list[tuple[Any, ModelSavepoint]] = []
        verbs = st.sampled_from(
            ("receive", "receive", "settle", "settle", "send", "point", "back", "sql", "wait")
        )
        for verb in data.draw(st.lists(verbs, min_size=1, max_size=7)):
            match verb:
                case "receive":
                    path, limit = self.queue(data.draw(index)), data.draw(few)
                    dead = data.draw(st.integers(0, 4)) == 4
                    place = "dead_letter" if dead else None
                    self.got(
                        self.both(
                            lambda path=path, limit=limit, place=place: tx.receive(
                                path, limit, subqueue=place
                            ),  # type: ignore[misc]
                            lambda path=path, limit=limit, dead=dead: expected.receive(
                                path, limit, dead=dead
                            ),  # type: ignore[misc]
                        )
                    )
                case "settle" if self.held:
                    self._settle_in(data, tx, expected)
                case "send":
                    path = self.queue(data.draw(index))
                    drafts = self.drafts(data, 2, path)
                    tx.send(path, [_message(d) for d in drafts])
                    expected.send(path, drafts)
                case "point":
                    points.append((tx.savepoint(), expected.savepoint()))
                case "back" if points:
                    real, point = points[data.draw(index) % len(points)]
                    self.both(real.rollback, lambda point=point: expected.roll_back_to(point))  # type: ignore[misc]
                case "sql":
                    self.sent += 1
                    tx.execute("INSERT INTO rows VALUES (?)", [f"row {self.sent}"])
                    expected.write(f"row {self.sent}")
                case "wait" if not expected.used_sql:
                    self._advance(data.draw(spans))
        if end == "commit":
            self.both(tx.commit, expected.commit)
        elif end == "roll back":
            self.both(tx.rollback, lambda: expected.roll_back(None))
        else:
            self.both(lambda: _leave_by_error(tx), lambda: _broken(expected))
        if expected.rows or expected.used_sql:
            with self.broker.transaction() as reader:
                found = reader.execute("SELECT text FROM rows ORDER BY rowid").fetchall()
            assert [row for (row,) in found] == self.model.rows

    def _settle_in(self, data: st.DataObject, tx: Any, expected: ModelTransaction) -> None:
        ((message, handle),) = self.pick([data.draw(index)])
        self.touched.add(handle.queue)
        verb = data.draw(st.sampled_from([o for o in OUTCOMES if o != "invalid"]))
        settlement = _settlement(verb, data)
        self.both(
            lambda: _call(tx, verb, message, settlement), lambda: expected.settle(handle, settlement)
        )  # fmt: skip

    # -- operators ------------------------------------------------------------------------------

    @rule(n=index, picks=picked, edit=st.booleans(), named=st.booleans(), data=st.data())
    def resubmit(self, n: int, picks: list[int], edit: bool, named: bool, data: st.DataObject) -> None:
        path = self.queue(n)
        numbers = self.numbers(path, picks, lambda c: c.dead)
        draft = None
        if edit:
            self.sent += 1
            session = data.draw(names) if path in SESSIONS and data.draw(st.integers(0, 3)) else None
            draft = Draft(b"edited %d" % self.sent, f"e{self.sent}" if named else None, session)

        def change(_letter: DeadLetter) -> Message | None:
            return None if draft is None else _message(draft)

        found = self.both(
            lambda: self.broker.resubmit(path, numbers, edit=change if edit else None),
            lambda: self.model.resubmit(path, numbers, draft),
        )
        if found is not None:
            assert found[0].resubmitted == found[1]
            skipped = {s.sequence_number for s in found[0].skipped}
            assert skipped == set(numbers) - set(found[1])

    @rule(n=index, picks=picked)
    def purge(self, n: int, picks: list[int]) -> None:
        path = self.queue(n)
        numbers = self.numbers(path, picks, lambda c: c.dead)
        found = self.both(
            lambda: self.broker.purge(path, numbers), lambda: self.model.purge(path, numbers)
        )  # fmt: skip
        assert found is not None
        assert found[0] == found[1]

    @rule(n=index, purge=st.booleans(), reason=st.sampled_from((None, "MaxDeliveryCountExceeded", "mine")))
    def by_filter(self, n: int, purge: bool, reason: str | None) -> None:
        """Resubmit or purge what a filter means."""
        path = self.queue(n)
        which = DeadLetterFilter(reason=reason)
        if purge:
            deleted = self.both(
                lambda: self.broker.purge(path, which, everything=reason is None),
                lambda: self.model.purge(path, self.model.waiting(path, reason)),
            )
            assert deleted is not None
            assert deleted[0] == deleted[1]
        elif self.model.waiting(path, reason):
            found = self.both(
                lambda: self.broker.resubmit(path, which),
                lambda: self.model.resubmit(path, self.model.waiting(path, reason)),
            )
            assert found is None or found[0].resubmitted == found[1]

    @rule(n=index, retries=st.integers(0, 3), cycles=st.integers(0, 2), delay=st.sampled_from((0, 12)))
    def update(self, n: int, retries: int, cycles: int, delay: int) -> None:
        path = self.queue(n)
        old = self.model.queues[path].options.policy
        policy = PoisonPolicy(
            receive_retry_count=retries,
            max_retry_cycles=cycles,
            retry_cycle_delay=delay,
            on_poison=old.on_poison,
            on_invalid=old.on_invalid,
            disable_after_rollbacks=old.disable_after_rollbacks,
        )
        self.both(
            lambda: self.broker.update_queue(path, policy=policy),
            lambda: self.model.update(path, policy=policy),
        )

    @rule(n=index, verdict=st.sampled_from((None, "retry", "move", "drop", "reject")), dead=st.booleans())
    def resume(self, n: int, verdict: str | None, dead: bool) -> None:
        stopped = [(p, d) for p in self.focus for d in (False, True) if self._stopped(p, d)]
        path, dead = stopped[n % len(stopped)] if stopped and n % 10 else (self.queue(n), dead)
        self.touched.update((path, "returns", SYSTEM))
        self.both(
            lambda: self.broker.resume_queue(f"{path};poison" if dead else path, verdict),
            lambda: self.model.resume(path, verdict, dead=dead),
        )

    def _stopped(self, path: str, dead: bool) -> bool:
        queue = self.model.queues[path]
        return queue.dead_culprit is not None if dead else queue.status.value != "active"

    @rule()
    def restart(self) -> None:
        """Close the broker and open the same file again: locks go on, receivers do not."""
        self.broker.close()
        self.sessions.clear()
        self.broker = self._connect()
        self.model.restart()

    # -- comparing ------------------------------------------------------------------------------

    @invariant()
    def same(self) -> None:
        """Let both do what is due, and compare all that can be seen."""
        BrokerMachine.steps += 1
        with self.broker.receiver(IDLE) as idle:
            for _ in range(3):
                assert idle.receive() == []
        self.model.pass_time()
        self.position = compare_events(self.broker, self.model, self.position)
        self.touched.update(("returns", SYSTEM))
        for path in self.touched:
            compare_queue(self.broker, self.model.queues[path])
        self.touched.clear()


def _message(draft: Draft) -> Message:
    at = None if draft.at is None else to_datetime(draft.at * MICROSECONDS)
    return Message(
        draft.body,
        message_id=draft.message_id,
        session_id=draft.session_id,
        time_to_live=draft.ttl,
        scheduled_enqueue_time=at,
        dead_letter_queue=draft.sender_queue,
    )


def _extras(error: str | None, delay: int | None) -> dict[str, Any]:
    text = None if error is None else f"{error}: as it happens"
    return {"error": text, "delay": delay}


def _settlement(verb: str, data: st.DataObject) -> Settlement:
    outcome = _BY_VERB[verb]
    error = data.draw(errors) if verb in ("abandon", "invalid", "dead_letter") else None
    delay = data.draw(delays) if verb == "abandon" else None
    reason = data.draw(st.sampled_from((None, "mine"))) if verb == "dead_letter" else None
    return Settlement(outcome, error, delay, reason, "told so" if reason else None)


def _call(receiver: Any, verb: str, messages: Any, settlement: Settlement) -> None:
    """Settle by the method of that name, of a receiver or a transaction."""
    error = None if settlement.error is None else f"{settlement.error}: as it happens"
    match verb:
        case "abandon":
            receiver.abandon(messages, error=error, delay=settlement.delay)
        case "invalid":
            receiver.invalid(messages, error=error)
        case "dead_letter":
            receiver.dead_letter(
                messages, reason=settlement.reason, description=settlement.description, error=error
            )
        case _:
            getattr(receiver, verb)(messages)


def _leave_by_error(tx: Any) -> None:
    with tx:
        raise Broken("as it happens")


def _broken(expected: ModelTransaction) -> None:
    expected.roll_back(f"{Broken.__module__}.{Broken.__qualname__}")
    raise Refused("Broken")
