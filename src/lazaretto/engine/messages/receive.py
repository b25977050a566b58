"""Receives messages under a lock, or receives and deletes them."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.entities.status import refuse_receiving, stop_error
from lazaretto.engine.messages.complete import count_messages, delete_completed
from lazaretto.engine.messages.sessions import held_error, require_session
from lazaretto.engine.outcome.attempts import note_commit
from lazaretto.engine.outcome.breakers import note_probe, passage_of_client
from lazaretto.engine.outcome.verdicts import carry_out
from lazaretto.engine.routing.forwards import touch
from lazaretto.engine.timers import catch_up
from lazaretto.errors import EntityError, LazarettoError, NotAllowed
from lazaretto.model.breaker import Passage
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.keys import lower_bound, main_key, subqueue_of, upper_bound
from lazaretto.model.messages import Lock, ReceivedMessage, Suspects
from lazaretto.model.policy import Outcome, Retry, decide
from lazaretto.model.rates import RECEIVED
from lazaretto.store.records.messages import (
    AGAIN,
    DEFERRED,
    FRESH,
    READY,
    SUSPECT,
    Again,
    MessageRow,
    QueueRecord,
)
from lazaretto.store.records.plain import PlainTake
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

_CHARGED = (Outcome.FAILED, Outcome.LOST, Outcome.LOCK_EXPIRED, Outcome.DEFERRED)

#: The result of a receive: messages, or the error of a halted or disabled queue. The error is returned, not
#: raised, because the receive may have made changes that must be committed.
Found = list[ReceivedMessage] | EntityError


@dataclasses.dataclass(slots=True)
class Receive(Operation[Found]):
    """Lock the first receivable messages of a queue, a subqueue or a session, and open their attempts."""

    path: EntityPath
    limit: int
    session: Lock | None = None
    #: Only messages after this key, if there are any.
    after: int = 0
    suspects: Suspects = Suspects.IN_PLACE
    #: Whether the last run skipped a suspect.
    skipped: bool = False

    # An attempt that is recorded but not synced survives the death of any process.
    durable = False
    foreseeable = True
    rank: ClassVar[int] = 2

    def run(self, tx: Transaction) -> Found | Again:
        self.skipped = False
        queue = receivable(tx, self.path, self.session is not None)
        if queue.breaker is not None:
            way = passage_of_client(tx, queue, self.path, self.limit)
            if way is None:
                return []
            if way.decides:
                return self._probe(tx, queue, way)
        return self._receive(tx, queue)

    def _probe(self, tx: Transaction, queue: QueueRecord, way: Passage) -> Found | Again:
        """Receive what may pass a breaker that is not closed."""
        answer: Found | Again = []
        for after in dict.fromkeys((way.after, 0)):
            one = dataclasses.replace(self, limit=way.limit, after=max(after, self.after))
            answer = one._receive(tx, queue)
            self.skipped = self.skipped or one.skipped
            if answer != []:
                break
        if isinstance(answer, list) and answer:
            note_probe(tx, queue, answer[-1].key)
        return answer

    def _receive(self, tx: Transaction, queue: QueueRecord) -> Found | Again:
        token = tx.random_token(self.limit) if self.session is None else self.session.token
        until = tx.now + round(queue.options.lock_duration * 1_000_000)
        if self._takes_at_once(queue):
            taken = self._take_at_once(tx, queue, token, until)
            if taken is not None:
                return hand_over(tx, taken, Lock(self.path, token, until))
        caught_up = catch_up(tx)
        if tx.plans and not caught_up:
            return AGAIN
        halted = look_again(tx, self.path)
        if halted is not None:
            return halted
        if self._is_held_back(tx, queue):
            return []
        if self.session is None:
            rows = self._from_queue(tx, queue, token, until)
            lock = Lock(self.path, token, until)
        else:
            record = require_session(tx, queue, self.session)
            rows = self._from_session(tx, queue, self.session)
            lock = Lock(self.path, token, record.locked_until or 0, self.session.session_id)
        if isinstance(rows, EntityError):
            return rows
        return hand_over(tx, rows, lock) if rows or caught_up else AGAIN

    def _is_held_back(self, tx: Transaction, before: QueueRecord) -> bool:
        """Return whether locks that expired meanwhile have opened the breaker."""
        queue = tx.queues.by_path(self.path.key)
        if queue is None or queue.breaker == before.breaker:
            return False
        return passage_of_client(tx, queue, self.path, self.limit) is None

    def plain(self) -> PlainTake | None:
        if self.session is not None or self.after or self.path.subqueue is not Subqueue.MAIN:
            return None
        return PlainTake(self.path, self.limit)

    def start(self, tx: Transaction) -> Callable[[], Found | Again] | None:
        return self.start_all(tx, [self])[0]

    @classmethod
    def start_all(
        cls, tx: Transaction, operations: Sequence[Any]
    ) -> Sequence[Callable[[], Found | Again] | None]:
        """Start several callers' receives; receives from one queue take its next messages together."""
        started: dict[int, Callable[[], Found | Again]] = {}
        together: dict[EntityPath, list[int]] = {}
        for index, operation in enumerate(operations):
            if operation._can_start(tx):
                together.setdefault(operation.path, []).append(index)
        for path, places in together.items():
            queue = tx.queues.by_path(path.key)
            assert queue is not None
            until = tx.now + round(queue.options.lock_duration * 1_000_000)
            limits = [operations[place].limit for place in places]
            tokens = [(limit, tx.random_token(limit)) for limit in limits]
            taking = tx.start_taking(queue, tokens, until)
            for place, taken, (_, token) in zip(places, taking or (), tokens, strict=False):
                started[place] = _answering(tx, taken, Lock(path, token, until))
        return [started.get(index) for index in range(len(operations))]

    def _can_start(self, tx: Transaction) -> bool:
        """Return whether messages may be taken without awaiting the answer; `run` handles errors."""
        try:
            queue = receivable(tx, self.path, self.session is not None)
        except LazarettoError:
            return False
        return self._takes_at_once(queue)

    def _takes_at_once(self, queue: QueueRecord) -> bool:
        return self.session is None and not self.after and takes_at_once(self.path, queue)

    def _take_at_once(
        self, tx: Transaction, queue: QueueRecord, token: int, until: int
    ) -> list[ReceivedMessage] | None:
        """Take the next fresh messages if no other message precedes them; else return None."""
        if queue.partitions == 1:
            return tx.take_clear(queue.queue_id, self.limit, token, until)
        taken: list[ReceivedMessage] | None = None
        for lane in tx.partitions.waiting(queue):
            taken = tx.take_clear(lane, self.limit, token, until)
            if taken is None:
                break
            tx.partitions.note_taken(lane, taken, self.limit)
            if taken:
                break
        return taken

    def _from_queue(
        self, tx: Transaction, queue: QueueRecord, token: int, until: int
    ) -> list[ReceivedMessage] | EntityError:
        in_main = self.path.subqueue is Subqueue.MAIN
        rows: list[ReceivedMessage] | EntityError = []
        for lane in tx.partitions.waiting(queue) if in_main else (queue.queue_id,):
            rows = self._from_lane(tx, queue, lane, token, until)
            if isinstance(rows, EntityError):
                break
            tx.partitions.note_taken(lane, rows, self.limit)
            if rows:
                break
        return rows

    def _from_lane(
        self, tx: Transaction, queue: QueueRecord, lane: int, token: int, until: int
    ) -> list[ReceivedMessage] | EntityError:
        first, last = (edge(lane, self.path.subqueue) for edge in (lower_bound, upper_bound))
        first = max(first, self.after)
        while True:
            # Suspects keep their place: earlier messages go first, later ones wait.
            suspect = tx.select_suspect(first, last)
            if suspect is not None and self.suspects is Suspects.SKIPPED:
                suspect, self.skipped = None, True
            goes_first = suspect is not None and self.suspects is Suspects.FIRST
            end = last if suspect is None else suspect.key
            rows = [] if goes_first else tx.select_ready(first, end, self.limit)
            if suspect is not None and not rows:
                rows = [suspect]
            if not rows or not dispose_of_exhausted(tx, queue, rows):
                break
            halted = look_again(tx, self.path)
            if halted is not None:
                return halted
        if rows:
            tx.lock([row.key for row in rows], token, until)
        if suspect is None and len(rows) < self.limit and self.path.subqueue is Subqueue.MAIN:
            rows += tx.take_fresh(lane, self.limit - len(rows), token, until)
        return rows

    def _from_session(
        self, tx: Transaction, queue: QueueRecord, session: Lock
    ) -> list[ReceivedMessage] | EntityError:
        assert session.session_id is not None
        select = self._unit if queue.options.whole_sessions else self._next_of_session
        while True:
            record = tx.sessions.find(queue.queue_id, session.session_id)
            if record is not None and record.held_by is not None:
                return held_error(queue, session.session_id, record.held_by)
            rows = select(tx, queue, session.session_id)
            if not rows or not dispose_of_exhausted(tx, queue, rows):
                break
            halted = look_again(tx, self.path)
            if halted is not None:
                return halted
        if rows:
            tx.lock([row.key for row in rows], session.token, None)
        return rows

    def _next_of_session(self, tx: Transaction, queue: QueueRecord, session_id: str) -> list[ReceivedMessage]:
        """Return the next messages of a session, or a suspect alone."""
        # A message waiting for its retry holds back the rest of its session.
        before = tx.sessions.first_delayed(queue.queue_id, session_id) or upper_bound(queue.queue_id)
        suspect = tx.select_session_messages(queue.queue_id, session_id, SUSPECT, before, 1)
        if suspect:
            before = suspect[0].key
        rows: list[ReceivedMessage] = []
        for state in (READY, FRESH):
            room = self.limit - len(rows)
            if room:
                rows += tx.select_session_messages(queue.queue_id, session_id, state, before, room)
        return rows or self._unless_skipped(suspect)

    def _unless_skipped(self, suspects: list[ReceivedMessage]) -> list[ReceivedMessage]:
        if suspects and self.suspects is Suspects.SKIPPED:
            self.skipped = True
            return []
        return suspects

    def _unit(self, tx: Transaction, queue: QueueRecord, session_id: str) -> list[ReceivedMessage]:
        """Return all messages of a session that is one unit, once none is delayed or locked."""
        queue_id, last = queue.queue_id, upper_bound(queue.queue_id)
        if tx.sessions.first_delayed(queue_id, session_id) is not None or tx.sessions.locked_messages(
            queue_id, session_id
        ):
            return []
        rows: list[ReceivedMessage] = []
        for state in (READY, FRESH, SUSPECT):
            rows += tx.select_session_messages(queue_id, session_id, state, last, self.limit + 1)
        if any(row.alone for row in rows):
            # One suspect makes a suspect of the unit.
            for row in rows:
                row.alone = True
            rows = self._unless_skipped(rows)
        if len(rows) > self.limit:
            raise NotAllowed(
                f"session {session_id!r} of {queue.path!r} is settled as a unit (on_poison_session=whole) "
                f"and has more messages than the {self.limit} requested: increase max_messages"
            )
        return sorted(rows, key=operator.attrgetter("key"))


def _answering(
    tx: Transaction, taken: Callable[[], list[ReceivedMessage] | Again], lock: Lock
) -> Callable[[], Found | Again]:
    return lambda: answer if isinstance(answer := taken(), Again) else put_lock(tx, answer, lock)


def takes_at_once(path: EntityPath, queue: QueueRecord) -> bool:
    """Return whether a receive takes the next fresh messages if no other message precedes them.

    A halted queue delivers nothing, even if the message that halted it is gone. A breaker may.
    """
    return path.subqueue is Subqueue.MAIN and queue.halted_by is None and queue.breaker is None


def put_lock(tx: Transaction, messages: list[ReceivedMessage], lock: Lock) -> list[ReceivedMessage]:
    """Return messages that were locked, with their lock."""
    count_messages(tx, RECEIVED, messages)
    for message in messages:
        message.lock = lock
    return messages


def hand_over(tx: Transaction, messages: list[ReceivedMessage], lock: Lock) -> list[ReceivedMessage]:
    """Return locked messages in the form that their receiver gets."""
    if not messages:
        return []
    tx.workers.register()
    count_messages(tx, RECEIVED, messages)
    for message in messages:
        message.lock = lock
        if message.alone:
            # It is a suspect: its settlement must clear it.
            row = tx.row(message.key)
            message.suspect = row.suspect if row else 0
    return messages


@dataclasses.dataclass(slots=True)
class ReceiveAndDelete(Operation[Found]):
    """Receive and delete the first receivable messages in one commit."""

    path: EntityPath
    limit: int
    session: Lock | None = None

    foreseeable = True

    def run(self, tx: Transaction) -> Found | Again:
        answer = Receive(self.path, self.limit, self.session).run(tx)
        if isinstance(answer, EntityError | Again) or not answer:
            return answer
        queue = tx.queues.by_path(self.path.key)
        assert queue is not None
        delete_completed(tx, queue, answer)
        if self.path.subqueue is Subqueue.MAIN:
            note_commit(tx, queue)
        for message in answer:
            message.lock = None
        return answer


def receivable(tx: Transaction, path: EntityPath, with_session: bool) -> QueueRecord:
    """Return the queue if it allows this receive; raise the error otherwise."""
    queue = tx.queues.by_path(path.key) or require_queue(tx, path)
    if queue.plain and path.subqueue is Subqueue.MAIN and not with_session:
        return queue
    if path.subqueue is Subqueue.RETRY:
        raise NotAllowed(
            f"{str(path)!r} can be peeked at but not received from: "
            "its messages return to the queue on their own"
        )
    refuse_receiving(queue, path.subqueue)
    if path.subqueue is Subqueue.MAIN and queue.options.requires_session and not with_session:
        raise NotAllowed(
            f"queue {queue.path!r} requires sessions: receive with session=… "
            "(a session's id, or NEXT_SESSION)"
        )
    if with_session and (path.subqueue is not Subqueue.MAIN or not queue.options.requires_session):
        raise NotAllowed(f"{str(path)!r} has no sessions: receive from it without session=…")
    touch(tx, queue)
    return queue


def look_again(tx: Transaction, path: EntityPath) -> EntityError | None:
    """Return the error if the queue is halted or disabled, perhaps by this commit."""
    queue = tx.queues.by_path(path.key)
    assert queue is not None
    return stop_error(queue, path.subqueue)


def dispose_of_exhausted(tx: Transaction, queue: QueueRecord, rows: Iterable[ReceivedMessage]) -> bool:
    """Apply the policy to messages that have no attempts left; return whether there were any.

    The policy normally applies when an attempt fails. Such messages exist only if the limit was lowered
    since, or if a halted queue was resumed without a fix.
    """
    disposed = False
    for row in rows:
        policy = queue.options.policy_of(subqueue_of(row.key))
        if policy is None:
            continue
        within = row.cycle_attempts <= policy.receive_retry_count and row.cycle <= policy.max_retry_cycles
        if within and not row.alone:
            continue
        full = tx.row(row.key)
        assert full is not None
        counters = full.counters
        if full.state == DEFERRED:
            # A deferral counts as an attempt, but not as a failed one.
            counters = counters._replace(cycle_attempts=_failures(tx, full))
        verdict = decide(policy, counters, Outcome.FAILED, tx.random_fraction())
        if isinstance(verdict, Retry) and not verdict.new_cycle:
            continue
        carry_out(tx, queue, full, verdict)
        disposed = True
        if full.session_id is not None or tx.queues.by_path(queue.path.lower()) is not queue:
            # The queue may be halted now, or this message may hold its session: the caller checks before the
            # next message.
            break
    return disposed


def _failures(tx: Transaction, row: MessageRow) -> int:
    """Return how many attempts of a message's cycle have failed."""
    outcomes = [Outcome(attempt.outcome) for attempt in tx.history.attempts(main_key(row.key))]
    charged = [outcome for outcome in outcomes if outcome in _CHARGED]
    tries = charged[max(0, len(charged) - row.cycle_attempts) :]
    return sum(outcome is not Outcome.DEFERRED for outcome in tries)
