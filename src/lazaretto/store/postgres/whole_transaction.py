"""A commit that goes out whole: all its statements are known before the first one is sent.

So no lock is held while the network is waited for. What must be known beforehand is how queues are set, which
the commit checks within. Numbers, cursors and rows are found by the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import LAST_SEQUENCE, in_main, lower_bound, queue_of, sequence_of
from lazaretto.model.messages import ReceivedMessage
from lazaretto.store.contract.records import FRESH, SCHEDULED, NewEvent, NewMessage, QueueRecord
from lazaretto.store.postgres.arrays import blobs, numbers, texts
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.due_mark import DueMark
from lazaretto.store.postgres.pipeline import Sent, text
from lazaretto.store.postgres.pipelined_context import PgContext
from lazaretto.store.postgres.pipelined_transaction import RANGED, PgTransaction
from lazaretto.store.sql.body_tables import BodyTables
from lazaretto.store.sql.history_tables import HistoryTables
from lazaretto.store.sql.queue_tables import QueueTables
from lazaretto.store.sql.rows import INLINE_BODY, Memory, queue_record
from lazaretto.store.sql.sequence_numbers import SequenceNumbers
from lazaretto.store.sql.statements import Dialect


class Unforeseen(Exception):
    """An operation must read the store before its commit is known as a whole."""


class Planned:
    """A statement that is to be sent. Its answer is there once the commit is done."""

    __slots__ = ("parameters", "sent", "sql")

    def __init__(self, sql: str, parameters: Sequence[Any]) -> None:
        self.sql = sql
        self.parameters = parameters
        self.sent: Sent | None = None

    def _answer(self) -> Sent:
        if self.sent is None:
            raise Unforeseen
        return self.sent

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""
        return self._answer().rowcount

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows that are left."""
        return self._answer().fetchall()

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, or None."""
        return self._answer().fetchone()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._answer())


class Plan:
    """Takes statements in the place of a connection."""

    sends_ahead = True
    total_changes = 0

    def __init__(self) -> None:
        self.statements: list[Planned] = []

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Planned:
        """Note a statement."""
        planned = Planned(sql, parameters)
        self.statements.append(planned)
        return planned

    def copy(self, *_: object) -> NoReturn:
        """Refuse what cannot be sent together with other statements."""
        raise Unforeseen


class Settings:
    """How queues are set, each with a mark that its row has until it is changed."""

    def __init__(self, connection: PgConnection, dialect: Dialect) -> None:
        self._connection = connection
        self._dialect = dialect
        self.forget()

    def forget(self) -> None:
        """Read all of it anew when it is asked for."""
        self._by_path: dict[str, QueueRecord] = {}
        self._by_id: dict[int, tuple[QueueRecord, int]] = {}

    def by_path(self, path_key: str) -> QueueRecord:
        """Return the queue at a path. Raises Unforeseen if there is none."""
        return self._by_path.get(path_key) or self._read("select_settings", path_key)

    def by_id(self, queue_id: int) -> QueueRecord:
        """Return a queue by its number. Raises Unforeseen if there is none."""
        known = self._by_id.get(queue_id)
        return known[0] if known else self._read("select_settings_by_id", queue_id)

    def mark(self, queue_id: int) -> int:
        """Return the mark of a queue that was asked for."""
        return self._by_id[queue_id][1]

    def next_bodies(self) -> int:
        """Return behind which id there are ids for bodies that nobody else takes."""
        (last,) = self._connection.execute(self._dialect.text("select_last_body")).fetchone()
        return int(last)

    def _read(self, query: str, key: object) -> QueueRecord:
        row = self._connection.execute(self._dialect.text(query), (key,)).fetchone()
        if row is None:
            raise Unforeseen
        *columns, mark = row
        record = queue_record(tuple(columns))
        self._by_path[record.path.lower()] = record
        self._by_id[record.queue_id] = record, mark
        return record


class WholeContext(PgContext):
    """What the parts of a transaction share while its commit is planned."""

    def __init__(
        self, settings: Settings, dialect: Dialect, memory: Memory, worker: str, mark: DueMark
    ) -> None:
        self.plan = Plan()
        super().__init__(self.plan, dialect, memory, worker, mark)
        self.settings = settings
        #: No number up to this one is free, by queue: at least as many are taken.
        self.floors: dict[int, int] = {}
        #: The queues whose messages are changed, and those whose settings were asked for.
        self.lanes: set[int] = set()
        self.asked: set[int] = set()
        #: The first timer that is set.
        self.first_due: int | None = None
        self.gone_bodies: list[int] = []
        self.afterwards: list[Callable[[], None]] = []

    def begin(self, now: int) -> None:
        super().begin(now)
        self.plan.statements = []
        self.lanes, self.asked, self.first_due = set(), set(), None
        self.gone_bodies, self.afterwards = [], []

    def finish(self) -> None:
        """Plan what stands at the end of a commit."""
        if self.gone_bodies:
            # In one order in all commits, because messages of different queues share bodies.
            gone = self.ids(sorted(self.gone_bodies))
            for query in ("count_down_uses", "delete_unused_bodies", "delete_uses"):
                self.run(query, {"body_ids": gone})

    def committed(self) -> None:
        """Note what the answers tell."""
        for note in self.afterwards:
            note()

    def marks(self) -> tuple[list[int], list[int]]:
        """Return the queues whose settings were asked for, and their marks."""
        queue_ids = sorted(self.asked)
        return queue_ids, [self.settings.mark(queue_id) for queue_id in queue_ids]

    def note_due(self, due: int | None) -> None:
        super().note_due(due)
        if due is not None:
            self.first_due = due if self.first_due is None else min(due, self.first_due)

    def note_lock(self, until: int) -> None:
        """Note until when a lock is to hold."""
        self.first_due = until if self.first_due is None else min(until, self.first_due)

    def raise_floor(self, queue_id: int, number: int) -> None:
        """Note that a number is taken."""
        self.floors[queue_id] = max(number, self.floors.get(queue_id, 0))

    def write_range_locks(self) -> NoReturn:
        raise Unforeseen


class WholeQueues(QueueTables):
    """Queues as they are set."""

    def __init__(self, context: WholeContext, bodies: BodyTables) -> None:
        super().__init__(context, bodies)
        self._whole = context

    def by_path(self, path_key: str) -> QueueRecord:
        return self._asked_for(self._whole.settings.by_path(path_key))

    def by_id(self, queue_id: int) -> QueueRecord:
        return self._asked_for(self._whole.settings.by_id(queue_id))

    def _asked_for(self, record: QueueRecord) -> QueueRecord:
        if record.options.dialogs:
            raise Unforeseen
        self._whole.asked.add(record.queue_id)
        return record

    def idle_at(self, queue_id: int) -> NoReturn:
        raise Unforeseen


class WholeSequences(SequenceNumbers):
    """Sequence numbers, which the server finds."""

    def __init__(self, context: WholeContext) -> None:
        super().__init__(context)
        self._whole = context

    def take_key(self, queue_id: int, count: int = 1) -> NoReturn:
        raise Unforeseen

    def keep_highest(self, keys: Sequence[int]) -> None:
        highest: dict[int, int] = {}
        for key in keys:
            queue_id = queue_of(key)
            highest[queue_id] = max(sequence_of(key), highest.get(queue_id, 0))
        for queue_id, number in highest.items():
            # Whoever removes a message of a higher number keeps that one.
            if number >= self._whole.floors.get(queue_id, 0):
                self._keep_number(queue_id, number)

    def _keep_number(self, queue_id: int, number: int) -> None:
        whole = self._whole
        sent = whole.run("keep_high_water", {**_places(queue_id), "queue_id": queue_id, "number": number})

        def note() -> None:
            (above,) = sent.fetchone()
            whole.raise_floor(queue_id, number if above is None else above)

        whole.afterwards.append(note)


class WholeBodies(BodyTables):
    """Bodies, without asking which of them are shared."""

    def __init__(self, context: WholeContext) -> None:
        super().__init__(context)
        self._whole = context

    def take_id(self) -> int:
        memory = self._whole.memory
        last = self._whole.settings.next_bodies() if memory.last_body is None else memory.last_body
        memory.last_body = last + 1
        return last + 1

    def insert(self, bodies: Mapping[int, bytes]) -> None:
        self._whole.run("put_bodies", {"body_ids": numbers(bodies), "bodies": blobs(bodies.values())})

    def delete(self, body_ids: Sequence[int]) -> None:
        self._whole.gone_bodies += body_ids


class WholeHistory(HistoryTables):
    """History without events, which are written by one commit after the other: followers must miss none."""

    def insert_events(self, kind: str, events: Sequence[NewEvent]) -> NoReturn:
        raise Unforeseen


class WholeTransaction(PgTransaction):
    """What operations on queues may do within a commit that goes out whole.

    What it cannot do raises Unforeseen. It works under a lock of each queue, beside others on other queues.
    """

    plans = True

    def __init__(self, context: WholeContext, prefix: str, *, ranges: bool) -> None:
        super().__init__(context, prefix, ranges=ranges)
        self.whole = context
        self.sequences = WholeSequences(context)
        self.bodies = WholeBodies(context)
        self.queues = WholeQueues(context, self.bodies)
        self.history = WholeHistory(context, self.causes)

    def start_sending(
        self, queue: QueueRecord, messages: Sequence[NewMessage]
    ) -> Callable[[], list[int]] | None:
        queue_id, options, whole = queue.queue_id, queue.options, self.whole
        if self.queues.sized(queue_id) is not None:
            return None
        whole.lanes.add(queue_id)
        now, longest = whole.now, options.default_time_to_live
        limit = None if longest is None else round(longest * 1_000_000)
        states: list[int | None] = []
        dues: list[int | None] = []
        lives: list[int | None] = []
        body_ids: list[int | None] = []
        bodies: list[bytes | None] = []
        apart: dict[int, bytes] = {}
        for message in messages:
            ttl, state = message.time_to_live, FRESH
            if limit is not None and (ttl is None or ttl > limit):
                ttl = limit
            expires = None if ttl is None else now + ttl
            due = expires
            scheduled = message.scheduled
            if scheduled is not None and scheduled > now:
                state = SCHEDULED
                due = scheduled if expires is None else min(scheduled, expires)
            body_id = None
            if len(message.body) > INLINE_BODY:
                body_id = self.bodies.take_id()
                apart[body_id] = message.body
            whole.note_due(due)
            states.append(state)
            dues.append(due)
            lives.append(expires)
            body_ids.append(body_id)
            bodies.append(message.body if body_id is None else None)
        if apart:
            self.bodies.insert(apart)
        sessions = [m.session_id if options.requires_session else None for m in messages]
        count = len(messages)
        sent = whole.run(
            "send_next",
            {
                **_places(queue_id),
                "floor": whole.floors.get(queue_id, 0),
                "queue_id": queue_id,
                "now": now,
                "states": numbers(states),
                "dues": numbers(dues),
                "lives": numbers(lives),
                "ids": texts((m.message_id or self.new_message_id() for m in messages), _encode),
                "sessions": texts(sessions, _encode),
                "headers": blobs(m.headers for m in messages),
                "body_ids": numbers(body_ids),
                "bodies": blobs(bodies),
                "count": count,
            },
        )
        whole.wake(lower_bound(queue_id), count)
        last = 0

        def note() -> None:
            nonlocal last
            (last,) = sent.fetchone()
            whole.raise_floor(queue_id, last + count)

        whole.afterwards.append(note)
        first = lower_bound(queue_id) + 1
        return lambda: list(range(first + last, first + last + count))

    def start_taking(
        self, queue_id: int, wanted: Sequence[tuple[int, int]], until: int
    ) -> Sequence[Callable[[], list[ReceivedMessage] | None]] | None:
        self.whole.lanes.add(queue_id)
        self.whole.note_lock(until)
        return super().start_taking(queue_id, wanted, until)

    def delete_held(self, held: Mapping[int, Sequence[int]]) -> bool:
        for keys in held.values():
            if not all(map(in_main, keys)):
                # Dead letters are counted by their causes, and sessions may wait for them.
                raise Unforeseen
            self.whole.lanes.update(map(queue_of, keys))
        return super().delete_held(held)

    def renew_lock(self, key: int, token: int, until: int) -> bool:
        if token & RANGED:
            raise Unforeseen
        self.whole.lanes.add(queue_of(key))
        self.whole.note_lock(until)
        values = {"key": key, "token": token, "until": until, "now": self.whole.now}
        self.whole.run("prolong_lock", values)
        return True


def _places(queue_id: int) -> dict[str, int]:
    """Return where a queue's messages may stand, as parameters."""
    return {
        "main": lower_bound(queue_id),
        "dead": lower_bound(queue_id, Subqueue.DEAD_LETTER),
        "transfer": lower_bound(queue_id, Subqueue.TRANSFER_DEAD_LETTER),
        "most": LAST_SEQUENCE,
    }


def _encode(value: str) -> bytes:
    return text(value).encode()
