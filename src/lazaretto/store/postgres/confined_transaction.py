"""A transaction that changes the queues that its commit holds, while others change all other queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from lazaretto.model.keys import SUBQUEUE_BITS, queue_of, queue_of_lane
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.due_mark import DueMark
from lazaretto.store.postgres.pipelined_context import PgContext
from lazaretto.store.postgres.pipelined_transaction import PgTransaction
from lazaretto.store.postgres.plan import Unforeseen
from lazaretto.store.records.messages import NewEvent
from lazaretto.store.sql.body_tables import BodyTables
from lazaretto.store.sql.cause_tables import CauseTables
from lazaretto.store.sql.claim_tables import ClaimTables
from lazaretto.store.sql.commit_context import Identity
from lazaretto.store.sql.history_tables import HistoryTables
from lazaretto.store.sql.query_files import Confined
from lazaretto.store.sql.queue_tables import QueueTables
from lazaretto.store.sql.rows import Cursor, Memory
from lazaretto.store.sql.sequence_numbers import SequenceNumbers
from lazaretto.store.sql.statements import Dialect
from lazaretto.store.sql.topic_tables import TopicTables

#: Parameters that have keys of messages.
_KEYS = ("key", "keys", "new_key", "first", "last")


class Unheld(Unforeseen):
    """Queues would be changed that the commit does not hold."""

    def __init__(self, queues: Collection[int]) -> None:
        super().__init__(queues)
        self.queues = frozenset(queues)


class ConfinedContext(PgContext):
    """One commit that changes no queues but those it holds."""

    def __init__(
        self,
        connection: PgConnection,
        dialect: Dialect,
        memory: Memory,
        identity: Identity,
        mark: DueMark,
        lanes: Collection[int],
    ) -> None:
        super().__init__(connection, dialect, memory, identity, mark)
        self._held = frozenset(lanes)
        #: Of the server.
        self.era = connection.era

    def holds(self, queue_id: int) -> bool:
        """Return whether a queue is held."""
        return queue_id in self._held

    def require(self, queues: Collection[int]) -> None:
        """Raise Unheld unless these queues are held."""
        if not self._held.issuperset(queues):
            raise Unheld(queues)

    def run(self, name: str, values: Mapping[str, Any] | Sequence[Any] = ()) -> Cursor:
        statement = self._statements[name]
        query = statement.query
        if query.written and query.confined is not Confined.WITHIN:
            named = statement.by_name(values)
            reached = _queues_of({each: named[each] for each in statement.names})
            if not reached or query.confined is Confined.SETTINGS:
                raise Unforeseen
            self.require(reached)
        return super().run(name, values)

    def insert(self, name: str, values: list[Any], count: int) -> None:
        if self._row_statements[name].query.confined is not Confined.WITHIN:
            raise Unforeseen
        super().insert(name, values, count)

    def gather(self, name: str, values: Sequence[Any], key: int | None = None) -> None:
        if key is not None:
            self.require({queue_of(key)})
        super().gather(name, values, key)

    def write_all_ranges(self) -> None:
        statement = self._statements["write_ranges_in"]
        self._execute(statement.sql, statement.pick({"queues": sorted(self._held)}))


def _queues_of(values: Mapping[str, Any]) -> set[int]:
    """Return the queues that a query's parameters name."""
    if "queue_id" in values:
        return {queue_of_lane(values["queue_id"])}
    if "place" in values:
        return {values["place"] >> SUBQUEUE_BITS}
    queues: set[int] = set()
    for name in _KEYS:
        if name in values:
            value = values[name]
            queues.update(map(queue_of, value) if isinstance(value, list) else (queue_of(value),))
    return queues


class ConfinedBodies(BodyTables):
    """The part for bodies. Those that are needed no more go at the end."""

    def __init__(self, context: ConfinedContext) -> None:
        super().__init__(context)
        self._gone: list[int] = []

    def delete(self, body_ids: Sequence[int]) -> None:
        self._gone += body_ids

    def finish(self) -> None:
        """Delete them, in one order in all commits: messages of different queues share bodies."""
        super().delete(sorted(self._gone))


class ConfinedSequences(SequenceNumbers):
    """The part for sequence numbers, of queues that are held."""

    def take_keys(self, lane: int, count: int = 1) -> int:
        context = self._context
        assert isinstance(context, ConfinedContext)
        context.require({queue_of_lane(lane)})
        return super().take_keys(lane, count)


class ConfinedHistory(HistoryTables):
    """The part for history. Events are written at the end: all who write some wait for each other."""

    def __init__(self, context: ConfinedContext, causes: CauseTables) -> None:
        super().__init__(context, causes)
        self._left: list[tuple[str, Sequence[NewEvent]]] = []

    @property
    def any_left(self) -> bool:
        """Whether there are events to write."""
        return bool(self._left)

    def insert_events(self, kind: str, events: Sequence[NewEvent]) -> None:
        self._left.append((kind, events))

    def finish(self) -> None:
        """Write the events."""
        with self._context.gathering():
            for kind, events in self._left:
                super().insert_events(kind, events)


class ConfinedTransaction(PgTransaction):
    """One commit that changes the queue `queue_id`, and other queues that it holds.

    It raises Unheld for others, and Unforeseen for what concerns more than queues.
    """

    def __init__(
        self,
        connection: PgConnection,
        context: ConfinedContext,
        new_message_id: Callable[[], str],
        queue_id: int,
        *,
        ranges: bool,
    ) -> None:
        super().__init__(context, new_message_id, ranges=ranges)
        self.confined = context
        self.connection = connection
        self._queue_id = queue_id
        self.bodies: ConfinedBodies = ConfinedBodies(context)
        self.queues = QueueTables(context, self.bodies)
        self.sequences = ConfinedSequences(context, self.queues, self.partitions)
        self.topics = TopicTables(context, self.queues, self.bodies, self.sequences, self.partitions)
        self.claims = ClaimTables(context, self.queues, self.bodies, self.sequences)
        self.history: ConfinedHistory = ConfinedHistory(context, self.causes)

    def anything_due(self) -> bool:
        # Whoever looks for timers finds those of other queues.
        values = {**self.context.by_now(), "queue_id": self._queue_id}
        (is_due,) = self.context.run("anything_due_in", values).fetchone()
        if is_due:
            raise Unforeseen
        return False
