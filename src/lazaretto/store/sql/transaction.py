"""A commit's work in SQL, on any database: messages here, each other subject in a part of its own."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from lazaretto.model.keys import lower_bound, main_key, queue_of, upper_bound
from lazaretto.model.messages import SENT_COLUMNS, ReceivedMessage, sent_columns
from lazaretto.model.rates import SENT
from lazaretto.store.records.messages import (
    DELAYED,
    FRESH,
    READY,
    SCHEDULED,
    SUSPECT,
    Again,
    Leased,
    MessageRow,
    NewMessage,
    Notice,
    QueueRecord,
    Share,
)
from lazaretto.store.runtime.processes import draw
from lazaretto.store.sql.access_tables import AccessTables, CommandTables
from lazaretto.store.sql.body_tables import BodyTables
from lazaretto.store.sql.cause_tables import CauseTables
from lazaretto.store.sql.claim_tables import ClaimTables
from lazaretto.store.sql.commit_context import CommitContext
from lazaretto.store.sql.dialog_tables import DialogTables
from lazaretto.store.sql.history_tables import HistoryTables, RateTables, SampleTables
from lazaretto.store.sql.listing_tables import ListingTables, OverviewTables
from lazaretto.store.sql.message_id_tables import MessageIdTables
from lazaretto.store.sql.message_reads import MessageReads
from lazaretto.store.sql.queue_tables import QueueTables
from lazaretto.store.sql.repair_tables import RepairTables
from lazaretto.store.sql.rows import INLINE_BODY
from lazaretto.store.sql.sequence_numbers import PartitionTables, SequenceNumbers
from lazaretto.store.sql.session_tables import SessionTables
from lazaretto.store.sql.topic_tables import TopicTables
from lazaretto.store.sql.words import standing, with_past
from lazaretto.store.sql.worker_tables import WorkerTables

#: Tokens that are made at once: the system's source of randomness lets other threads run each time.
_TOKENS = 64
#: How a message stands that has no times: its state, when it comes due, and when it expires.
_AT_ONCE: tuple[int, int | None, int | None] = FRESH, None, None


class Transaction(MessageReads):
    """One connection's work within one commit, or within one snapshot when it only reads.

    Messages themselves are written here; each other subject has a part of its own.
    """

    plans = False

    def __init__(self, context: CommitContext, new_message_id: Callable[[], str]) -> None:
        super().__init__(context)
        self.new_message_id = new_message_id
        self._tokens: list[int] = []
        self.bodies = BodyTables(context)
        self.samples = SampleTables(context)
        self.rates = RateTables(context)
        self.queues = QueueTables(context, self.bodies)
        self.partitions = PartitionTables(context)
        self.sequences = SequenceNumbers(context, self.queues, self.partitions)
        self.sessions = SessionTables(context)
        self.topics = TopicTables(context, self.queues, self.bodies, self.sequences, self.partitions)
        self.message_ids = MessageIdTables(context)
        self.dialogs = DialogTables(context)
        self.claims = ClaimTables(context, self.queues, self.bodies, self.sequences)
        self.workers = WorkerTables(context)
        self.causes = CauseTables(context)
        self.history = HistoryTables(context, self.causes)
        self.repairs = RepairTables(context, self.causes, self.history)
        self.commands = CommandTables(context)
        self.access = AccessTables(context)
        self.listings = ListingTables(context, self.history)
        self.overview = OverviewTables(context)

    @property
    def now(self) -> int:
        """The store's time, the same for the whole operation."""
        return self.context.now

    @property
    def worker(self) -> str:
        """The name under which this process's locks are recorded."""
        return self.context.worker

    def begin(self, now: int) -> None:
        """Start on a new commit."""
        self.context.begin(now)

    def undone(self) -> None:
        """Forget remembered values that came from undone work."""
        self.context.undone()

    def random_token(self, messages: int = 1) -> int:
        """Return a new token for a lock on up to `messages` messages."""
        # Who knows a lock's token can settle what it holds, so nobody may guess one.
        if not self._tokens:
            self._tokens = [number >> 1 for (number,) in struct.iter_unpack("Q", os.urandom(8 * _TOKENS))]
        return self._tokens.pop()

    def random_fraction(self) -> float:
        """Return a number from 0 to 1, for jitter."""
        return draw()

    def wake(self, key: int, messages: int = 1) -> None:
        """After the commit, wake receivers of the subqueue that contains `key`, for a number of messages."""
        self.context.wake(key, messages)

    def look_again(self, key: int, at: int) -> None:
        """Wake receivers of the subqueue that contains `key` at a time, in this process."""
        self.context.identity.again[key >> 42] = at

    def tell(self, notice: Notice) -> None:
        """Log a notice after the commit succeeds."""
        self.context.tell(notice)

    # -- messages -------------------------------------------------------------------------------

    def insert_messages(
        self,
        queue: QueueRecord,
        messages: Sequence[NewMessage],
        *,
        lane: int | None = None,
        force_fresh: bool = False,
    ) -> list[int]:
        """Add messages at the queue's end, or at that of a lane of it; return their keys."""
        if lane is None and queue.partitions > 1:
            return self._insert_apart(queue, messages, force_fresh=force_fresh)
        context, count = self.context, len(messages)
        key = self.sequences.take_keys(queue.queue_id if lane is None else lane, count)
        values, apart = self.new_values(queue, messages, key, force_fresh)
        if apart:
            self.bodies.insert(apart)
        if queue.options.requires_session:
            self.dialogs.note_streams(queue.queue_id, (message.session_id for message in messages))
        context.insert("insert_messages", values, count)
        if not queue.plain and (sized := self.queues.sized(queue.queue_id)) is not None:
            self.queues.grow(sized, sum(message.size for message in messages))
        context.wake(key, count)
        self.rates.count(queue.queue_id, SENT, count)
        return list(range(key, key + count))

    def new_values(
        self, queue: QueueRecord, messages: Sequence[NewMessage], key: int = 0, force_fresh: bool = False
    ) -> tuple[list[Any], dict[int, bytes]]:
        """Return what is written of new messages from a key on, and their bodies that stand apart, by id.

        Of each there is its key, the time, and what NEW has.
        """
        now, sessions, longest = self.context.now, queue.options.requires_session, queue.longest_life
        values: list[Any] = []
        apart: dict[int, bytes] = {}
        for number, message in enumerate(messages, key):
            body: bytes | None = message.body
            body_id: int | None = None
            if len(message.body) > INLINE_BODY:
                body_id, body = self.bodies.take_id(), None
                apart[body_id] = message.body
            message_id = message.message_id
            if message_id is None:
                message_id = self.new_message_id()
            state, due, expires = _AT_ONCE
            if not (message.time_to_live is longest is message.scheduled is None):
                state, due, expires = message.standing(now, longest)
                if force_fresh:
                    state, due = FRESH, expires
                if due is not None:
                    self.context.note_due(due)
            session_id = message.session_id if sessions else None
            values += (
                number, now, state, due, expires, message_id, session_id, message.headers, body_id, body,
            )  # fmt: skip
            if SENT_COLUMNS:
                values += sent_columns(message).values()
        return values, apart

    def _insert_apart(
        self, queue: QueueRecord, messages: Sequence[NewMessage], *, force_fresh: bool
    ) -> list[int]:
        """Add messages at the ends of a queue's partitions."""
        keys = [0] * len(messages)
        for lane, places in self.partitions.split(queue, messages).items():
            some = [messages[place] for place in places]
            of_lane = self.insert_messages(queue, some, lane=lane, force_fresh=force_fresh)
            for place, key in zip(places, of_lane, strict=True):
                keys[place] = key
        return keys

    def start_sending(
        self, queue: QueueRecord, messages: Sequence[NewMessage]
    ) -> Callable[[], list[int]] | None:
        """Start the work of `insert_messages` without waiting for the keys.

        Return a function that gives the keys after the commit; None if that is not possible.
        """
        return None

    def start_routing(self, route: Callable[[], list[int]]) -> Callable[[], list[int]] | None:
        """Plan the way of new messages, which `route` puts into queues and returns the keys of.

        Return a function that gives these keys after the commit; None if that is not possible.
        """
        return None

    def insert_row(self, row: MessageRow, body: bytes | None) -> None:
        """Add a message with earlier attempts; `body_id` names a separately stored body."""
        # It begins anew: it is not deferred, and under no suspicion.
        values = {**msgspec.structs.asdict(row), "deferred": 0, "suspect": 0}
        if row.body_id is None and body is not None and len(body) > INLINE_BODY:
            values["body_id"] = self.bodies.insert_one(body)
            body = None
        self.dialogs.note_streams(queue_of(row.key), (row.session_id,))
        self.context.run("insert_full_message", {**values, "body": body})
        self.queues.count_bytes([row.key], 1)
        self.context.wake(row.key)

    def replace_messages(self, dead: Sequence[MessageRow], live: Sequence[tuple[MessageRow, bytes]]) -> None:
        """Put messages with earlier attempts, each with its body, in the place of others."""
        self.delete_messages([row.key for row in dead])
        self.bodies.delete([row.body_id for row in dead if row.body_id is not None])
        self.insert_rows(live)

    def insert_rows(self, rows: Sequence[tuple[MessageRow, bytes]]) -> None:
        """Add messages with earlier attempts, each with its body."""
        values: list[Any] = []
        large: dict[int, bytes] = {}
        for row, body in rows:
            body_id = None
            if len(body) > INLINE_BODY:
                body_id = self.bodies.take_id()
                large[body_id] = body
            values += (*with_past(row), body_id, None if body_id is not None else body)
            self.dialogs.note_streams(queue_of(row.key), (row.session_id,))
            self._note_standing(row.key, row)
        if large:
            self.bodies.insert(large)
        self.context.insert("insert_full_messages", values, len(rows))
        self.queues.count_bytes([row.key for row, _ in rows], 1)

    def take_clear(self, lane: int, limit: int, token: int, until: int) -> list[ReceivedMessage] | None:
        """Take the next fresh messages of a lane if nothing precedes them, else return None.

        That is: no timer in the store is due, and no message of the lane is suspect or ready.
        """
        first, last = lower_bound(lane), upper_bound(lane)
        ahead = {"now": self.context.now, "first": first, "last": last}
        if self.context.run("anything_ahead", ahead).fetchone()[0]:
            return None
        return self.take_fresh(lane, limit, token, until)

    def start_taking(
        self, queue: QueueRecord, wanted: Sequence[tuple[int, int]], until: int
    ) -> Sequence[Callable[[], list[ReceivedMessage] | Again]] | None:
        """Start several `take_clear` calls, each with limit and token, without waiting for answers.

        All take from one lane. Return functions that give the answers after the commit, ELSEWHERE if
        another lane may have messages; None if that is not possible.
        """
        return None

    def start_leasing(
        self, queue: QueueRecord, share: Share, token: int, until: int, *, started: bool
    ) -> Callable[[], Leased | Again] | None:
        """Do `take_clear` for a service host, with a lease on what is taken, without waiting for the answer.

        Return a function that gives the answer after the commit, as `start_taking` does; None if that is not
        possible.
        """
        return None

    def take_fresh(self, lane: int, limit: int, token: int, until: int) -> list[ReceivedMessage]:
        """Lock and return the next fresh messages of a lane."""
        last, now = upper_bound(lane), self.context.now
        start = self.context.fresh_start(lane) or lower_bound(lane)
        rows = self.context.run("select_fresh", (start, last, now, limit))
        messages = [ReceivedMessage(*row) for row in rows]
        if messages:
            first, final = messages[0].key, messages[-1].key
            self.context.cursors[lane] = final
            if first == final:
                self.context.run("lock_one", (until, token, now, self.context.identity.holder, first))
            else:
                self.context.lock_range(first, final, token, until)
        return messages

    def lock(self, keys: Sequence[int], token: int, until: int | None) -> None:
        """Lock messages; `until` is None when a session's lock holds them."""
        lock = (until, token, self.context.now, self.context.identity.holder)
        if len(keys) == 1:
            self.context.run("lock_one", (*lock, keys[0]))
        else:
            self.context.run("lock_keys", (*lock, self.context.ids(keys)))

    def delete_held(self, queue: QueueRecord, held: Mapping[int, Sequence[int]]) -> bool:
        """Remove messages of a subqueue held under locks, by token; return False if any lock is lost."""
        for token, keys in held.items():
            self.sequences.keep_highest(keys, queue)
            if not queue.plain:
                self.queues.count_bytes(keys, -1)
            deleted = self._delete_locked(keys, token)
            if deleted < len(keys) and self.context.any_claimed():
                # Looked for where it is not found alone: hardly anybody knows the token of a claim.
                self.context.run("write_claimed_of", {"keys": self.context.ids(keys)})
                deleted += self._delete_locked(keys, token)
            if deleted < len(keys):
                return False
        return True

    def _delete_locked(self, keys: Sequence[int], token: int) -> int:
        if len(keys) == 1:
            return self.context.run("delete_one_locked", (keys[0], token, self.context.now)).rowcount
        return self.context.run("delete_locked", (self.context.ids(keys), token, self.context.now)).rowcount

    def delete_messages(self, keys: Sequence[int]) -> None:
        """Remove messages."""
        self.sequences.keep_highest(keys)
        self.queues.count_bytes(keys, -1)
        self.context.run("delete_messages", (self.context.ids(keys),))

    @contextlib.contextmanager
    def together(self, messages: int) -> Iterator[None]:
        """Let writes about so many messages wait for their like within a block, until anything is read."""
        if messages < 2:
            yield
            return
        with self.context.gathering():
            try:
                yield
            finally:
                self.history.forget_ahead()

    def look_ahead(self, keys: Sequence[int]) -> None:
        """Read what will be asked about each of several messages, while writes wait for each other."""
        if self.context.gathers:
            self.history.look_ahead(list(map(main_key, keys)))

    def save_row(self, row: MessageRow, new_key: int | None = None) -> None:
        """Store a message's new state, unlocked, under another key if one is given."""
        new_key = row.key if new_key is None else new_key
        self.queues.count_bytes([row.key], -1)
        self.dialogs.note_streams(queue_of(new_key), (row.session_id,))
        if self.context.gathers:
            self.context.gather("update_rows", (row.key, new_key, *standing(row)), main_key(row.key))
        else:
            self.context.run("update_row", {**msgspec.structs.asdict(row), "new_key": new_key})
        self.queues.count_bytes([new_key], 1)
        self._note_standing(new_key, row)

    def save_rows(self, rows: Mapping[int, MessageRow]) -> None:
        """Store the new states of several messages, unlocked, each under the given key."""
        self.queues.count_bytes([row.key for row in rows.values()], -1)
        values: list[Any] = []
        for new_key, row in rows.items():
            values += (row.key, new_key, *standing(row))
            self.dialogs.note_streams(queue_of(new_key), (row.session_id,))
            self._note_standing(new_key, row)
        self.context.insert("update_rows", values, len(rows))
        self.queues.count_bytes(list(rows), 1)

    def _note_standing(self, key: int, row: MessageRow) -> None:
        """Note whether a saved message concerns waiting receivers or timers."""
        if row.state in (FRESH, READY, SUSPECT):
            self.context.wake(key)
        elif row.state in (SCHEDULED, DELAYED) and row.due is not None:
            self.context.note_due(row.due)

    def save_counters(self, row: MessageRow) -> None:
        """Store only a message's counters; its lock, if any, stays."""
        self.context.run("update_counters", {"key": row.key, **row.counters._asdict()})

    def renew_lock(self, key: int, token: int, until: int) -> bool:
        """Renew a lock; return False if it is lost."""
        values = {"key": key, "token": token, "until": until, "now": self.context.now}
        return self.context.run("renew_lock", values).rowcount == 1

    def renew_locks(self, keys: Sequence[int], token: int, until: int) -> None:
        """Renew the locks on the given messages that are held."""
        self.context.run(
            "renew_locks",
            {"keys": self.context.ids(keys), "token": token, "until": until, "now": self.context.now},
        )

    def make_due(self, first: int, last: int) -> None:
        """Make the first active message between two keys due."""
        self.context.run("make_due", {"now": self.context.now, "first": first, "last": last})
