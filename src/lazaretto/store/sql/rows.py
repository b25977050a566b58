"""What a transaction's parts share: the queries, queues as rows, what is remembered between commits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from lazaretto.model.dialog_contracts import Definitions
from lazaretto.model.entities import EntityKind, QueueOptions, QueueStatus
from lazaretto.store.contract.dialog_contract import ConversationRecord
from lazaretto.store.contract.records import QueueRecord
from lazaretto.store.sql.query_files import with_rows


class Cursor(Protocol):
    """What a query found."""

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

#: Rows of one INSERT: more gains nothing.
_MOST_ROWS = 100


class Inserts:
    """A query that takes rows, for any number of them."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._queries: dict[int, str] = {}

    def run(self, execute: Callable[..., object], values: list[Any], count: int) -> None:
        """Give it `count` rows, whose values stand one after the other."""
        width = len(values) // count
        for start in range(0, count, _MOST_ROWS):
            rows = min(_MOST_ROWS, count - start)
            query = self._queries.get(rows)
            if query is None:
                query = self._queries[rows] = with_rows(self._sql, rows)
            execute(query, values[start * width : (start + rows) * width])


#: What is given many rows at once.
_INSERTS = (
    "insert_queues",
    "insert_messages",
    "insert_routed",
    "insert_bodies",
    "insert_events",
    "add_uses",
    "update_rows",
    "send_dead_letters",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """What differs from one database to another: the queries, and how they take a list of numbers."""

    queries: Mapping[str, str]
    ids: Callable[[Iterable[int]], object]
    inserts: Mapping[str, Inserts]

    @classmethod
    def of(cls, queries: Mapping[str, str], ids: Callable[[Iterable[int]], object]) -> Dialect:
        """Return a dialect by its queries, those that insert rows made ready."""
        return cls(queries, ids, {name: Inserts(queries[name]) for name in _INSERTS})


def encode_options(options: QueueOptions) -> str:
    """Return options as the JSON they are stored as."""
    return msgspec.json.encode(options).decode()


_decoder = msgspec.json.Decoder(QueueOptions)


def queue_record(row: tuple[Any, ...]) -> QueueRecord:
    """Return a queue's row as a record."""
    (
        queue_id, path, options, status, halted_by, dead_letter_halted_by, breaker, created, updated, kind,
        topic_id, rules,
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
    )


class Memory:
    """What the writer knows without asking the file.

    All of it holds as long as nobody else has written, but for `cursors` (behind which key the fresh
    messages of a queue start, at the earliest): they hold for ever, because a message is fresh only once.
    """

    def __init__(self) -> None:
        self.queues: dict[str, QueueRecord | None] = {}
        self.queues_by_id: dict[int, QueueRecord | None] = {}
        self.subscriptions: dict[int, tuple[QueueRecord, ...]] = {}
        self.last_sequences: dict[int, int] = {}
        self.cursors: dict[int, int] = {}
        #: When entities that must be used to stay are deleted, as far as it is known here.
        self.idle_at: dict[int, int] = {}
        #: Queues of which not just the next fresh messages could be taken the last time.
        self.unclear: set[int] = set()
        self.last_body: int | None = None
        self.definitions: Definitions | None = None
        #: Ends of dialogs, None where there is none.
        self.conversations: dict[str, ConversationRecord | None] = {}
        #: The priorities of which messages may be in a queue of dialogs.
        self.levels: dict[int, set[int]] = {}
        #: Whether messages may be locked by ranges.
        self.ranges = True
        #: Whether this process stands among the workers.
        self.registered = False

    def forget_queues(self) -> None:
        self.queues.clear()
        self.queues_by_id.clear()
        self.subscriptions.clear()

    def forget(self) -> None:
        """Forget what another writer may have changed, or what a commit that was undone had changed."""
        self.forget_queues()
        self.last_sequences.clear()
        self.idle_at.clear()
        self.last_body = None
        self.definitions = None
        self.levels.clear()
        self.conversations.clear()
        self.ranges = True
