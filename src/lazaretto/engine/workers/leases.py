"""Leases on hand-overs to service hosts, which make a host's death known and attributable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import msgspec

from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.messages.receive import Receive, put_lock, receivable, takes_at_once
from lazaretto.engine.messages.sessions import ReleaseSession, require_session
from lazaretto.engine.outcome.attempts import end_attempt, put_back
from lazaretto.engine.outcome.breakers import breaker_of, save_breaker
from lazaretto.errors import EntityError, LazarettoError, SessionLockLost
from lazaretto.model.breaker import passage, probing
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.keys import main_key
from lazaretto.model.messages import Lock, Past, ReceivedMessage
from lazaretto.model.policy import Outcome
from lazaretto.store.records.messages import Again, LeaseRecord, QueueRecord, Share
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

_ANY_SIZE = 1 << 62


class Handover(msgspec.Struct, frozen=True):
    """Messages delivered to a host under one lease, in order.

    `past`: by key, for messages with earlier attempts. `alone`: the message is a suspect, to be run with
    nothing else in the same process. `outage`: the queue's breaker is not closed, because of failures with
    this fingerprint; the result of these messages decides its next state.
    """

    lock: Lock
    messages: Sequence[ReceivedMessage]
    past: dict[int, Past]
    alone: bool = False
    outage: str | None = None


@dataclasses.dataclass(slots=True)
class Take(Operation[Handover | EntityError | None]):
    """Receive messages for a host; None if there are none. `started`: the handlers start at once."""

    path: EntityPath
    limit: int
    session: Lock | None = None
    started: bool = True
    #: Maximum size of headers and bodies together, unless a single message is larger.
    most_bytes: int | None = None
    #: How many slots share the available messages: none takes more than its share while others are idle.
    sharers: Callable[[], int] | None = None
    #: The result of the last run, for a caller that does not know whether the commit succeeded.
    handed: Handover | None = None

    durable = False
    foreseeable = True

    def run(self, tx: Transaction) -> Handover | EntityError | Again | None:
        handover = self._take(tx)
        self.handed = handover if isinstance(handover, Handover) else None
        return handover

    def start(self, tx: Transaction) -> Callable[[], Handover | Again | None] | None:
        self.handed = None
        queue = self._queue_to_start(tx)
        if queue is None:
            return None
        share, token = self._share(queue), tx.random_token(self.limit)
        lock = Lock(self.path, token, tx.now + round(queue.options.lock_duration * 1_000_000))
        leased = tx.start_leasing(queue, share, token, lock.until, started=self.started)
        if leased is None:
            return None
        # Which messages these are is known once it is committed.
        self.handed = Handover(lock, (), {})

        def answer() -> Handover | Again | None:
            handover = leased()
            if isinstance(handover, Again) or not handover.messages:
                self.handed = None
                return handover if isinstance(handover, Again) else None
            self.handed = Handover(lock, put_lock(tx, handover.messages, lock), handover.past)
            return self.handed

        return answer

    def _queue_to_start(self, tx: Transaction) -> QueueRecord | None:
        """Return the queue if messages may be taken without awaiting the answer; `run` handles the rest."""
        if self.session is not None:
            return None
        try:
            queue = receivable(tx, self.path, with_session=False)
        except LazarettoError:
            return None
        return queue if takes_at_once(self.path, queue) else None

    def _share(self, queue: QueueRecord) -> Share:
        sharers = 1 if self.sharers is None or self.limit == 1 else max(1, self.sharers())
        most = self.most_bytes
        fits = most is None or self.limit == 1 or self.limit * queue.options.max_message_size <= most
        return Share(self.limit, sharers, None if fits else most)

    def _take(self, tx: Transaction) -> Handover | EntityError | Again | None:
        queue = tx.queues.by_path(self.path.key) or require_queue(tx, self.path)
        state = breaker_of(queue) if self.path.subqueue is Subqueue.MAIN else None
        way = passage(state, self.limit, tx.now)
        if way is None:
            return None
        limit, probed = self._fitting(tx, queue, way.limit), way.after
        received = Receive(self.path, limit, self.session, after=probed).run(tx)
        if probed and not received:
            received = Receive(self.path, limit, self.session).run(tx)
        if isinstance(received, EntityError | Again):
            return received
        if not received:
            return None
        lock = received[0].lock
        assert lock is not None
        keys = [message.key for message in received]
        queue_id = queue.queue_id
        tx.workers.insert_lease(
            LeaseRecord(lock.token, tx.worker, queue_id, lock.session_id, keys, self.started)
        )
        outage = None
        if state is not None and way.decides:
            outage = state.fingerprint
            if queue.options.breaker is not None:
                save_breaker(tx, queue, probing(queue.options.breaker, state, keys[-1], tx.now))
        past = {m.key: past_of(tx, m) for m in received if m.deliveries > 1}
        return Handover(lock, received, past, any(m.suspect for m in received), outage)

    def _fitting(self, tx: Transaction, queue: QueueRecord, limit: int) -> int:
        """Return how many messages to take; count waiting ones only if shares or sizes matter."""
        sharers = 1 if self.sharers is None or self.session is not None else self.sharers()
        if sharers > 1 and limit > 1:
            waiting = tx.count_fitting(self._lane(tx, queue), self.path.subqueue, limit * sharers, _ANY_SIZE)
            limit = -(-waiting // sharers)
        most = self.most_bytes
        if most is None or limit * queue.options.max_message_size <= most:
            return limit
        if self.session is not None and self.session.session_id is not None:
            return tx.count_fitting_of_session(queue.queue_id, self.session.session_id, limit, most)
        return tx.count_fitting(self._lane(tx, queue), self.path.subqueue, limit, most)

    def _lane(self, tx: Transaction, queue: QueueRecord) -> int:
        """Return the lane that messages come from next."""
        in_main = self.path.subqueue is Subqueue.MAIN
        return tx.partitions.next_to_take(queue)[0] if in_main else queue.queue_id


def past_of(tx: Transaction, message: ReceivedMessage) -> Past:
    """Return what is kept of a message's earlier attempts."""
    row, error = tx.row(message.key), tx.history.last_error(main_key(message.key))
    moves = row.moves if row else 0
    return Past(moves) if error is None else Past(moves, error.type, error.message)


@dataclasses.dataclass(slots=True)
class RenewLease(Operation[None]):
    """Renew the locks on the messages of a hand-over that are still held."""

    lock: Lock
    keys: Sequence[int]

    durable = False
    foreseeable = True

    def run(self, tx: Transaction) -> None:
        queue = tx.queues.by_path(self.lock.path.key)
        if queue is None:
            return
        until = tx.now + round(queue.options.lock_duration * 1_000_000)
        if self.lock.session_id is None:
            tx.renew_locks(self.keys, self.lock.token, until)
        elif _holds_session(tx, queue, self.lock):
            tx.sessions.renew(queue.queue_id, self.lock.session_id, until)


@dataclasses.dataclass(slots=True)
class GiveBack(Operation[None]):
    """Release the held messages of a hand-over without counting an attempt, and end its lease.

    `keys`: None for one that is not known to be committed; its lease tells, if it is.
    """

    lock: Lock
    keys: Sequence[int] | None

    foreseeable = True

    def run(self, tx: Transaction) -> None:
        keys = tx.workers.leased(self.lock.token) if self.keys is None else self.keys
        tx.workers.delete_lease(self.lock.token)
        if self.lock.session_id is not None:
            ReleaseSession(self.lock.path, self.lock).run(tx)
            return
        rows = tx.held_rows(keys, self.lock.token).values()
        with tx.together(len(rows)):
            for row in rows:
                put_back(tx, end_attempt(tx, row, Outcome.RELEASED))


def _holds_session(tx: Transaction, queue: QueueRecord, lock: Lock) -> bool:
    try:
        require_session(tx, queue, lock)
    except SessionLockLost:
        return False
    return True
