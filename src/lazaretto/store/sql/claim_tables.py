"""Claims in SQL: the part of a transaction that takes and releases numbered sets of messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from lazaretto.model.keys import lower_bound, queue_of, upper_bound
from lazaretto.store.records.claims import (
    MOST_SHARDS,
    ClaimableMessage,
    ClaimRecord,
    ConsumerRecord,
    FreshRun,
    ShardRecord,
)
from lazaretto.store.sql.message_part import MessagePart

#: How often a commit that removes messages looks for more, because there were fewer than numbers.
_MOST_GAPS = 100


def _shard(row: Sequence[Any]) -> ShardRecord:
    *fields, careful = row
    return msgspec.structs.replace(ShardRecord(*fields), careful=bool(careful))


def _claimable(rows: Iterable[Sequence[Any]]) -> list[ClaimableMessage]:
    return [ClaimableMessage(*row) for row in rows]


class ClaimTables(MessagePart):
    """Operations on claims within one commit."""

    def consumer(self, queue_id: int, consumer: str) -> ConsumerRecord | None:
        """Return a consumer of claims."""
        row = self._context.run("select_consumer", (queue_id, consumer)).fetchone()
        return ConsumerRecord(*row) if row else None

    def consumers(self) -> list[ConsumerRecord]:
        """Return all consumers of claims."""
        return [ConsumerRecord(*row) for row in self._context.run("select_consumers")]

    def save_consumer(self, record: ConsumerRecord) -> None:
        """Store the state of a consumer of claims."""
        self._context.run("save_consumer", msgspec.structs.asdict(record))

    def after(self, queue_id: int, consumer: str, after: int, last: int) -> list[ClaimRecord]:
        """Return a consumer's claims above `after` up to `last`, in order."""
        rows = self._context.run("select_claims", (queue_id, consumer, after, last))
        return [ClaimRecord(*row) for row in rows]

    def latest(self, queue_id: int, limit: int) -> list[ClaimRecord]:
        """Return a queue's claims, newest first."""
        return [ClaimRecord(*row) for row in self._context.run("select_all_claims", (queue_id, limit))]

    def due(self, limit: int) -> list[ClaimRecord]:
        """Return claims whose lease has expired: those to revoke, and those whose messages nobody removes."""
        return [
            ClaimRecord(*row) for row in self._context.run("select_due_claims", (self._context.now, limit))
        ]

    def save(self, record: ClaimRecord) -> None:
        """Store the state of a claim."""
        self._context.run("save_claim", msgspec.structs.asdict(record))

    def renew(self, queue_id: int, consumer: str, until: int) -> int:
        """Renew the leases of a consumer's open claims; return how many there were."""
        values = {"queue_id": queue_id, "consumer": consumer, "until": until, "now": self._context.now}
        return self._context.run("renew_claims", values).rowcount

    def delete(self, queue_id: int, consumer: str, last: int) -> None:
        """Forget claims that have ended."""
        self._context.run("delete_claims", (queue_id, consumer, last))

    def shards(self, claim_token: int) -> list[ShardRecord]:
        """Return the shards of a claim, in order."""
        shards = [_shard(row) for row in self._context.run("select_shards", (claim_token,))]
        return self._with_ranges(shards, claim_token, claim_token + MOST_SHARDS)

    def shard(self, token: int) -> ShardRecord | None:
        """Return one shard."""
        row = self._context.run("select_shard", (token,)).fetchone()
        return self._with_ranges([_shard(row)], token, token + 1)[0] if row else None

    def _with_ranges(self, shards: list[ShardRecord], first_token: int, end_token: int) -> list[ShardRecord]:
        if not self._context.any_claimed():
            return shards
        ranges: dict[int, list[tuple[int, int]]] = {}
        for token, first, last in self._context.run("select_claimed", (first_token, end_token)):
            ranges.setdefault(token, []).append((first, last))
        return [msgspec.structs.replace(shard, ranges=tuple(ranges.get(shard.token, ()))) for shard in shards]

    def save_shard(self, record: ShardRecord) -> None:
        """Store the state of a shard."""
        self._context.run("save_shard", msgspec.structs.asdict(record))

    def insert_staged(self, claim_token: int, stage: str, outcomes: bytes) -> None:
        """Store a task's outcomes until its claim is settled."""
        self._context.run("insert_staged", (claim_token, stage, outcomes))

    def staged(self, claim_token: int, stage: str) -> list[bytes]:
        """Return a task's staged outcomes, in order."""
        return [outcomes for (outcomes,) in self._context.run("select_staged", (claim_token, stage))]

    def forget_shards(self, claim_token: int, *, unlocks: bool = True) -> None:
        """Delete the shards and staged outcomes of an ended claim. `unlocks`: its locks on ranges, too."""
        self._context.run("delete_shards", (claim_token,))
        self._context.run("delete_staged", (claim_token,))
        if unlocks and self._context.any_claimed():
            self._unlock(claim_token, claim_token + MOST_SHARDS)

    def _unlock(self, first_token: int, end_token: int) -> None:
        self._context.run("delete_claimed", (first_token, end_token))
        self._context.memory.claimed = None

    def keeping(self) -> list[ClaimRecord]:
        """Return settled claims that keep messages which they have completed: of each consumer in order."""
        return [ClaimRecord(*row) for row in self._context.run("select_keeping")]

    def kept(self, claim_token: int) -> list[ShardRecord]:
        """Return what a settled claim keeps: each range as a shard, whose `rows` are not counted."""
        rows = self._context.run("select_claimed", (claim_token, claim_token + MOST_SHARDS))
        return [
            ShardRecord(token, claim_token, first, last, 0, ranges=((first, last),))
            for token, first, last in rows.fetchall()
            if first <= last
        ]

    def remove_completed(self, claim: ClaimRecord, limit: int, until: int) -> bool:
        """Remove some of the messages that a settled claim keeps; return whether any may be left.

        `until`: when somebody else goes on with it, if any are left.
        """
        for kept in self.kept(claim.token):
            first = kept.first
            # Most keys there are of messages.
            for _ in range(_MOST_GAPS):
                last = min(first + limit - 1, kept.last)
                limit -= self.delete_held(kept, [(first, last)])
                first = last + 1
                if first > kept.last or limit <= 0:
                    break
            self._context.run("shorten_claimed", {"first": first, "last": kept.last})
            if first <= kept.last or limit <= 0:
                self.save(msgspec.structs.replace(claim, lease_until=until))
                return True
        self._unlock(claim.token, claim.token + MOST_SHARDS)
        self.save(msgspec.structs.replace(claim, lease_until=None))
        return False

    def claimable(
        self, lane: int, last: int, limit: int
    ) -> tuple[list[ClaimableMessage], list[ClaimableMessage]]:
        """Return receivable messages up to a key: ready ones and fresh ones."""
        first = lower_bound(lane)
        ready = _claimable(
            self._context.run("select_claimable_ready", (first, last, self._context.now, limit))
        )
        start = self._context.fresh_start(lane) or first
        left = limit - len(ready)
        fresh = self._context.run("select_claimable_fresh", (start, last, self._context.now, left))
        return ready, _claimable(fresh)

    def claimable_session(
        self, queue_id: int, session_id: str, before: int, limit: int
    ) -> list[ClaimableMessage]:
        """Return the first receivable messages of a session below a key."""
        values = (queue_id, session_id, self._context.now, before, limit)
        return _claimable(self._context.run("select_claimable_session", values))

    def fresh_run(self, lane: int, after: int | None, last: int, limit: int) -> FreshRun | None:
        """Return the next fresh messages up to a key, none of them read by itself; None: there is none.

        `after`: the key they stand behind; None: behind all that was handed out or is claimed.
        """
        start = (self._context.fresh_start(lane) or lower_bound(lane)) if after is None else after
        values = {"first": start, "last": last, "now": self._context.now, "limit": limit}
        first, *others = self._context.run("select_fresh_run", values).fetchone()
        return None if first is None else FreshRun(first, *others)

    def lock_fresh(
        self, lane: int, first: int, last: int, token: int, timed: Sequence[int] | None = ()
    ) -> None:
        """Lock the next fresh messages of a lane for a claim; earlier ones are already taken.

        `timed`: those with a time to come; None: all of them.
        """
        context = self._context
        context.cursors[lane] = last
        if not context.claims_ranges or timed is None:
            context.lock_range(first, last, token, None)
            return
        if timed:
            context.run("lock_keys", (None, token, context.now, context.worker, context.ids(timed)))
        ends = {"first": first, "last": last}
        context.run("insert_claimed", {**ends, "token": token, "now": context.now, "worker": context.worker})
        context.memory.claimed = True

    def insert_outbox(self, stage: str, messages: bytes) -> None:
        """Store messages that a task has prepared."""
        self._context.run("insert_outbox", (stage, messages, self._context.now))

    def outbox(self, stage: str) -> list[bytes]:
        """Return messages that a task has prepared, in order."""
        return [messages for (messages,) in self._context.run("select_outbox", (stage,))]

    def delete_outbox(self, stage: str) -> None:
        """Delete messages that a task has prepared."""
        self._context.run("delete_outbox", (stage,))

    def last_batch(self, writer: str) -> int:
        """Return the number of a writer's last batch that was sent, -1 if there is none."""
        row = self._context.run("select_writer", (writer,)).fetchone()
        return row[0] if row else -1

    def save_writer(self, writer: str, batch: int) -> None:
        """Record that a writer's batch was sent."""
        self._context.run("save_writer", (writer, batch, self._context.now))

    def last_message(self, lane: int) -> int | None:
        """Return the key of the last message in a lane of a queue itself."""
        row = self._context.run("select_last_key", (lower_bound(lane), upper_bound(lane))).fetchone()
        return row[0] if row else None

    def shard_keys(self, shard: ShardRecord, limit: int) -> list[int]:
        """Return the messages that a shard still holds, in order."""
        keys: list[int] = []
        for part in _parts(shard):
            rows = self._context.run("select_shard_keys", {**part, "limit": limit - len(keys)})
            keys += [key for (key,) in rows]
            if len(keys) == limit:
                break
        return keys

    def delete_held(self, shard: ShardRecord, runs: Sequence[tuple[int, int]], *, ranges: bool = True) -> int:
        """Remove what a shard holds from one key to another, with bodies and history; return how many.

        `ranges`: False: not between the ends of those that a lock on a range holds.
        """
        self._sequences.keep_highest([last for _, last in runs])
        sized = self._queues.sized(queue_of(shard.first))
        parts = [part for part in _parts(shard) if ranges or not part["ranged"]]
        return sum(
            self._delete_part({**part, "first": start, "last": end}, sized)
            for first, last in runs
            for part in parts
            if (start := max(first, part["first"])) <= (end := min(last, part["last"]))
        )

    def _delete_part(self, part: Mapping[str, Any], sized: int | None) -> int:
        remains = self._context.run("select_shard_remains", part).fetchall()
        tried = [key for key, _, was_tried in remains if was_tried]
        if tried:
            self._context.run("delete_attempts", (self._context.ids(tried),))
        if sized is not None:
            (size,) = self._context.run("sum_shard", part).fetchone()
            self._queues.grow(sized, -int(size))
        deleted = self._context.run("delete_shard", part).rowcount
        self._bodies.delete([body_id for _, body_id, _ in remains if body_id is not None])
        return deleted

    def release_shard(self, shard: ShardRecord) -> int:
        """Release all messages of a shard as if never delivered, except suspects."""
        released = sum(self._context.run("release_shard", part).rowcount for part in _parts(shard))
        if released:
            self._context.wake(shard.first)
        return released

    def unlock_sessions(self, queue_id: int, token: int) -> Sequence[str]:
        """Release the session locks of a claim; return the sessions."""
        rows = self._context.run("unlock_claimed_sessions", (queue_id, token, token + MOST_SHARDS)).fetchall()
        sessions = [session for (session,) in rows]
        for session_id in sessions:
            self._context.run("delete_idle_session", {"queue_id": queue_id, "session_id": session_id})
        if sessions:
            self._context.wake(lower_bound(queue_id))
        return sessions


def _parts(shard: ShardRecord) -> Iterator[dict[str, Any]]:
    """Yield the parts of a shard, in order, that one range locks, or none, as the parameters of queries."""
    first = shard.first
    for start, end in shard.ranges:
        if start > first:
            yield {"first": first, "last": start - 1, "token": shard.token, "ranged": False}
        yield {"first": start, "last": end, "token": shard.token, "ranged": True}
        first = end + 1
    if first <= shard.last:
        yield {"first": first, "last": shard.last, "token": shard.token, "ranged": False}
