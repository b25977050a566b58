"""Reads messages within a commit, in SQL, on any database."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import in_main, lower_bound, upper_bound
from lazaretto.model.messages import PeekedMessage, ReceivedMessage
from lazaretto.store.records.messages import (
    DELAYED,
    FRESH,
    LOCKED,
    STATES,
    SUSPECT,
    MessageRow,
)
from lazaretto.store.sql.commit_context import CommitContext
from lazaretto.store.sql.words import PEEKED


class MessageReads:
    """Reads messages within one commit, or within one snapshot."""

    def __init__(self, context: CommitContext) -> None:
        self.context = context

    def select_ready(self, first: int, last: int, limit: int) -> list[ReceivedMessage]:
        """Return ready messages between two keys."""
        rows = self.context.run("select_ready", (first, last, self.context.now, limit))
        return [ReceivedMessage(*row) for row in rows]

    def count_fitting(self, lane: int, subqueue: Subqueue, limit: int, most: int) -> int:
        """Return how many of the next messages of a lane, or a subqueue, fit into a size; at least 1."""
        first, last = lower_bound(lane, subqueue), upper_bound(lane, subqueue)
        start = (self.context.fresh_start(lane) or first) if in_main(last) else last
        values = {"first": first, "last": last, "start": start, "now": self.context.now, "limit": limit}
        return _count_fitting(self.context.run("select_sizes", values), most)

    def count_fitting_of_session(self, queue_id: int, session_id: str, limit: int, most: int) -> int:
        """Return how many of the next messages of a session fit into a size; at least 1."""
        values = {"queue_id": queue_id, "session_id": session_id, "now": self.context.now, "limit": limit}
        return _count_fitting(self.context.run("select_session_sizes", values), most)

    def select_session_messages(
        self, queue_id: int, session_id: str, state: int, before: int, limit: int
    ) -> list[ReceivedMessage]:
        """Return receivable messages of a session with a key below `before`."""
        values = (queue_id, session_id, state, self.context.now, before, limit)
        return _to_hand_over(self.context.run("select_session_messages", values), state)

    def select_messages(self, keys: Sequence[int], state: int) -> list[ReceivedMessage]:
        """Return the given messages that are in the state."""
        return _to_hand_over(self.context.run("select_messages", (self.context.ids(keys), state)), state)

    def held(self, keys: Sequence[int], token: int) -> set[int]:
        """Return the given messages that are held under the lock now."""
        values = {"keys": self.context.ids(keys), "token": token, "now": self.context.now}
        return {key for (key,) in self.context.run("select_locked", values)}

    def held_rows(self, keys: Sequence[int], token: int) -> dict[int, MessageRow]:
        """Return the given messages that are held under the lock now, by key."""
        values = {"keys": self.context.ids(keys), "token": token, "now": self.context.now}
        return {row[0]: MessageRow.of(row) for row in self.context.run("select_held", values)}

    def row(self, key: int) -> MessageRow | None:
        """Return one message."""
        row = self.context.run("select_row", (key,)).fetchone()
        return self._as_claimed(MessageRow.of(row)) if row else None

    def rows(self, keys: Sequence[int]) -> dict[int, MessageRow]:
        """Return the given messages that exist, by key."""
        return {
            row[0]: self._as_claimed(MessageRow.of(row))
            for row in self.context.run("select_rows", (self.context.ids(keys),))
        }

    def _as_claimed(self, row: MessageRow) -> MessageRow:
        """Return a message with the lock that a claim has on its range, where nothing can be written."""
        context = self.context
        if not context.reads or row.state != FRESH or row.due is not None or not context.any_claimed():
            return row
        claim = context.run("select_claim_on", (row.key,)).fetchone()
        if claim is None or claim[0] > row.key:
            return row
        _, token, locked_at, locked_by = claim
        return msgspec.structs.replace(
            row, state=LOCKED, deliveries=row.deliveries + 1, lock_token=token, locked_at=locked_at,
            locked_by=locked_by,
        )  # fmt: skip

    def body(self, key: int) -> bytes:
        """Return one message's body."""
        (body,) = self.context.run("select_body", (key,)).fetchone()
        return bytes(body)

    def anything_due(self) -> bool:
        """Return whether any message, session, claim or idle entity is due."""
        return bool(self.context.run("anything_due", self.context.by_now()).fetchone()[0])

    def due(self, limit: int) -> list[MessageRow]:
        """Return the messages that are due."""
        values = {**self.context.by_now(), "limit": limit}
        return [MessageRow.of(row) for row in self.context.run("select_due", values)]

    def active(self, first: int, last: int, limit: int) -> list[MessageRow]:
        """Return the first active messages between two keys."""
        return [MessageRow.of(row) for row in self.context.run("select_active", (first, last, limit))]

    def next_due(self) -> int | None:
        """Return when the next message, session, claim or idle entity is due."""
        times = [
            self.context.run(name, self.context.by_now()).fetchone()[0]
            for name in ("next_due", "next_due_session", "next_due_claim", "next_idle")
        ]
        return min((due for due in times if due is not None), default=None)

    def peek(self, first: int, last: int, limit: int, *, delayed: bool) -> list[PeekedMessage]:
        """Return messages between two keys, in every state."""
        return _peeked(self.context.run("peek_delayed" if delayed else "peek", (first, last, limit)))

    def sizes(self, first: int, last: int, limit: int, *, delayed: bool) -> list[tuple[int, int]]:
        """Return the keys and bytes of messages between two keys, in order, in every state or delayed."""
        state = DELAYED if delayed else None
        named = {"first": first, "last": last, "limit": limit, "state": state}
        return [(key, size) for key, size in self.context.run("select_peeked_sizes", named)]

    def sizes_of(self, keys: Sequence[int]) -> dict[int, int]:
        """Return the bytes of the given messages that exist, by key."""
        return dict(iter(self.context.run("select_peeked_sizes_of", (self.context.ids(keys),))))

    def peeked_keys(
        self, queue_id: int, session_id: str, first: int, last: int, limit: int, *, delayed: bool
    ) -> list[int]:
        """Return the keys of a session's messages between two keys, in order, in every state or delayed."""
        named = {
            "queue_id": queue_id, "session_id": session_id, "first": first, "last": last, "limit": limit,
            "state": DELAYED if delayed else None,
        }  # fmt: skip
        return [key for (key,) in self.context.run("select_peeked_keys", named)]

    def peek_keys(self, keys: Sequence[int]) -> list[PeekedMessage]:
        """Return the given messages that exist, as `peek` does."""
        return _peeked(self.context.run("peek_keys", (self.context.ids(keys),)))

    def select_suspect(self, first: int, last: int) -> ReceivedMessage | None:
        """Return the first message between two keys that must be delivered alone."""
        return suspect_of(self.context.run("select_suspect", (first, last, self.context.now)).fetchone())


def suspect_of(row: Sequence[Any] | None) -> ReceivedMessage | None:
    """Return the suspect that select_suspect found."""
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
    messages = []
    for row in rows:
        columns = dict(zip(PEEKED, row, strict=True))
        messages.append(PeekedMessage(**columns | {"state": STATES[columns["state"]]}))
    return messages


def _count_fitting(sizes: Iterable[tuple[int]], most: int) -> int:
    """Return how many messages of these sizes, from the first on, have `most` bytes together; at least 1."""
    together = itertools.accumulate(size for (size,) in sizes)
    return max(1, sum(1 for _ in itertools.takewhile(lambda size: size <= most, together)))
