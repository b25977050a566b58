"""Claims in the store: numbered sets of locked messages that a consumer settles as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

#: Maximum shards of one claim: their lock tokens are consecutive.
MOST_SHARDS = 1024
#: Maximum messages of one claim.
MOST_ROWS = 10_000_000
#: How long a claim holds its messages, in seconds, unless it is renewed.
DEFAULT_LEASE = 300.0
#: Expiry of a session lock that a claim holds: it ends with the claim, not by itself.
WITH_CLAIM = 253_402_300_799_000_000

#: States of a claim.
OPEN, SETTLED, REVOKED = "open", "settled", "revoked"


class ConsumerRecord(msgspec.Struct, frozen=True):
    """A consumer of a queue's claims: its latest driver, its last claim, and the last ended claim.

    `narrow`: maximum messages of a claim (0: no limit), until `narrow_left` more are settled. `identity`:
    distinguishes it from consumers of the same name in other queues and stores.
    """

    queue_id: int
    consumer: str
    epoch: int = 0
    last_claim: int = 0
    settled: int = 0
    driver: str = ""
    attached: int = 0
    narrow: int = 0
    narrow_left: int = 0
    identity: int = 0


class ClaimRecord(msgspec.Struct, frozen=True):
    """A claim. `token`: the lock token of its first shard. `summary` is JSON. Times in microseconds.

    `lease_until`: when somebody else ends it, or goes on removing the messages that it has completed.
    """

    queue_id: int
    consumer: str
    number: int
    state: str
    token: int
    created: int
    lease_until: int | None
    rows: int
    bytes: int
    ended: int | None = None
    summary: str | None = None


class ShardRecord(msgspec.Struct, frozen=True):
    """The part of a claim that one task reads: messages between two keys, locked under `token`.

    `reads`: how often it was read; tasks of one driver that only read it count once. `read_epoch`: the epoch
    of the driver whose tasks last processed it; below zero: of the one whose tasks last read it, and nobody
    processed it. `started`: the key of the message in progress, if messages are processed one at a time.
    `careful`: process one at a time from the first read on. `ranges`: the first and last keys of the
    parts of it that a lock on a range holds, in order.
    """

    token: int
    claim_token: int
    first: int
    last: int
    rows: int
    reads: int = 0
    read_epoch: int | None = None
    started: int | None = None
    careful: bool = False
    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def is_processed(self) -> bool:
        """Return whether tasks have processed its messages, and not only read them."""
        return self.read_epoch is not None and self.read_epoch > 0


class ClaimableMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that a claim may take, and its bytes. `timed`: it has a time to come, which a lock stops."""

    key: int
    size: int
    timed: bool = False


class FreshRun(msgspec.Struct, frozen=True, gc=False):
    """Messages of a lane that follow each other and were never handed out, together.

    `timed`: how many have a time to come, which a lock stops.
    """

    first: int
    last: int
    rows: int
    bytes: int
    timed: int


class StoredClaims(Protocol):
    """Operations on claims within one commit."""

    def consumer(self, queue_id: int, consumer: str) -> ConsumerRecord | None:
        """Return a consumer of claims."""
        ...

    def save_consumer(self, record: ConsumerRecord) -> None:
        """Store the state of a consumer of claims."""
        ...

    def after(self, queue_id: int, consumer: str, after: int, last: int) -> list[ClaimRecord]:
        """Return a consumer's claims above `after` up to `last`, in order."""
        ...

    def latest(self, queue_id: int, limit: int) -> list[ClaimRecord]:
        """Return a queue's claims, newest first."""
        ...

    def due(self, limit: int) -> list[ClaimRecord]:
        """Return claims whose lease has expired: those to revoke, and those whose messages nobody removes."""
        ...

    def save(self, record: ClaimRecord) -> None:
        """Store the state of a claim."""
        ...

    def renew(self, queue_id: int, consumer: str, until: int) -> int:
        """Renew the leases of a consumer's open claims; return how many there were."""
        ...

    def delete(self, queue_id: int, consumer: str, last: int) -> None:
        """Forget claims that have ended."""
        ...

    def shards(self, claim_token: int) -> list[ShardRecord]:
        """Return the shards of a claim, in order."""
        ...

    def shard(self, token: int) -> ShardRecord | None:
        """Return one shard."""
        ...

    def save_shard(self, record: ShardRecord) -> None:
        """Store the state of a shard."""
        ...

    def insert_staged(self, claim_token: int, stage: str, outcomes: bytes) -> None:
        """Store a task's outcomes until its claim is settled."""
        ...

    def staged(self, claim_token: int, stage: str) -> list[bytes]:
        """Return a task's staged outcomes, in order."""
        ...

    def forget_shards(self, claim_token: int, *, unlocks: bool = True) -> None:
        """Delete the shards and staged outcomes of an ended claim. `unlocks`: its locks on ranges, too."""
        ...

    def keeping(self) -> list[ClaimRecord]:
        """Return settled claims that keep messages which they have completed: of each consumer in order."""
        ...

    def kept(self, claim_token: int) -> list[ShardRecord]:
        """Return what a settled claim keeps: each range as a shard, whose `rows` are not counted."""
        ...

    def remove_completed(self, claim: ClaimRecord, limit: int, until: int) -> bool:
        """Remove some of the messages that a settled claim keeps; return whether any may be left.

        `until`: when somebody else goes on with it, if any are left.
        """
        ...

    def claimable(
        self, lane: int, last: int, limit: int
    ) -> tuple[list[ClaimableMessage], list[ClaimableMessage]]:
        """Return receivable messages up to a key: ready ones and fresh ones."""
        ...

    def claimable_session(
        self, queue_id: int, session_id: str, before: int, limit: int
    ) -> list[ClaimableMessage]:
        """Return the first receivable messages of a session below a key."""
        ...

    def fresh_run(self, lane: int, after: int | None, last: int, limit: int) -> FreshRun | None:
        """Return the next fresh messages up to a key, none of them read by itself; None: there is none.

        `after`: the key they stand behind; None: behind all that was handed out or is claimed.
        """
        ...

    def lock_fresh(
        self, lane: int, first: int, last: int, token: int, timed: Sequence[int] | None = ()
    ) -> None:
        """Lock the next fresh messages of a lane for a claim; earlier ones are already taken.

        `timed`: those with a time to come; None: all of them.
        """
        ...

    def insert_outbox(self, stage: str, messages: bytes) -> None:
        """Store messages that a task has prepared."""
        ...

    def outbox(self, stage: str) -> list[bytes]:
        """Return messages that a task has prepared, in order."""
        ...

    def delete_outbox(self, stage: str) -> None:
        """Delete messages that a task has prepared."""
        ...

    def last_batch(self, writer: str) -> int:
        """Return the number of a writer's last batch that was sent, -1 if there is none."""
        ...

    def save_writer(self, writer: str, batch: int) -> None:
        """Record that a writer's batch was sent."""
        ...

    def last_message(self, lane: int) -> int | None:
        """Return the key of the last message in a lane of a queue itself."""
        ...

    def shard_keys(self, shard: ShardRecord, limit: int) -> list[int]:
        """Return the messages that a shard still holds, in order."""
        ...

    def delete_held(self, shard: ShardRecord, runs: Sequence[tuple[int, int]], *, ranges: bool = True) -> int:
        """Remove what a shard holds from one key to another, with bodies and history; return how many.

        `ranges`: False: not between the ends of those that a lock on a range holds.
        """
        ...

    def release_shard(self, shard: ShardRecord) -> int:
        """Release all messages of a shard as if never delivered, except suspects."""
        ...

    def unlock_sessions(self, queue_id: int, token: int) -> Sequence[str]:
        """Release the session locks of a claim; return the sessions."""
        ...
