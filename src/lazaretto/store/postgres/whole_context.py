"""The context that the parts of a transaction share while they plan a whole commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg

from lazaretto.model.keys import LAST_QUEUE, lane_of, queue_of, queue_of_lane
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.due_mark import DueMark
from lazaretto.store.postgres.pipelined_context import PgContext
from lazaretto.store.postgres.plan import Plan, Planned, Unforeseen, guard, reading
from lazaretto.store.postgres.queue_locks import CommitLocks, QueueLock
from lazaretto.store.postgres.settings import Settings
from lazaretto.store.sql.commit_context import CommitContext, Identity, Tally
from lazaretto.store.sql.rows import Memory
from lazaretto.store.sql.statements import Dialect, Gathered, Statement

#: Whoever writes events holds the end of this: followers must miss none. No queue has its number.
LOG = 0


class RangesFirst(Exception):
    """Range locks of some queues must be written into their messages before an operation can be planned."""

    def __init__(self, queues: set[int]) -> None:
        super().__init__(queues)
        self.queues = queues


class Progress(NamedTuple):
    """The progress of a plan, to go back to."""

    statements: int
    afterwards: int
    gone_bodies: int
    notices: int
    woken: dict[int, int]
    counted: dict[tuple[int, int], Tally]
    rates: int
    registers: bool
    writes_ranges: bool


class WholeContext(PgContext):
    """The whole commits of one process, one after the other."""

    def __init__(
        self,
        connection: PgConnection,
        settings: Settings,
        dialect: Dialect,
        memory: Memory,
        identity: Identity,
        mark: DueMark,
    ) -> None:
        self.plan = Plan(dialect, self._ask)
        super().__init__(self.plan, dialect, memory, identity, mark)
        self.settings = settings
        self._reader = connection
        self._dialect = dialect
        #: No number up to this one is free, by queue: at least as many are taken.
        self.floors: dict[int, int] = {}
        #: What of queues is changed, and the queues whose settings were asked for.
        self.locks = CommitLocks()
        self.asked: set[int] = set()
        #: The topics whose subscriptions were asked for.
        self.asked_topics: set[int] = set()
        #: Whether the commit needs the locks on its queues' ranges written into their messages.
        self._writes_ranges = False
        self.gone_bodies: list[int] = []
        self.afterwards: list[Callable[[], None]] = []
        self.forget()

    def forget(self) -> None:
        """Forget everything that others may have changed."""
        last_body = self.memory.last_body
        self.memory.forget()
        self.memory.last_body = last_body

    def begin(self, now: int) -> None:
        super().begin(now)
        if self.plan.guarded:
            self.forget()
        self.memory.conversations.clear()
        self.plan.begin()
        self.locks, self.asked, self.asked_topics = CommitLocks(), set(), set()
        self.gone_bodies, self.afterwards = [], []
        self._writes_ranges = False

    def progress(self) -> Progress:
        """Return the progress of the plan."""
        return Progress(
            len(self.plan.statements),
            len(self.afterwards),
            len(self.gone_bodies),
            len(self.notices),
            dict(self.woken),
            dict(self.counted),
            len(self.rates.entries),
            self.registers,
            self._writes_ranges,
        )

    def go_back(self, to: Progress) -> None:
        """Undo everything planned since."""
        self.plan.go_back(to.statements)
        del self.afterwards[to.afterwards :]
        del self.gone_bodies[to.gone_bodies :]
        del self.notices[to.notices :]
        self.woken, self.counted, self.registers = to.woken, to.counted, to.registers
        del self.rates.entries[to.rates :]
        self._writes_ranges = to.writes_ranges
        self.memory.conversations.clear()

    def attempt(self, plan: Callable[[], object]) -> bool:
        """Let a function plan, and undo all of it if it cannot be completed; return whether it was."""
        before = self.progress()
        try:
            plan()
        except (psycopg.Error, RangesFirst):
            raise
        except Exception:
            # What an operation found wrong may be so only by what was remembered, or because it was read at
            # different moments: a message may be gone in between. If not, it is found again under the lock.
            self.go_back(before)
            return False
        return True

    def finish(self) -> None:
        """Plan the last statements of a commit."""
        if self.gone_bodies:
            # In one order in all commits, because messages of different queues share bodies.
            gone = self.ids(sorted(self.gone_bodies))
            for query in ("count_down_uses", "delete_unused_bodies", "delete_uses"):
                self.run(query, {"body_ids": gone})
        if self.plan.guarded or self._writes_ranges:
            self.locks.hold_all(self._touched())
        if self._writes_ranges:
            queues = sorted(set(map(queue_of_lane, self.locks.queues)))
            for queue_id in queues:
                self.locks.hold_all(self._lanes_of(queue_id))
            statement = self._statements["write_ranges_of"]
            first = Planned(self.plan, statement.sql, statement.pick({"queues": queues}))
            self.plan.statements.insert(0, first)

    def _touched(self) -> set[int]:
        """Return the lanes of the messages in the statements; if a statement names none, all lanes in use."""
        touched: set[int] = set()
        for planned in self.plan.statements:
            queues, lanes = planned.queues(), set(map(self.lane_of, planned.keys()))
            if not queues and not lanes and not planned.nature.reads:
                queues = self.asked
            touched |= lanes.union(lane for queue_id in queues for lane in self._lanes_of(queue_id))
        return touched

    def lane_of(self, key: int) -> int:
        """Return the lane of a message. Raises Unforeseen if its queue is gone."""
        return lane_of(key, self.settings.by_id(queue_of(key)).partitions)

    def _lanes_of(self, queue_id: int) -> Collection[int]:
        """Return the lanes of a queue, or a lane itself."""
        if queue_id == LOG or queue_id > LAST_QUEUE:
            return (queue_id,)
        try:
            # What is kept of the queue as a whole is under its own number.
            return {queue_id, *self.settings.by_id(queue_id).lanes}
        except Unforeseen:
            # It is gone.
            return (queue_id,)

    def insert(self, name: str, values: list[Any], count: int) -> None:
        if name == "insert_events":
            # COPY cannot be sent together with other statements.
            CommitContext.insert(self, name, values, count)
        else:
            super().insert(name, values, count)

    def _write_gathered(self, gathered: Gathered) -> None:
        keys = frozenset(key for _, key in gathered.keys if key is not None)
        before = len(self.plan.statements)
        super()._write_gathered(gathered)
        for planned in self.plan.statements[before:]:
            planned.about = keys

    def committed(self) -> None:
        """Remember the answers."""
        for note in self.afterwards:
            note()

    def marks(self) -> tuple[list[int], list[int]]:
        """Return the queues whose settings the plan depends on, and their marks."""
        queue_ids = sorted(self.asked)
        return queue_ids, [self.settings.mark(queue_id) for queue_id in queue_ids]

    def marks_of_topics(self) -> tuple[list[int], list[int]]:
        """Return the topics on whose subscriptions the plan depends, and their marks."""
        if not self.asked_topics:
            return [], []
        topics = sorted(self.asked_topics)
        return topics, [self.settings.mark_of_subscriptions(topic_id) for topic_id in topics]

    def raise_floor(self, queue_id: int, number: int) -> None:
        """Record that a sequence number is taken."""
        self.floors[queue_id] = max(number, self.floors.get(queue_id, 0))

    def write_range_locks(self, keys: Any = None) -> None:
        if keys is None:
            self._writes_ranges = True
        elif not self._writes_ranges:
            for lane in set(map(self.lane_of, keys)):
                self.locks.hold(lane, QueueLock.HELD)
            self.run("write_range_locks_of", {"keys": keys})

    def fresh_start(self, queue_id: int) -> int | None:
        # The queries pass over what claims lock, or claims are refused.
        return self.first_fresh(queue_id)

    def write_claimed(self, statement: Statement, values: Mapping[str, Any] | Sequence[Any]) -> None:
        """Do nothing.

        Whoever reads single messages looks for claims; what has all locks on ranges written first fails where
        a claim locks some.
        """

    def ask_first(self, query: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a query, read now; the commit does not ask again."""
        statement, connection = self._statements[query], self._reader
        connection.send_ahead()
        sent = connection.send(statement.sql, statement.pick(values))
        connection.settle()
        return sent.fetchall()

    # -- reading before the commit --------------------------------------------------------------

    def _ask(self, some: Sequence[Planned]) -> None:
        """Read statements in one round trip, without a lock."""
        connection = self._reader
        connection.send_ahead()
        sent = [connection.send(reading(planned.sql), planned.parameters) for planned in some]
        ranged, queues = None, []
        if self._writes_ranges:
            queues = sorted(
                {queue_of_lane(queue) for planned in some for queue in planned.queues()}.union(
                    self.asked, *(map(queue_of, planned.keys()) for planned in some)
                )
            )
            statement = self._statements["select_ranged"]
            ranged = connection.send(statement.sql, statement.pick({"queues": queues}))
        connection.settle()
        ranged_rows = ranged.fetchall() if ranged is not None else []
        claimed = {queue for queue, by_claim in ranged_rows if by_claim}
        locked = {queue for queue, by_claim in ranged_rows if not by_claim}
        if locked & claimed or (queues and claimed):
            # What reads those may have to write a part of them first. If no queue is named, timers are looked
            # for, which nothing has that a claim locks by a range.
            raise Unforeseen
        if locked:
            raise RangesFirst(locked)
        for planned, answer in zip(some, sent, strict=True):
            rows = answer.fetchall()
            planned.has_read(rows[0][0], [row[2:] for row in rows if row[1]])

    def send(self, connection: PgConnection) -> None:
        """Send all statements. Those already read check that their answers are still the same."""
        for planned in self.plan.statements:
            if planned.mark is None:
                planned.sent = connection.send(planned.sql, planned.parameters)
            else:
                parameters = planned.parameters
                connection.send(guard(planned.sql, len(parameters)), (*parameters, planned.mark))
