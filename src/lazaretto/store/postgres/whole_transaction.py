"""A whole commit: all its statements are known before the first one is sent.

So it holds no lock while it waits for the network. It remembers the settings of queues, and the commit checks
them. The server finds numbers, cursors and rows, or they are read before and the commit checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import lower_bound, queue_of_lane, upper_bound
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.rates import SENT
from lazaretto.store.contract.records import (
    FRESH,
    SCHEDULED,
    AttemptRecord,
    ErrorRecord,
    NewEvent,
    NewMessage,
    QueueRecord,
    SessionAddress,
)
from lazaretto.store.postgres.arrays import blobs, numbers, texts
from lazaretto.store.postgres.partition_heads import WholePartitions
from lazaretto.store.postgres.pipeline import text
from lazaretto.store.postgres.pipelined_transaction import RANGED, PgTransaction
from lazaretto.store.postgres.plan import Planned, Unforeseen
from lazaretto.store.postgres.queue_locks import QueueLock
from lazaretto.store.postgres.whole_context import LOG, WholeContext
from lazaretto.store.sql.body_tables import BodyTables
from lazaretto.store.sql.cause_tables import CauseTables
from lazaretto.store.sql.history_tables import HistoryTables
from lazaretto.store.sql.partition_tables import PartitionTables
from lazaretto.store.sql.queue_tables import QueueTables
from lazaretto.store.sql.rows import INLINE_BODY
from lazaretto.store.sql.sequence_numbers import SequenceNumbers
from lazaretto.store.sql.session_tables import SessionTables
from lazaretto.store.sql.sql_transaction import SqlTransaction


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
        if record.options.dialogs:
            raise Unforeseen
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


class WholeSequences(SequenceNumbers):
    """The part for sequence numbers. The server assigns them."""

    def __init__(self, context: WholeContext, queues: QueueTables, partitions: PartitionTables) -> None:
        super().__init__(context, queues, partitions)
        self._whole = context

    def take_keys(self, lane: int, count: int = 1) -> NoReturn:
        raise Unforeseen

    def keep_highest(self, keys: Sequence[int]) -> None:
        # In one order in all commits: the rows that are replaced are locked.
        for lane, number in sorted(self._highest(keys).items()):
            # Whoever removes a message of a higher number keeps that one.
            if number >= self._whole.floors.get(lane, 0):
                self._keep_number(lane, number)

    def _keep_number(self, lane: int, number: int) -> None:
        whole = self._whole
        sent = whole.run("keep_high_water", {**_places(lane), "queue_id": lane, "number": number})

        def note() -> None:
            (above,) = sent.fetchone()
            whole.raise_floor(lane, number if above is None else above)

        whole.afterwards.append(note)


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

    def insert_attempt(self, key: int, attempt: AttemptRecord) -> None:
        super().insert_attempt(key, attempt)
        error = self.errors.get(key)
        if attempt.error_type is not None:
            error = ErrorRecord(attempt.error_type, attempt.error_message, attempt.stack, attempt.site)
        self.errors[key] = error

    def last_error(self, key: int) -> ErrorRecord | None:
        if self.errors.get(key) is not None:
            return self.errors[key]
        found = self._whole.run("select_last_error", (key,))
        assert isinstance(found, Planned)
        # What this commit adds has no error.
        found.unaffected = key in self.errors
        row = found.fetchone()
        return ErrorRecord(*row) if row else None

    def insert_events(self, kind: str, events: Sequence[NewEvent]) -> None:
        self._whole.locks.hold(LOG, QueueLock.END)
        super().insert_events(kind, events)


class WholeSessions(SessionTables):
    """The part for sessions."""

    def release(self, keys: Sequence[int]) -> list[SessionAddress]:
        if self.held_by(keys):
            raise Unforeseen
        return []


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
        self.sequences = WholeSequences(context, self.queues, self.partitions)
        self.history: WholeHistory = WholeHistory(context, self.causes)
        self.sessions = WholeSessions(context)

    def begin(self, now: int) -> None:
        super().begin(now)
        self.history.errors = {}

    def start_sending(self, queue: QueueRecord, messages: Sequence[NewMessage]) -> Callable[[], list[int]]:
        if queue.options.requires_duplicate_detection:
            return self._send_new(queue, messages)
        return self._send_all(queue, messages, {})

    def _send_new(self, queue: QueueRecord, messages: Sequence[NewMessage]) -> Callable[[], list[int]]:
        """Add messages whose ids were not sent before."""
        ids = [(message.message_id, message.partition_key or "") for message in messages]
        # Whoever sends an id holds the lane of that id, also if its message goes to another one.
        lanes = {
            given: self.partitions.lane(queue, message.partition_key or message.message_id)
            for given, message in zip(ids, messages, strict=True)
            if given[0] is not None
        }
        known = self.message_ids.find_sent(lanes)
        places: dict[object, int] = {}
        new: list[NewMessage] = []
        for place, given in enumerate(ids):
            if given not in known and given not in places:
                places[place if given[0] is None else given] = len(new)
                new.append(messages[place])
        named = {at: given for given, at in places.items() if not isinstance(given, int)}
        sent = self._send_all(queue, new, named) if new else list
        first = lower_bound(queue.queue_id)

        def keys() -> list[int]:
            of_new = sent()
            return [
                first + known[given]
                if given in known
                else of_new[places[place if given[0] is None else given]]
                for place, given in enumerate(ids)
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
            found = {place: key for places, some in sent for place, key in zip(places, some(), strict=True)}
            return [found[place] for place in range(len(messages))]

        return sent[0][1] if len(sent) == 1 else keys

    def _remember(self, queue: QueueRecord, lane: int, behind: Mapping[Any, int]) -> None:
        """Remember the ids of messages that were just sent to a lane, and how many were sent behind each."""
        window = round(queue.options.duplicate_detection_window * 1_000_000)
        values = {
            "queue_id": lane,
            "ids": texts((message_id for message_id, _ in behind), _encode),
            "partitions": texts((partition for _, partition in behind), _encode),
            "behind": numbers(behind.values()),
            "forget_after": self.whole.now + window,
            "base": lower_bound(queue.queue_id),
        }
        self.whole.run("remember_sent", {**_places(lane), **values})

    def _send(self, queue: QueueRecord, lane: int, messages: Sequence[NewMessage]) -> Callable[[], list[int]]:
        """Append messages to a lane."""
        queue_id, options, whole = queue.queue_id, queue.options, self.whole
        whole.locks.hold(lane, QueueLock.END)
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
                **_places(lane),
                "floor": whole.floors.get(lane, 0),
                "queue_id": lane,
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
        if options.max_size is not None:
            whole.locks.hold(queue_id, QueueLock.HELD)
            size = sum(len(m.body) + len(m.headers or b"") for m in messages)
            whole.run("grow_within", {"queue_id": queue_id, "size": size, "most": options.max_size})
        whole.wake(lower_bound(lane), count)
        self.rates.count(queue_id, SENT, count)
        last = 0

        def note() -> None:
            nonlocal last
            (last,) = sent.fetchone()
            whole.raise_floor(lane, last + count)

        whole.afterwards.append(note)
        first = lower_bound(lane) + 1
        return lambda: list(range(first + last, first + last + count))

    def _take(
        self, lane: int, limit: int, tokens: Sequence[int], until: int, *, look: bool = True
    ) -> Callable[[int], list[ReceivedMessage] | None]:
        taking = super()._take(lane, limit, tokens, until, look=look)
        if tokens[0] & RANGED:
            self.whole.locks.hold(lane, QueueLock.HEAD)
        else:
            self.whole.locks.share(lane, QueueLock.HEAD)
        self.whole.note_lock(until)
        return taking

    def take_fresh(self, queue_id: int, limit: int, token: int, until: int) -> list[ReceivedMessage]:
        # Known before the commit, because more is done with them.
        self.whole.note_lock(until)
        return SqlTransaction.take_fresh(self, queue_id, limit, token, until)

    def delete_held(self, held: Mapping[int, Sequence[int]]) -> bool:
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
        return super().delete_held(held)

    def renew_lock(self, key: int, token: int, until: int) -> bool:
        if token & RANGED:
            self.whole.write_range_locks()
        self.whole.locks.share(self.whole.lane_of(key), QueueLock.HELD)
        self.whole.note_lock(until)
        values = {"key": key, "token": token, "until": until, "now": self.whole.now}
        self.whole.run("prolong_lock", values)
        return True


def _places(lane: int) -> dict[str, int]:
    """Return the key ranges of a lane's messages, as parameters."""
    return {
        "main": lower_bound(lane),
        "dead": lower_bound(lane, Subqueue.DEAD_LETTER),
        "transfer": lower_bound(lane, Subqueue.TRANSFER_DEAD_LETTER),
        "most": upper_bound(lane) - lower_bound(lane),
    }


def _encode(value: str) -> bytes:
    return text(value).encode()
