"""Common ground of a transaction's parts: queues as rows, what is remembered between commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from lazaretto.model.dialog_contracts import Definitions
from lazaretto.model.entities import EntityKind, QueueOptions, QueueStatus
from lazaretto.model.partitions import Homes
from lazaretto.store.records.dialogs import ConversationRecord
from lazaretto.store.records.messages import QueueRecord


class Cursor(Protocol):
    """The result of a query."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


#: Bodies up to this size stand in their message's row. A page holds three such rows.
INLINE_BODY = 1280


def encode_options(options: QueueOptions) -> str:
    """Return options as the JSON they are stored as."""
    return msgspec.json.encode(options).decode()


_decoder = msgspec.json.Decoder(QueueOptions)


def pattern_of(part: str) -> str:
    """Return what LIKE matches texts with that contain a part; "!" escapes."""
    for special in "!%_":
        part = part.replace(special, f"!{special}")
    return f"%{part}%"


def queue_record(row: tuple[Any, ...]) -> QueueRecord:
    """Return a queue's row as a record."""
    (
        queue_id, path, options, status, halted_by, dead_letter_halted_by, breaker, created, updated, kind,
        topic_id, rules, redacted,
    ) = row  # fmt: skip
    return QueueRecord(
        queue_id,
        path,
        _decoder.decode(options),
        QueueStatus(status),
        halted_by,
        dead_letter_halted_by,
        breaker,
        created,
        updated,
        EntityKind(kind),
        topic_id,
        rules,
        bool(redacted),
    )


class Memory:
    """The writer's knowledge without asking the file.

    All of it holds as long as nobody else has written, but for `queue_rows`, and for `cursors` (behind which
    key the fresh messages of a queue start, at the earliest): they hold for ever, because a message is fresh
    only once.
    """

    def __init__(self) -> None:
        self.queues: dict[str, QueueRecord | None] = {}
        self.queues_by_id: dict[int, QueueRecord | None] = {}
        #: Rows of queues as they were last, and what they say, by id: most are the same when read again.
        self.queue_rows: dict[int, tuple[tuple[Any, ...], QueueRecord]] = {}
        self.subscriptions: dict[int, tuple[QueueRecord, ...]] = {}
        self.last_sequences: dict[int, int] = {}
        self.cursors: dict[int, int] = {}
        #: When entities that must be used to stay are deleted, as far as it is known here.
        self.idle_at: dict[int, int] = {}
        #: Lanes, by their lowest key, of which not just the next fresh messages could be taken the last time.
        self.unclear: set[int] = set()
        #: What is known of the partitions of queues: hints that may be wrong.
        self.homes = Homes(lambda: 0)
        self.last_body: int | None = None
        self.definitions: Definitions | None = None
        #: Ends of dialogs, None where there is none.
        self.conversations: dict[str, ConversationRecord | None] = {}
        #: The priorities of which messages may be in a queue of dialogs.
        self.levels: dict[int, set[int]] = {}
        #: Whether messages may be locked by ranges.
        self.ranges = True
        #: Whether claims lock messages by ranges; None: it was not asked.
        self.claimed: bool | None = None
        #: Fingerprints of dead letters that are in the store, by place and number.
        self.fingerprints: set[tuple[int, int]] = set()
        #: How many a place has, and a family of them.
        self.fingerprint_amounts: dict[tuple[int, int | None], int] = {}
        #: Whether this process stands among the workers.
        self.registered = False

    def forget_queues(self) -> None:
        self.queues.clear()
        self.queues_by_id.clear()
        self.subscriptions.clear()

    def forget(self) -> None:
        """Forget values that another writer may have changed, or that an undone commit had changed."""
        self.forget_queues()
        self.last_sequences.clear()
        self.idle_at.clear()
        self.last_body = None
        self.definitions = None
        self.levels.clear()
        self.conversations.clear()
        self.fingerprint_amounts.clear()
        self.ranges = True
        self.claimed = None


class Connection(Protocol):
    """A connection to a database, in a transaction or not."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    @property
    def total_changes(self) -> int:
        """A number that grows when something is changed."""
        ...

    def execute(self, sql: str, parameters: Any = ..., /) -> Cursor:
        """Run a statement."""
        ...

    def close(self) -> None:
        """Close it; uncommitted changes are undone."""
        ...
