"""Claims in the store: numbered sets of locked messages that a consumer settles as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

#: Shards of one claim at most: their lock tokens follow one another.
MOST_SHARDS = 1024
#: Messages of one claim at most.
MOST_ROWS = 10_000_000
#: How long a claim holds its messages, in seconds, unless it is renewed.
DEFAULT_LEASE = 300.0
#: When a session's lock ends that a claim holds: with the claim, and not by itself.
WITH_CLAIM = 253_402_300_799_000_000

#: States of a claim.
OPEN, SETTLED, REVOKED = "open", "settled", "revoked"


class ConsumerRecord(msgspec.Struct, frozen=True):
    """Who takes claims of a queue: the driver attached last, the last claim, and the last that has ended.

    `narrow`: messages of a claim at most (0: no limit), until `narrow_left` more are settled.
    `identity`: tells it from consumers of the same name in other queues and stores.
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
    """A claim. `token`: the lock token of its first shard. `summary` is JSON. Times in microseconds."""

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
    """What one task reads: the messages between two keys that are locked under `token`.

    `reads`: how often it was read. `read_epoch`: of the driver whose tasks worked on it last; None: it was
    only looked at. `started`: the key of the message that is being worked on, where it is one at a time.
    `careful`: that is so from the first time on.
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


class ClaimableMessage(msgspec.Struct, frozen=True):
    """A message that a claim may take, and its bytes."""

    key: int
    size: int


class StoredClaims(Protocol):
    """What an operation may do with claims within one commit."""

    def consumer(self, queue_id: int, consumer: str) -> ConsumerRecord | None:
        """Return a consumer of claims."""
        ...

    def save_consumer(self, record: ConsumerRecord) -> None:
        """Store how a consumer of claims stands."""
        ...

    def after(self, queue_id: int, consumer: str, after: int, last: int) -> list[ClaimRecord]:
        """Return a consumer's claims above `after` up to `last`, in order."""
        ...

    def latest(self, queue_id: int, limit: int) -> list[ClaimRecord]:
        """Return a queue's claims, the latest first."""
        ...

    def due(self, limit: int) -> list[ClaimRecord]:
        """Return claims whose lease has run out, and those that are being revoked."""
        ...

    def save(self, record: ClaimRecord) -> None:
        """Store how a claim stands."""
        ...

    def renew(self, queue_id: int, consumer: str, until: int) -> int:
        """Prolong the leases of a consumer's open claims; return how many there were."""
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
        """Store how a shard stands."""
        ...

    def insert_staged(self, claim_token: int, stage: str, outcomes: bytes) -> None:
        """Keep what a task has done until its claim is settled."""
        ...

    def staged(self, claim_token: int, stage: str) -> list[bytes]:
        """Return what a task has done, in order."""
        ...

    def forget_shards(self, claim_token: int) -> None:
        """Forget the shards of a claim that has ended, and what was staged for it."""
        ...

    def claimable(
        self, queue_id: int, last: int, limit: int
    ) -> tuple[list[ClaimableMessage], list[ClaimableMessage]]:
        """Return receivable messages up to a key: those handed out before, and fresh ones."""
        ...

    def claimable_session(
        self, queue_id: int, session_id: str, before: int, limit: int
    ) -> list[ClaimableMessage]:
        """Return the first receivable messages of a session below a key."""
        ...

    def lock_fresh_range(self, queue_id: int, first: int, last: int, token: int) -> None:
        """Lock all fresh messages between two keys, for a claim; those before them were taken already."""
        ...

    def insert_outbox(self, stage: str, messages: bytes) -> None:
        """Keep messages that a task has prepared."""
        ...

    def outbox(self, stage: str) -> list[bytes]:
        """Return messages that a task has prepared, in order."""
        ...

    def delete_outbox(self, stage: str) -> None:
        """Forget messages that a task has prepared."""
        ...

    def last_batch(self, writer: str) -> int:
        """Return the number of a writer's last batch that was sent, -1 if there is none."""
        ...

    def save_writer(self, writer: str, batch: int) -> None:
        """Note that a writer's batch was sent."""
        ...

    def last_message(self, queue_id: int) -> int | None:
        """Return the key of the last message there is in a queue itself."""
        ...

    def shard_keys(self, shard: ShardRecord, limit: int) -> list[int]:
        """Return the messages that a shard still holds, in order."""
        ...

    def delete_shard(self, shard: ShardRecord) -> int:
        """Remove all that a shard holds, with bodies and history; return how many messages it was."""
        ...

    def release_shard(self, shard: ShardRecord) -> int:
        """Give back all that a shard holds as if it had never been handed out, but suspects."""
        ...

    def unlock_sessions(self, queue_id: int, token: int) -> Sequence[str]:
        """Give up the locks on sessions that a claim holds; return the sessions."""
        ...
