"""The store's contract in SQL: what an operation may do within one commit, on any database."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lazaretto.errors import StoreError
from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import LAST_SEQUENCE, in_main, lower_bound, queue_of, sequence_of, upper_bound
from lazaretto.model.messages import PeekedMessage, ReceivedMessage
from lazaretto.store.contract.records import (
    FRESH,
    READY,
    SCHEDULED,
    STATES,
    SUSPECT,
    HeldSessionRecord,
    MessageRow,
    MessageStanding,
    NewMessage,
    Notice,
    QueueRecord,
    SessionAddress,
    SessionRecord,
)
from lazaretto.store.sql.body_tables import BodyTables
from lazaretto.store.sql.claim_tables import ClaimTables
from lazaretto.store.sql.dialog_tables import DialogTables
from lazaretto.store.sql.history_tables import HistoryTables
from lazaretto.store.sql.queue_tables import QueueTables
from lazaretto.store.sql.rows import INLINE_BODY, Cursor, Memory
from lazaretto.store.sql.statements import Dialect
from lazaretto.store.sql.topic_tables import TopicTables
from lazaretto.store.sql.worker_tables import WorkerTables

#: What update_rows stores of a message, besides its keys.
_standing = operator.attrgetter(
    "state", "due", "expires", "enqueued", "session_id", "deliveries", "failures", "worker_deaths",
    "lock_expiries", "delivery_count", "cycle_attempts", "cycle", "moves", "generation", "deferred",
    "enqueued_sequence_number", "resubmitted_from", "suspect", "headers",
)  # fmt: skip

#: How many notices of one commit are kept: a log of more helps nobody.
_MOST_NOTICES = 1_000

_PLACES = (Subqueue.MAIN, Subqueue.DEAD_LETTER, Subqueue.TRANSFER_DEAD_LETTER)


class SqlTransaction(
    QueueTables, BodyTables, WorkerTables, ClaimTables, TopicTables, DialogTables, HistoryTables
):
    """One connection's work within one commit, or within one snapshot when it only reads."""

    def __init__(
        self, execute: Callable[..., Cursor], dialect: Dialect, memory: Memory, worker: str, prefix: str
    ) -> None:
        super().__init__(execute, dialect, memory)
        self._random = random.Random()  # noqa: S311 - tokens fence off stale holders, they guard no secret
        self._prefix = prefix
        self._number = 0
        self.worker = worker
        self.now = 0
        #: Where there may be something to receive, and for how many receivers.
        self.woken: dict[int, int] = {}
        #: How far this commit has moved on into the fresh messages, by queue.
        self.cursors: dict[int, int] = {}
        #: What is logged once this commit is done.
        self.notices: list[Notice] = []

    def begin(self, now: int) -> None:
        """Start on a new commit."""
        self.now = now
        self.registers = False
        if self.woken:
            self.woken = {}
        if self.cursors:
            self.cursors = {}
        if self.notices:
            self.notices = []

    def undone(self) -> None:
        """Forget what is known by something that was undone."""
        self._memory.forget()

    def random_token(self, messages: int = 1) -> int:
        return self._random.getrandbits(63)

    def random_fraction(self) -> float:
        return self._random.random()

    def wake(self, key: int, messages: int = 1) -> None:
        place = key >> 42
        self.woken[place] = self.woken.get(place, 0) + messages

    def tell(self, notice: Notice) -> None:
        if len(self.notices) < _MOST_NOTICES:
            self.notices.append(notice)

    # -- messages -------------------------------------------------------------------------------

    def _last_sequence(self, queue_id: int) -> int:
        known = self._memory.last_sequences
        last = known.get(queue_id)
        if last is None:
            row = self._run("select_high_water", (queue_id,)).fetchone()
            last = row[0] if row else 0
            for place in _PLACES:
                # What is below was seen before; many that are gone may stand there.
                bounds = (lower_bound(queue_id, place) + last, upper_bound(queue_id, place))
                row = self._run("select_last_key", bounds).fetchone()
                if row:
                    last = max(last, sequence_of(row[0]))
            known[queue_id] = last
        return last

    def _take_sequences(self, queue_id: int, count: int) -> int:
        """Return the first of `count` new sequence numbers."""
        last = self._last_sequence(queue_id)
        if last + count > LAST_SEQUENCE:
            raise StoreError(f"the queue has used all of its {LAST_SEQUENCE} sequence numbers")
        self._memory.last_sequences[queue_id] = last + count
        return last + 1

    def take_key(self, queue_id: int, count: int = 1) -> int:
        return lower_bound(queue_id) + self._take_sequences(queue_id, count)

    def insert_messages(
        self, queue: QueueRecord, messages: Sequence[NewMessage], *, force_fresh: bool = False
    ) -> list[int]:
        count = len(messages)
        key = lower_bound(queue.queue_id) + self._take_sequences(queue.queue_id, count)
        keys = list(range(key, key + count))
        now, sessions = self.now, queue.options.requires_session
        longest = queue.options.default_time_to_live
        limit = None if longest is None else round(longest * 1_000_000)
        values: list[Any] = []
        for message in messages:
            body: bytes | None = message.body
            body_id: int | None = None
            if len(message.body) > INLINE_BODY:
                body, body_id = None, self.insert_body(message.body)
            message_id = message.message_id
            if message_id is None:
                message_id = self.new_message_id()
            ttl, due, state = message.time_to_live, None, FRESH
            if limit is not None and (ttl is None or ttl > limit):
                ttl = limit
            expires = None if ttl is None else now + ttl
            due = expires
            scheduled = message.scheduled
            if scheduled is not None and scheduled > now and not force_fresh:
                state = SCHEDULED
                due = scheduled if expires is None else min(scheduled, expires)
            session_id = message.session_id if sessions else None
            values += (
                key, state, due, expires, now, message_id, session_id, message.headers, body_id, body,
            )  # fmt: skip
            key += 1
        if sessions:
            self.note_lanes(queue.queue_id, (message.session_id for message in messages))
        self._insert("insert_messages", values, count)
        sized = self.sized(queue.queue_id)
        if sized is not None:
            self.grow(sized, sum(len(m.body) + len(m.headers or b"") for m in messages))
        self.wake(keys[0], count)
        return keys

    def new_message_id(self) -> str:
        self._number += 1
        return f"{self._prefix}{self._number:08x}"

    def insert_row(self, row: MessageRow, body: bytes | None) -> None:
        values = msgspec.structs.asdict(row)
        if row.body_id is None and body is not None and len(body) > INLINE_BODY:
            values["body_id"] = self.insert_body(body)
            body = None
        self.note_lanes(queue_of(row.key), (row.session_id,))
        self._run("insert_full_message", {**values, "body": body})
        self.count_bytes([row.key], 1)
        self.wake(row.key)

    def take_clear(self, queue_id: int, limit: int, token: int, until: int) -> list[ReceivedMessage] | None:
        first, last = lower_bound(queue_id), upper_bound(queue_id)
        if self.anything_due() or self.select_suspect(first, last) or self.select_ready(first, last, 1):
            return None
        return self.take_fresh(queue_id, limit, token, until)

    def start_taking(
        self, queue_id: int, wanted: Sequence[tuple[int, int]], until: int
    ) -> Sequence[Callable[[], list[ReceivedMessage] | None]] | None:
        return None

    def take_fresh(self, queue_id: int, limit: int, token: int, until: int) -> list[ReceivedMessage]:
        last, now = upper_bound(queue_id), self.now
        start = self.cursors.get(queue_id) or self._memory.cursors.get(queue_id) or lower_bound(queue_id)
        rows = self._run("select_fresh", (start, last, now, limit))
        messages = [ReceivedMessage(*row) for row in rows]
        if messages:
            first, final = messages[0].key, messages[-1].key
            self.cursors[queue_id] = final
            if first == final:
                self._run("lock_one", (until, token, now, self.worker, first))
            else:
                self._lock_range(first, final, token, until)
        return messages

    def _lock_range(self, first: int, last: int, token: int, until: int | None) -> None:
        """Lock the fresh messages between two keys."""
        values = {"first": first, "last": last, "state": FRESH, "token": token, "until": until}
        self._run("lock_range", {**values, "now": self.now, "worker": self.worker})

    def select_ready(self, first: int, last: int, limit: int) -> list[ReceivedMessage]:
        rows = self._run("select_ready", (first, last, self.now, limit))
        return [ReceivedMessage(*row) for row in rows]

    def count_fitting(self, first: int, last: int, limit: int, most: int) -> int:
        start = last
        if in_main(last):
            queue_id = queue_of(last)
            start = self.cursors.get(queue_id) or self._memory.cursors.get(queue_id) or first
        values = {"first": first, "last": last, "start": start, "now": self.now, "limit": limit}
        return _count_fitting(self._run("select_sizes", values), most)

    def count_fitting_of_session(self, queue_id: int, session_id: str, limit: int, most: int) -> int:
        values = {"queue_id": queue_id, "session_id": session_id, "now": self.now, "limit": limit}
        return _count_fitting(self._run("select_session_sizes", values), most)

    def select_session_messages(
        self, queue_id: int, session_id: str, state: int, before: int, limit: int
    ) -> list[ReceivedMessage]:
        values = (queue_id, session_id, state, self.now, before, limit)
        return _to_hand_over(self._run("select_session_messages", values), state)

    def select_messages(self, keys: Sequence[int], state: int) -> list[ReceivedMessage]:
        return _to_hand_over(self._run("select_messages", (self._ids(keys), state)), state)

    def lock(self, keys: Sequence[int], token: int, until: int | None) -> None:
        lock = (until, token, self.now, self.worker)
        if len(keys) == 1:
            self._run("lock_one", (*lock, keys[0]))
        else:
            self._run("lock_keys", (*lock, self._ids(keys)))

    def held(self, keys: Sequence[int], token: int) -> set[int]:
        values = {"keys": self._ids(keys), "token": token, "now": self.now}
        return {key for (key,) in self._run("select_locked", values)}

    def held_rows(self, keys: Sequence[int], token: int) -> dict[int, MessageRow]:
        values = {"keys": self._ids(keys), "token": token, "now": self.now}
        return {row[0]: MessageRow(*row) for row in self._run("select_held", values)}

    def delete_held(self, held: Mapping[int, Sequence[int]]) -> bool:
        return all(self._delete_held(keys, token) for token, keys in held.items())

    def _delete_held(self, keys: Sequence[int], token: int) -> bool:
        self._keep_high_water(keys)
        self.count_bytes(keys, -1)
        if len(keys) == 1:
            cursor = self._run("delete_one_locked", (keys[0], token, self.now))
        else:
            cursor = self._run("delete_locked", (self._ids(keys), token, self.now))
        return cursor.rowcount == len(keys)

    def delete_messages(self, keys: Sequence[int]) -> None:
        self._keep_high_water(keys)
        self.count_bytes(keys, -1)
        self._run("delete_messages", (self._ids(keys),))

    def _keep_high_water(self, keys: Sequence[int]) -> None:
        """Keep a queue's highest sequence number before the last message that shows it goes."""
        for queue_id in set(map(queue_of, keys)):
            number = max(sequence_of(key) for key in keys if queue_of(key) == queue_id)
            if number >= self._last_sequence(queue_id):
                self._run("set_high_water", {"queue_id": queue_id, "sequence_number": number})

    def row(self, key: int) -> MessageRow | None:
        row = self._run("select_row", (key,)).fetchone()
        return MessageRow(*row) if row else None

    def rows(self, keys: Sequence[int]) -> dict[int, MessageRow]:
        return {row[0]: MessageRow(*row) for row in self._run("select_rows", (self._ids(keys),))}

    def body(self, key: int) -> bytes:
        (body,) = self._run("select_body", (key,)).fetchone()
        return bytes(body)

    def save_row(self, row: MessageRow, new_key: int | None = None) -> None:
        values = msgspec.structs.asdict(row)
        values["new_key"] = row.key if new_key is None else new_key
        self.count_bytes([row.key], -1)
        self.note_lanes(queue_of(values["new_key"]), (row.session_id,))
        self._run("update_row", values)
        self.count_bytes([values["new_key"]], 1)
        if row.state in (FRESH, READY, SUSPECT):
            self.wake(values["new_key"])

    def save_rows(self, rows: Mapping[int, MessageRow]) -> None:
        self.count_bytes([row.key for row in rows.values()], -1)
        values: list[Any] = []
        for new_key, row in rows.items():
            values += (row.key, new_key, *_standing(row))
            self.note_lanes(queue_of(new_key), (row.session_id,))
            if row.state in (FRESH, READY, SUSPECT):
                self.wake(new_key)
        self._insert("update_rows", values, len(rows))
        self.count_bytes(list(rows), 1)

    def save_counters(self, row: MessageRow) -> None:
        self._run("update_counters", {"key": row.key, **row.counters._asdict()})

    def renew_lock(self, key: int, token: int, until: int) -> bool:
        values = {"key": key, "token": token, "until": until, "now": self.now}
        return self._run("renew_lock", values).rowcount == 1

    def renew_locks(self, keys: Sequence[int], token: int, until: int) -> None:
        self._run("renew_locks", {"keys": self._ids(keys), "token": token, "until": until, "now": self.now})

    def _by_now(self) -> dict[str, int]:
        """Return the moment that timers are compared with, as the parameters of queries."""
        return {"now": self.now}

    def anything_due(self) -> bool:
        return bool(self._run("anything_due", self._by_now()).fetchone()[0])

    def due(self, limit: int) -> list[MessageRow]:
        values = {**self._by_now(), "limit": limit}
        return [MessageRow(*row) for row in self._run("select_due", values)]

    def active(self, first: int, last: int, limit: int) -> list[MessageRow]:
        return [MessageRow(*row) for row in self._run("select_active", (first, last, limit))]

    def make_due(self, first: int, last: int) -> None:
        self._run("make_due", {"now": self.now, "first": first, "last": last})

    def next_due(self) -> int | None:
        found = [
            self._run(name, self._by_now()).fetchone()[0]
            for name in ("next_due", "next_due_session", "next_due_claim", "next_idle")
        ]
        return min((due for due in found if due is not None), default=None)

    def peek(self, first: int, last: int, limit: int, *, delayed: bool) -> list[PeekedMessage]:
        return _peeked(self._run("peek_delayed" if delayed else "peek", (first, last, limit)))

    def peek_keys(self, keys: Sequence[int]) -> list[PeekedMessage]:
        return _peeked(self._run("peek_keys", (self._ids(keys),)))

    def select_suspect(self, first: int, last: int) -> ReceivedMessage | None:
        return suspect_of(self._run("select_suspect", (first, last, self.now)).fetchone())

    # -- sessions -------------------------------------------------------------------------------

    def session_ids(self, queue_id: int) -> list[str]:
        return [name for (name,) in self._run("select_sessions", {"queue_id": queue_id})]

    def next_session_id(self, queue_id: int, after: str) -> str | None:
        row = self._run("next_session_id", {"queue_id": queue_id, "after": after}).fetchone()
        return row[0] if row else None

    def first_receivable(self, queue_id: int, session_id: str) -> int | None:
        (first,) = self._run("first_receivable_key", (queue_id, session_id, self.now)).fetchone()
        delayed = self.first_delayed(queue_id, session_id)
        return None if first is None or (delayed is not None and delayed < first) else first

    def first_delayed(self, queue_id: int, session_id: str) -> int | None:
        (key,) = self._run("first_delayed_key", (queue_id, session_id)).fetchone()
        return None if key is None else int(key)

    def session(self, queue_id: int, session_id: str) -> SessionRecord | None:
        row = self._run("select_session", (queue_id, session_id)).fetchone()
        return SessionRecord(*row) if row else None

    def lock_session(self, queue_id: int, session_id: str, token: int, until: int) -> None:
        values = {
            "queue_id": queue_id,
            "session_id": session_id,
            "token": token,
            "until": until,
            "worker": self.worker,
        }
        self._run("lock_session", values)

    def renew_session(self, queue_id: int, session_id: str, until: int) -> None:
        self._run("renew_session", {"queue_id": queue_id, "session_id": session_id, "until": until})

    def unlock_session(self, queue_id: int, session_id: str) -> None:
        values = {"queue_id": queue_id, "session_id": session_id}
        self._run("unlock_session", values)
        self._run("delete_idle_session", values)
        self.wake(lower_bound(queue_id))

    def hold_session(self, queue_id: int, session_id: str, key: int, held_by: str) -> None:
        values = {"queue_id": queue_id, "session_id": session_id, "key": key, "held_by": held_by}
        self._run("hold_session", values)

    def release_sessions(self, keys: Sequence[int]) -> list[SessionAddress]:
        rows = self._run("release_sessions", (self._ids(keys),)).fetchall()
        released = [SessionAddress(*row) for row in rows]
        for session in released:
            self._run("delete_idle_session", msgspec.structs.asdict(session))
            self.wake(lower_bound(session.queue_id))
        return released

    def sessions_held_by(self, keys: Sequence[int]) -> dict[int, str]:
        return dict(self._run("select_sessions_held_by", (self._ids(keys),)).fetchall())

    def held_sessions(self, first: int, last: int, limit: int) -> list[HeldSessionRecord]:
        values = {"first": first, "last": last, "limit": limit}
        return [HeldSessionRecord(*row) for row in self._run("select_held_sessions", values)]

    def session_keys(self, queue_id: int, session_id: str) -> list[MessageStanding]:
        rows = self._run("select_session_keys", (queue_id, session_id))
        return [MessageStanding(*row) for row in rows]

    def set_session_state(self, queue_id: int, session_id: str, state: bytes | None) -> None:
        values = {"queue_id": queue_id, "session_id": session_id, "state": state}
        self._run("set_session_state", values)
        if state is None:
            self._run("delete_idle_session", {"queue_id": queue_id, "session_id": session_id})

    def session_held(self, queue_id: int, session_id: str) -> list[MessageRow]:
        rows = self._run("select_session_locked", (queue_id, session_id)).fetchall()
        return [MessageRow(*row) for row in rows]

    def due_sessions(self, limit: int) -> list[SessionAddress]:
        rows = self._run("select_due_sessions", {**self._by_now(), "limit": limit})
        return [SessionAddress(queue_id, session_id) for queue_id, session_id, _token in rows]

    # -- duplicate detection --------------------------------------------------------------------

    def known_message_id(self, queue_id: int, message_id: str, partition_key: str) -> int | None:
        values = (queue_id, message_id, partition_key, self.now)
        row = self._run("select_message_id", values).fetchone()
        return row[0] if row else None

    def remember_message_id(
        self, queue_id: int, message_id: str, partition_key: str, forget_after: int, sequence_number: int
    ) -> None:
        values = (queue_id, message_id, partition_key, forget_after, sequence_number)
        self._run("insert_message_id", values)

    def forget_message_id(
        self, queue_id: int, message_id: str, partition_key: str, sequence_number: int
    ) -> None:
        self._run("delete_message_id", (queue_id, message_id, partition_key, sequence_number))


def suspect_of(row: Sequence[Any] | None) -> ReceivedMessage | None:
    """Return what select_suspect found, whose last column is none of its attempts."""
    if row is None:
        return None
    *fields, _ = row
    message = ReceivedMessage(*fields)
    message.alone = True
    return message


def _to_hand_over(rows: Iterable[Sequence[Any]], state: int) -> list[ReceivedMessage]:
    messages = [ReceivedMessage(*row) for row in rows]
    if state == SUSPECT:
        for message in messages:
            message.alone = True
    return messages


def _peeked(rows: Iterable[Sequence[Any]]) -> list[PeekedMessage]:
    return [
        PeekedMessage(*fields, state=STATES[state], locked_until_micros=locked_until)
        for *fields, state, locked_until in rows
    ]


def _count_fitting(sizes: Iterable[tuple[int]], most: int) -> int:
    """Return how many messages of these sizes, from the first on, have `most` bytes together; at least 1."""
    together = itertools.accumulate(size for (size,) in sizes)
    return max(1, sum(1 for _ in itertools.takewhile(lambda size: size <= most, together)))
