"""Receives from dialogs: locks a conversation group and delivers its messages in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from lazaretto.engine.dialogs.conversation_ends import require_conversation
from lazaretto.engine.dialogs.verbs import refuse_locked
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.entities.status import refuse_receiving
from lazaretto.engine.messages.receive import dispose_of_exhausted, hand_over, look_again
from lazaretto.engine.messages.sessions import RenewSession, SetSessionState
from lazaretto.engine.routing.forwards import touch
from lazaretto.engine.timers import SWEEP, sweep
from lazaretto.errors import EntityError, NotAllowed
from lazaretto.model.conversations import group_session, priority_bounds
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.messages import Lock, ReceivedMessage
from lazaretto.store.records.dialogs import NextGroup, OpenStream
from lazaretto.store.records.messages import AGAIN, Again, QueueRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: One of this many receives takes the priorities in turn, so that the most urgent cannot starve the rest.
FAIR_SHARE = 8


class GroupHandover(NamedTuple):
    """A locked conversation group: its state and some of its messages, each with its stream."""

    group: str
    lock: Lock
    messages: list[tuple[ReceivedMessage, OpenStream]]
    state: bytes | None
    #: Behind which stream the next group is to be looked for; empty to leave that as it is.
    stream: str


@dataclasses.dataclass(slots=True)
class _Round:
    """The groups that the readers of one commit took since they asked, and whether anything else changed."""

    stale: bool
    taken: set[tuple[int, str]] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(slots=True)
class ReceiveGroup(Operation[GroupHandover | EntityError | None]):
    """Lock a conversation group, the next one or a named one, and take some of its messages.

    `token`: identifies the transaction, which can return to groups that it has locked. With `limit` 0 the
    group is locked and its state is read, but no message is taken. `turn` and `after` decide which
    priority is next (see FAIR_SHARE).
    """

    path: EntityPath
    limit: int
    token: int
    group: str | None = None
    handle: str | None = None
    turn: int = 0
    after: str = ""
    #: Whether it starts to look anywhere, because another reader looks behind `after`: one of the commit, or
    #: of another process, which was quicker.
    anywhere: bool = dataclasses.field(default=False, init=False)
    #: Whether it was planned before.
    planned: bool = dataclasses.field(default=False, init=False)

    durable = False
    foreseeable = True
    mergeable: ClassVar[bool] = True
    rank: ClassVar[int] = 2

    def run(self, tx: Transaction) -> GroupHandover | EntityError | Again | None:
        return self.run_all(tx, [self])[0]

    @classmethod
    def run_all(
        cls, tx: Transaction, operations: Sequence[ReceiveGroup]
    ) -> list[GroupHandover | EntityError | Again | None]:
        """Start several readers: each asks for the next group before the first answer is read."""
        for number, operation in enumerate(operations):
            operation.anywhere = number > 0 or (tx.plans and operation.planned)
            operation.planned |= tx.plans
        asked = [operation._ask(tx) for operation in operations]
        swept = sweep(tx, SWEEP)
        round_ = _Round(stale=swept > 0)
        handovers: list[GroupHandover | EntityError | Again | None] = [
            one._take_group(tx, look, round_) for one, look in zip(operations, asked, strict=True)
        ]
        return handovers if swept < SWEEP else [AGAIN if group is None else group for group in handovers]

    def _queue(self, tx: Transaction) -> QueueRecord:
        queue = require_queue(tx, self.path)
        if not queue.options.dialogs or self.path.subqueue is not Subqueue.MAIN:
            raise NotAllowed(
                f"{str(self.path)!r} is not the queue of a service; receive with broker.receiver"
            )
        return queue

    def _ask(self, tx: Transaction) -> Callable[[], NextGroup | None] | None:
        """Ask for the next group, unless one is named."""
        queue = self._queue(tx)
        refuse_receiving(queue, Subqueue.MAIN, by_dialogs=True)
        touch(tx, queue)
        return None if self.group is not None or self.handle is not None else self._look(tx, queue)

    def _take_group(
        self, tx: Transaction, asked: Callable[[], NextGroup | None] | None, round_: _Round
    ) -> GroupHandover | EntityError | None:
        queue, named = self._queue(tx), asked is None
        halted = look_again(tx, self.path)
        if halted is not None:
            return halted
        until = tx.now + round(queue.options.lock_duration * 1_000_000)
        while True:
            first = None if named else self._next(tx, queue, asked, round_)
            if not named and first is None:
                return None
            group = self._named(tx, queue) if first is None else first.stream.group_id
            lock = Lock(self.path, self.token, until, group_session(group))
            messages = self._take(tx, queue, group, lock, first, round_)
            if isinstance(messages, EntityError):
                return messages
            if messages or not self.limit:
                break
            if named:
                return None
            # All that it had was used up, and is dealt with: look for another one.
            asked = None
        round_.taken.add((queue.queue_id, group))
        tx.sessions.lock(queue.queue_id, group_session(group), self.token, until)
        state = None
        if not self.limit:
            session = tx.sessions.find(queue.queue_id, group_session(group))
            state = None if session is None else session.state
        return GroupHandover(
            group, lock, messages, state, "" if first is None or self.anywhere else first.found
        )

    def _next(
        self,
        tx: Transaction,
        queue: QueueRecord,
        asked: Callable[[], NextGroup | None] | None,
        round_: _Round,
    ) -> NextGroup | None:
        """Return the next group; ask again if another reader may have changed the answer."""
        if asked is None or round_.stale:
            return self._look(tx, queue)()
        first = asked()
        taken = first is not None and (queue.queue_id, first.stream.group_id) in round_.taken
        return self._look(tx, queue)() if taken else first

    def _look(self, tx: Transaction, queue: QueueRecord) -> Callable[[], NextGroup | None]:
        # Who asks for a group, and not for messages, has those already that it has locked.
        token = self.token if self.limit else 0
        return tx.dialogs.next_group(queue.queue_id, self._ranges(tx, queue), token, self.limit)

    def _named(self, tx: Transaction, queue: QueueRecord) -> str:
        group = self.group
        if self.handle is not None:
            record = require_conversation(tx, self.handle)
            if record.queue_id != queue.queue_id:
                raise NotAllowed(f"conversation {self.handle} does not receive from {queue.path!r}")
            group = record.group_id
        assert group is not None
        refuse_locked(tx, queue.queue_id, group, self.token)
        return group

    def _ranges(self, tx: Transaction, queue: QueueRecord) -> list[tuple[str, str]]:
        """Return where to look for the next group: most urgent first, round robin within a priority."""
        levels = tx.dialogs.levels(queue.queue_id)[::-1]
        if levels and self.turn % FAIR_SHARE == FAIR_SHARE - 1:
            start = self.turn // FAIR_SHARE % len(levels)
            levels = levels[start:] + levels[:start]
        ranges: list[tuple[str, str]] = []
        for level in levels:
            low, end = priority_bounds(level)
            # Handles are random: so is the group behind one.
            after = f"{low}{int(tx.random_fraction() * (1 << 32)):08x}" if self.anywhere else self.after
            if low <= after < end:
                ranges += [(after, end), (low, f"{after}!")]
            else:
                ranges.append((low, end))
        return ranges

    def _take(
        self,
        tx: Transaction,
        queue: QueueRecord,
        group: str,
        lock: Lock,
        first: NextGroup | None,
        round_: _Round,
    ) -> list[tuple[ReceivedMessage, OpenStream]] | EntityError:
        taken: list[tuple[ReceivedMessage, OpenStream]] = []
        while len(taken) < self.limit:
            room = self.limit - len(taken)
            if first is not None:
                stream, rows = first.stream, first.rows
                first = None
            else:
                messages = tx.dialogs.open_messages(queue.queue_id, group, self.handle, self.token, room)
                if messages is None:
                    break
                stream, rows = messages
            alone = bool(rows) and rows[0].alone
            if alone and taken:
                break
            if not alone and dispose_of_exhausted(tx, queue, rows):
                round_.stale = True
                halted = look_again(tx, self.path)
                if halted is not None:
                    return halted
                continue
            if not rows:
                break
            tx.lock([row.key for row in rows], self.token, lock.until)
            taken += [(message, stream) for message in hand_over(tx, rows, lock)]
            if alone:
                break
        return taken


@dataclasses.dataclass(slots=True)
class SetGroupState(Operation[None]):
    """Store a conversation group's state, unless its last conversation has just ended."""

    group: str
    lock: Lock
    state: bytes | None

    def run(self, tx: Transaction) -> None:
        if tx.dialogs.group_open(require_queue(tx, self.lock.path).queue_id, self.group):
            SetSessionState(self.lock.path, self.lock, self.state).run(tx)


@dataclasses.dataclass(slots=True)
class RenewGroup(Operation[Lock]):
    """Renew the lock on a conversation group and on its messages that are held under it."""

    lock: Lock
    keys: Sequence[int]

    durable = False

    def run(self, tx: Transaction) -> Lock:
        lock = RenewSession(self.lock.path, self.lock).run(tx)
        if self.keys:
            tx.renew_locks(self.keys, lock.token, lock.until)
        return lock


@dataclasses.dataclass(slots=True)
class ReleaseGroup(Operation[None]):
    """Release a conversation group after all its messages were settled."""

    lock: Lock

    def run(self, tx: Transaction) -> None:
        queue = tx.queues.by_path(self.lock.path.key)
        if queue is not None and self.lock.session_id is not None:
            tx.dialogs.free_group(queue.queue_id, self.lock.session_id, self.lock.token)
