"""Claims in the store: numbered sets of locked messages that a consumer settles as one."""

from __future__ import annotations

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
    `task`: the number of the task that reads it, until that ends with an error or is cancelled. `careful`:
    process one at a time from the first read on. `ranges`: the first and last keys of the parts of it that a
    lock on a range holds, in order.
    """

    token: int
    claim_token: int
    first: int
    last: int
    rows: int
    reads: int = 0
    read_epoch: int | None = None
    started: int | None = None
    task: int | None = None
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
