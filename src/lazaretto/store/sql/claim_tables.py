"""Claims in SQL: the part of a transaction that takes and releases numbered sets of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from lazaretto.model.keys import lower_bound, queue_of, upper_bound
from lazaretto.store.contract.claim_contract import (
    MOST_SHARDS,
    ClaimableMessage,
    ClaimRecord,
    ConsumerRecord,
    ShardRecord,
)
from lazaretto.store.sql.message_part import MessagePart


def _shard(row: Sequence[Any]) -> ShardRecord:
    *fields, careful = row
    return msgspec.structs.replace(ShardRecord(*fields), careful=bool(careful))


def _claimable(rows: Iterable[Sequence[Any]]) -> list[ClaimableMessage]:
    return [ClaimableMessage(*row) for row in rows]


class ClaimTables(MessagePart):
    """What a transaction does with claims."""

    def consumer(self, queue_id: int, consumer: str) -> ConsumerRecord | None:
        row = self._context.run("select_consumer", (queue_id, consumer)).fetchone()
        return ConsumerRecord(*row) if row else None

    def save_consumer(self, record: ConsumerRecord) -> None:
        self._context.run("save_consumer", msgspec.structs.asdict(record))

    def after(self, queue_id: int, consumer: str, after: int, last: int) -> list[ClaimRecord]:
        rows = self._context.run("select_claims", (queue_id, consumer, after, last))
        return [ClaimRecord(*row) for row in rows]

    def latest(self, queue_id: int, limit: int) -> list[ClaimRecord]:
        return [ClaimRecord(*row) for row in self._context.run("select_all_claims", (queue_id, limit))]

    def due(self, limit: int) -> list[ClaimRecord]:
        return [
            ClaimRecord(*row) for row in self._context.run("select_due_claims", (self._context.now, limit))
        ]

    def save(self, record: ClaimRecord) -> None:
        self._context.run("save_claim", msgspec.structs.asdict(record))

    def renew(self, queue_id: int, consumer: str, until: int) -> int:
        values = {"queue_id": queue_id, "consumer": consumer, "until": until, "now": self._context.now}
        return self._context.run("renew_claims", values).rowcount

    def delete(self, queue_id: int, consumer: str, last: int) -> None:
        self._context.run("delete_claims", (queue_id, consumer, last))

    def shards(self, claim_token: int) -> list[ShardRecord]:
        return [_shard(row) for row in self._context.run("select_shards", (claim_token,))]

    def shard(self, token: int) -> ShardRecord | None:
        row = self._context.run("select_shard", (token,)).fetchone()
        return _shard(row) if row else None

    def save_shard(self, record: ShardRecord) -> None:
        self._context.run("save_shard", msgspec.structs.asdict(record))

    def insert_staged(self, claim_token: int, stage: str, outcomes: bytes) -> None:
        self._context.run("insert_staged", (claim_token, stage, outcomes))

    def staged(self, claim_token: int, stage: str) -> list[bytes]:
        return [outcomes for (outcomes,) in self._context.run("select_staged", (claim_token, stage))]

    def forget_shards(self, claim_token: int) -> None:
        self._context.run("delete_shards", (claim_token,))
        self._context.run("delete_staged", (claim_token,))

    def claimable(
        self, lane: int, last: int, limit: int
    ) -> tuple[list[ClaimableMessage], list[ClaimableMessage]]:
        first = lower_bound(lane)
        ready = _claimable(
            self._context.run("select_claimable_ready", (first, last, self._context.now, limit))
        )
        start = self._context.first_fresh(lane) or first
        left = limit - len(ready)
        fresh = self._context.run("select_claimable_fresh", (start, last, self._context.now, left))
        return ready, _claimable(fresh)

    def claimable_session(
        self, queue_id: int, session_id: str, before: int, limit: int
    ) -> list[ClaimableMessage]:
        values = (queue_id, session_id, self._context.now, before, limit)
        return _claimable(self._context.run("select_claimable_session", values))

    def lock_fresh_range(self, lane: int, first: int, last: int, token: int) -> None:
        self._context.lock_range(first, last, token, None)
        self._context.cursors[lane] = last

    def insert_outbox(self, stage: str, messages: bytes) -> None:
        self._context.run("insert_outbox", (stage, messages, self._context.now))

    def outbox(self, stage: str) -> list[bytes]:
        return [messages for (messages,) in self._context.run("select_outbox", (stage,))]

    def delete_outbox(self, stage: str) -> None:
        self._context.run("delete_outbox", (stage,))

    def last_batch(self, writer: str) -> int:
        row = self._context.run("select_writer", (writer,)).fetchone()
        return row[0] if row else -1

    def save_writer(self, writer: str, batch: int) -> None:
        self._context.run("save_writer", (writer, batch, self._context.now))

    def last_message(self, lane: int) -> int | None:
        row = self._context.run("select_last_key", (lower_bound(lane), upper_bound(lane))).fetchone()
        return row[0] if row else None

    def shard_keys(self, shard: ShardRecord, limit: int) -> list[int]:
        return [key for (key,) in self._context.run("select_shard_keys", {**_held(shard), "limit": limit})]

    def delete_shard(self, shard: ShardRecord) -> int:
        values = _held(shard)
        bodies = [body_id for (body_id,) in self._context.run("select_shard_bodies", values)]
        self._context.run("delete_shard_attempts", values)
        self._sequences.keep_highest([shard.last])
        sized = self._queues.sized(queue_of(shard.first))
        if sized is not None:
            self._queues.grow(sized, -self._queues.sum_range(shard.first, shard.last, shard.token))
        deleted = self._context.run("delete_shard", values).rowcount
        self._bodies.delete(bodies)
        return deleted

    def release_shard(self, shard: ShardRecord) -> int:
        released = self._context.run("release_shard", _held(shard)).rowcount
        if released:
            self._context.wake(shard.first)
        return released

    def unlock_sessions(self, queue_id: int, token: int) -> Sequence[str]:
        rows = self._context.run("unlock_claimed_sessions", (queue_id, token, token + MOST_SHARDS)).fetchall()
        sessions = [session for (session,) in rows]
        for session_id in sessions:
            self._context.run("delete_idle_session", {"queue_id": queue_id, "session_id": session_id})
        if sessions:
            self._context.wake(lower_bound(queue_id))
        return sessions


def _held(shard: ShardRecord) -> dict[str, Any]:
    return {"first": shard.first, "last": shard.last, "token": shard.token}
