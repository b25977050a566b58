"""A whole commit: all its statements are known before the first one is sent.

So it holds no lock while it waits for the network. It remembers the settings of queues, and the commit checks
them. The server finds numbers, cursors and rows, or they are read before and the commit checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from lazaretto.model.keys import lower_bound, main_key, queue_of_lane
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.partitions import detection_key
from lazaretto.model.rates import SENT
from lazaretto.store.postgres.arrays import blobs, numbers, texts
from lazaretto.store.postgres.partition_heads import WholePartitions
from lazaretto.store.postgres.pipelined_transaction import RANGED, Lease, PgTransaction
from lazaretto.store.postgres.plan import Planned, Unforeseen
from lazaretto.store.postgres.queue_locks import QueueLock
from lazaretto.store.postgres.whole_context import LOG, WholeContext
from lazaretto.store.postgres.whole_dialogs import WholeDialogs
from lazaretto.store.postgres.whole_sequences import WholeSequences, is_placeholder, key_ranges
from lazaretto.store.postgres.whole_topics import WholeTopics
from lazaretto.store.records.messages import (
    FRESH,
    AttemptRecord,
    ErrorRecord,
    HeldSessionRecord,
    MessageRow,
    NewEvent,
    NewMessage,
    QueueRecord,
)
from lazaretto.store.sql.body_tables import BodyTables
from lazaretto.store.sql.cause_tables import CauseTables
from lazaretto.store.sql.history_tables import HistoryTables, error_of
from lazaretto.store.sql.message_id_tables import MessageIdTables
from lazaretto.store.sql.queue_tables import QueueTables
from lazaretto.store.sql.session_tables import SessionTables
from lazaretto.store.sql.transaction import Transaction


class WholeQueues(QueueTables):
    """The part for queues, from remembered settings."""

    def __init__(self, context: WholeContext, bodies: BodyTables) -> None:
        super().__init__(context, bodies)
        self._whole = context

    def by_path(self, path_key: str) -> QueueRecord:
        return self._asked_for(self._whole.settings.by_path(path_key))

    def by_id(self, queue_id: int) -> QueueRecord:
        return self._asked_for(self._whole.settings.by_id(queue_id))

    def _asked_for(self, record: QueueRecord) -> QueueRecord:
        self._whole.asked.add(record.queue_id)
        return record

    def idle_at(self, queue_id: int) -> NoReturn:
        raise Unforeseen

    def has_room(self, queue_id: int, size: int, most: int) -> bool:
        # Asked within the commit, by what adds to the size.
        return True

    def save(self, record: QueueRecord) -> NoReturn:
        # Whoever changes settings holds the lock of the store.
        raise Unforeseen

    def mark_redacted(self, queue_id: int, redacted: bool) -> NoReturn:
        raise Unforeseen


class WholeBodies(BodyTables):
    """The part for bodies. It does not ask which are shared."""

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
    """The part for history. Commits with events run one after the other, so that followers miss none."""

    def __init__(self, context: WholeContext, causes: CauseTables) -> None:
        super().__init__(context, causes)
        self._whole = context
        #: The errors of attempts that this commit adds, None for those without.
        self.errors: dict[int, ErrorRecord | None] = {}

    def begin(self) -> None:
        """Start on a new commit."""
        self.errors, self._latest = {}, {}

    def look_ahead(self, keys: Sequence[int]) -> None:
        # What this commit writes cannot be read.
        super().look_ahead([key for key in keys if key not in self.errors])

    def forget_ahead(self) -> None:
        # It can be read no more, once the commit has written something.
        pass

    def insert_attempts(self, attempts: Sequence[tuple[int, AttemptRecord]]) -> None:
        super().insert_attempts(attempts)
        for key, attempt in attempts:
            error = self.errors.get(key)
            if attempt.error_type is not None:
                error = error_of(attempt)
            self.errors[key] = error

    def last_error(self, key: int) -> ErrorRecord | None:
        if self.errors.get(key) is not None:
            return self.errors[key]
        if key in self._latest:
            return self._latest[key]
        rows = self._whole.run("select_last_error", (key,))
        assert isinstance(rows, Planned)
        # What this commit adds has no error.
        rows.unaffected = key in self.errors
        row = rows.fetchone()
        return ErrorRecord(*row) if row else None

    def insert_events(self, kind: str, events: Sequence[NewEvent]) -> None:
        if any(is_placeholder(event.sequence_number) for event in events):
            raise Unforeseen
        self._whole.locks.hold(LOG, QueueLock.END)
        super().insert_events(kind, events)


class WholeMessageIds(MessageIdTables):
    """The part for message ids."""

    def remember(
        self, queue_id: int, message_id: str, partition_key: str, forget_after: int, sequence_number: int
    ) -> None:
        if is_placeholder(sequence_number):
            raise Unforeseen
        super().remember(queue_id, message_id, partition_key, forget_after, sequence_number)


class WholeSessions(SessionTables):
    """The part for sessions."""

    def __init__(self, context: WholeContext) -> None:
        super().__init__(context)
        #: Messages that hold no session, as far as they were looked at ahead.
        self._free: set[int] = set()

    def begin(self) -> None:
        """Start on a new commit."""
        self._free = set()

    def look_ahead(self, keys: Sequence[int]) -> None:
        """Read whether any of several messages holds a session."""
        unread = [key for key in keys if key not in self._free]
        if unread and self._held_by(unread):
            raise Unforeseen
        self._free.update(unread)

    def release(self, keys: Sequence[int]) -> list[HeldSessionRecord]:
        if not self._free.issuperset(keys) and self._held_by(keys):
            raise Unforeseen
        return []

    def hold(self, queue_id: int, session_id: str, key: int, held_by: str) -> None:
        self._free.discard(key)
        super().hold(queue_id, session_id, key, held_by)


class WholeTransaction(PgTransaction):
    """A transaction that plans a whole commit.

    It raises Unforeseen for work that it cannot plan. Its locks are those of single queues, not the store's.
    """

    plans = True

    def __init__(self, context: WholeContext, new_message_id: Callable[[], str], *, ranges: bool) -> None:
        super().__init__(context, new_message_id, ranges=ranges)
        self.whole = context
        self.bodies = WholeBodies(context)
        self.queues = WholeQueues(context, self.bodies)
        self.partitions = WholePartitions(context)
        self.sequences: WholeSequences = WholeSequences(context, self.queues, self.partitions)
        self.topics = WholeTopics(context, self.queues, self.bodies, self.sequences, self.partitions)
        self.message_ids = WholeMessageIds(context)
        self.history: WholeHistory = WholeHistory(context, self.causes)
        self.sessions: WholeSessions = WholeSessions(context)
        self.dialogs: WholeDialogs = WholeDialogs(context)

    def look_ahead(self, keys: Sequence[int]) -> None:
        mains = list(map(main_key, keys))
        self.sessions.look_ahead(mains)
        self.history.look_ahead(mains)

    def begin(self, now: int) -> None:
        super().begin(now)
        self.history.begin()
        self.sessions.begin()
        self.sequences.begin()
        self.dialogs.begin()

    def start_sending(self, queue: QueueRecord, messages: Sequence[NewMessage]) -> Callable[[], list[int]]:
        if queue.options.requires_duplicate_detection:
            return self._send_new(queue, messages)
        return self._send_all(queue, messages, {})

    def start_routing(self, route: Callable[[], list[int]]) -> Callable[[], list[int]] | None:
        keys: list[int] = []

        def plan() -> None:
            with self.sequences.finding():
                keys.extend(route())

        return self.sequences.found(keys) if self.whole.attempt(plan) else None

    def insert_row(self, row: MessageRow, body: bytes | None) -> None:
        if is_placeholder(row.key):
            raise Unforeseen
        super().insert_row(row, body)

    def insert_rows(self, rows: Sequence[tuple[MessageRow, bytes]]) -> None:
        if any(is_placeholder(row.key) for row, _ in rows):
            raise Unforeseen
        super().insert_rows(rows)

    def _send_new(self, queue: QueueRecord, messages: Sequence[NewMessage]) -> Callable[[], list[int]]:
        """Add messages whose ids were not sent before."""
        ids = [
            (message.message_id, detection_key(message.partition_key, queue.partitions))
            for message in messages
        ]
        # Whoever sends an id holds the lane of that id, also if its message goes to another one.
        lanes = {
            id_and_key: self.partitions.lane(queue, message.partition_key or message.message_id)
            for id_and_key, message in zip(ids, messages, strict=True)
            if id_and_key[0] is not None
        }
        duplicates = self.message_ids.find_sent(lanes)
        places: dict[object, int] = {}
        new: list[NewMessage] = []
        for place, id_and_key in enumerate(ids):
            if id_and_key not in duplicates and id_and_key not in places:
                places[place if id_and_key[0] is None else id_and_key] = len(new)
                new.append(messages[place])
        named = {at: id_and_key for id_and_key, at in places.items() if not isinstance(id_and_key, int)}
        sent = self._send_all(queue, new, named) if new else list
        first = lower_bound(queue.queue_id)

        def keys() -> list[int]:
            of_new = sent()
            return [
                first + duplicates[id_and_key]
                if id_and_key in duplicates
                else of_new[places[place if id_and_key[0] is None else id_and_key]]
                for place, id_and_key in enumerate(ids)
            ]

        return keys

    def _send_all(
        self, queue: QueueRecord, messages: Sequence[NewMessage], named: Mapping[int, Any]
    ) -> Callable[[], list[int]]:
        """Add messages, each to its lane; `named`: the ids to remember, by the places of their messages."""
        if queue.partitions == 1:
            lanes: Mapping[int, Sequence[int]] = {queue.queue_id: range(len(messages))}
        else:
            lanes = self.partitions.split(queue, messages)
        sent: list[tuple[Sequence[int], Callable[[], list[int]]]] = []
        for lane, places in lanes.items():
            sent.append((places, self._send(queue, lane, [messages[place] for place in places])))
            behind = {named[place]: len(places) - 1 - at for at, place in enumerate(places) if place in named}
            if behind:
                self._remember(queue, lane, behind)

        def keys() -> list[int]:
            keys_at = {place: key for places, some in sent for place, key in zip(places, some(), strict=True)}
            return [keys_at[place] for place in range(len(messages))]

        return sent[0][1] if len(sent) == 1 else keys

    def _remember(self, queue: QueueRecord, lane: int, behind: Mapping[Any, int]) -> None:
        """Remember the ids of messages that were just sent to a lane, and how many were sent behind each."""
        window = round(queue.options.duplicate_detection_window * 1_000_000)
        values = {
            "queue_id": lane,
            "ids": texts((message_id for message_id, _ in behind)),
            "partitions": texts((partition for _, partition in behind)),
            "behind": numbers(behind.values()),
            "forget_after": self.whole.now + window,
            "base": lower_bound(queue.queue_id),
        }
        self.whole.run("remember_sent", {**key_ranges(lane), **values})

    def _send(self, queue: QueueRecord, lane: int, messages: Sequence[NewMessage]) -> Callable[[], list[int]]:
        """Append messages to a lane."""
        queue_id, options, whole = queue.queue_id, queue.options, self.whole
        whole.locks.hold(lane, QueueLock.END)
        values, apart = self.new_messages(queue, messages)
        if apart:
            self.bodies.insert(apart)
        count = len(messages)
        values |= key_ranges(lane)
        values |= {"floor": whole.floors.get(lane, 0), "queue_id": lane, "now": whole.now, "count": count}
        sent = whole.run("send_one" if count == 1 else "send_next", values)
        if options.max_size is not None:
            whole.locks.hold(queue_id, QueueLock.HELD)
            size = sum(message.size for message in messages)
            whole.run("grow_within", {"queue_id": queue_id, "size": size, "most": options.max_size})
        whole.wake(lower_bound(lane), count)
        self.rates.count(queue_id, SENT, count)
        last = 0

        def note() -> None:
            nonlocal last
            assert isinstance(sent, Planned)
            last = sent.number() or 0
            whole.raise_floor(lane, last + count)

        whole.afterwards.append(note)
        first = lower_bound(lane) + 1
        return lambda: list(range(first + last, first + last + count))

    def take_clear(self, lane: int, limit: int, token: int, until: int) -> None:
        # More is done with what is taken here: it is looked for before the commit.
        self._ask_ahead(lane, limit)

    def _take(
        self,
        lane: int,
        limit: int,
        tokens: Sequence[int],
        until: int,
        *,
        look: bool = True,
        timers: bool = True,
        lease: Lease | None = None,
    ) -> Callable[[int], list[ReceivedMessage] | None]:
        taking = super()._take(lane, limit, tokens, until, look=look, timers=timers, lease=lease)
        if tokens[0] & RANGED:
            self.whole.locks.hold(lane, QueueLock.HEAD)
        else:
            self.whole.locks.share(lane, QueueLock.HEAD)
        self.whole.note_lock(until)
        return taking

    def take_fresh(self, queue_id: int, limit: int, token: int, until: int) -> list[ReceivedMessage]:
        # Known before the commit, because more is done with them.
        self.whole.note_lock(until)
        return Transaction.take_fresh(self, queue_id, limit, token, until)

    def delete_held(self, queue: QueueRecord, held: Mapping[int, Sequence[int]]) -> bool:
        for token, keys in held.items():
            for lane in set(map(self.whole.lane_of, keys)):
                queue_id = queue_of_lane(lane)
                sized = self.queues.sized(queue_id) is not None
                if sized:
                    self.whole.locks.hold(queue_id, QueueLock.HELD)
                if token & RANGED or sized:
                    self.whole.locks.hold(lane, QueueLock.HELD)
                else:
                    self.whole.locks.share(lane, QueueLock.HELD)
        return super().delete_held(queue, held)

    def row(self, key: int) -> MessageRow | None:
        row = super().row(key)
        if row is not None:
            self._refuse_claimed([row])
        return row

    def rows(self, keys: Sequence[int]) -> dict[int, MessageRow]:
        rows = super().rows(keys)
        self._refuse_claimed(rows.values())
        return rows

    def _refuse_claimed(self, rows: Iterable[MessageRow]) -> None:
        """Raise Unforeseen if a claim may lock one of these messages by a range."""
        if any(row.state == FRESH and row.due is None for row in rows):
            (claimed,) = self.whole.run("any_claimed").fetchone()
            if claimed:
                raise Unforeseen

    def renew_lock(self, key: int, token: int, until: int) -> bool:
        if token & RANGED:
            self.whole.write_range_locks([key])
        self.whole.locks.share(self.whole.lane_of(key), QueueLock.HELD)
        self.whole.note_lock(until)
        values = {"key": key, "token": token, "until": until, "now": self.whole.now}
        self.whole.run("prolong_lock", values)
        return True
