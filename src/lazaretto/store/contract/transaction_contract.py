"""The contract of a store, which the engine is written against.

The contract is Lazaretto's own and may change between versions; it is not meant to be
implemented by users.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from lazaretto.errors import LazarettoError, StoreError
from lazaretto.model.clock import Clock
from lazaretto.model.messages import PeekedMessage, ReceivedMessage
from lazaretto.store.contract.cause_contract import StoredCauses
from lazaretto.store.contract.claim_contract import StoredClaims
from lazaretto.store.contract.dialog_contract import StoredDialogs
from lazaretto.store.contract.history_contract import StoredHistory
from lazaretto.store.contract.message_contract import StoredBodies, StoredMessageIds, StoredSequences
from lazaretto.store.contract.queue_contract import StoredQueues
from lazaretto.store.contract.records import (
    MessageRow,
    NewMessage,
    Notice,
    QueueRecord,
)
from lazaretto.store.contract.sample_contract import StoredSamples
from lazaretto.store.contract.session_contract import StoredSessions
from lazaretto.store.contract.topic_contract import StoredTopics
from lazaretto.store.contract.worker_contract import StoredWorkers

T = TypeVar("T")


class Transaction(Protocol):
    """What an operation may do within one commit. A key is a message's address (see keys).

    Messages are dealt with here; each other subject has a part of its own.

    Messages to hand over come without their lock: whoever locks them, or has had them locked, puts it in.
    Those that are suspects are marked `alone`.
    """

    @property
    def queues(self) -> StoredQueues:
        """What may be done with queues, topics and subscriptions."""
        ...

    @property
    def sessions(self) -> StoredSessions:
        """What may be done with sessions."""
        ...

    @property
    def topics(self) -> StoredTopics:
        """What may be done with topics."""
        ...

    @property
    def dialogs(self) -> StoredDialogs:
        """What may be done with dialogs."""
        ...

    @property
    def claims(self) -> StoredClaims:
        """What may be done with claims."""
        ...

    @property
    def workers(self) -> StoredWorkers:
        """What may be done with workers and leases."""
        ...

    @property
    def history(self) -> StoredHistory:
        """What may be done with attempts, dead letters, events and the audit log."""
        ...

    @property
    def causes(self) -> StoredCauses:
        """What may be done with causes of dead letters."""
        ...

    @property
    def message_ids(self) -> StoredMessageIds:
        """What may be done with message ids that may come again."""
        ...

    @property
    def bodies(self) -> StoredBodies:
        """What may be done with bodies that stand by themselves."""
        ...

    @property
    def samples(self) -> StoredSamples:
        """What may be done with completed messages that are kept as examples."""
        ...

    @property
    def sequences(self) -> StoredSequences:
        """What may be done with sequence numbers."""
        ...

    @property
    def now(self) -> int:
        """The store's time, the same for the whole operation."""
        ...

    @property
    def worker(self) -> str:
        """The name under which this process's locks are recorded."""
        ...

    @property
    def plans(self) -> bool:
        """Whether the commit is only planned yet: nothing of the store but settings can be read."""
        ...

    def random_token(self, messages: int = 1) -> int:
        """Return a new token for a lock on so many messages at most."""
        ...

    def random_fraction(self) -> float:
        """Return a number from 0 to 1, for jitter."""
        ...

    def wake(self, key: int, messages: int = 1) -> None:
        """Tell receivers of the subqueue that `key` lies in, after the commit, that there may be so many."""
        ...

    def tell(self, notice: Notice) -> None:
        """Log something after the commit, if it is done."""
        ...

    def new_message_id(self) -> str:
        """Return an id for a message whose sender gave none."""
        ...

    # Messages.
    def insert_messages(
        self, queue: QueueRecord, messages: Sequence[NewMessage], *, force_fresh: bool = False
    ) -> list[int]:
        """Add messages at the queue's end; return their keys."""
        ...

    def start_sending(
        self, queue: QueueRecord, messages: Sequence[NewMessage]
    ) -> Callable[[], list[int]] | None:
        """Do what `insert_messages` does without knowing their keys.

        Return what gives the keys once the commit is done; None if that is not possible.
        """
        ...

    def insert_row(self, row: MessageRow, body: bytes | None) -> None:
        """Add a message with a past; a body that stands by itself is named by `body_id`."""
        ...

    def take_clear(self, queue_id: int, limit: int, token: int, until: int) -> list[ReceivedMessage] | None:
        """Take the next fresh messages of a queue if nothing else is to be looked at first, else None.

        That is: nothing is due anywhere in the store, and no message of the queue is suspect or was handed
        out before.
        """
        ...

    def start_taking(
        self, queue_id: int, wanted: Sequence[tuple[int, int]], until: int
    ) -> Sequence[Callable[[], list[ReceivedMessage] | None]] | None:
        """Do what `take_clear` does for several, each with a limit and a token, without waiting for answers.

        Return what gives the answers once the commit is done; None if that is not possible.
        """
        ...

    def take_fresh(self, queue_id: int, limit: int, token: int, until: int) -> list[ReceivedMessage]:
        """Lock and return the next messages that were never handed out."""
        ...

    def select_ready(self, first: int, last: int, limit: int) -> list[ReceivedMessage]:
        """Return receivable messages between two keys that were handed out before."""
        ...

    def count_fitting(self, first: int, last: int, limit: int, most: int) -> int:
        """Return how many of the next messages between two keys have so many bytes at most; at least 1."""
        ...

    def count_fitting_of_session(self, queue_id: int, session_id: str, limit: int, most: int) -> int:
        """Return how many of the next messages of a session have so many bytes at most; at least 1."""
        ...

    def select_session_messages(
        self, queue_id: int, session_id: str, state: int, before: int, limit: int
    ) -> list[ReceivedMessage]:
        """Return receivable messages of a session with a key below `before`."""
        ...

    def select_messages(self, keys: Sequence[int], state: int) -> list[ReceivedMessage]:
        """Return those of the messages that are in the state."""
        ...

    def lock(self, keys: Sequence[int], token: int, until: int | None) -> None:
        """Lock messages; `until` is None when a session's lock holds them."""
        ...

    def held(self, keys: Sequence[int], token: int) -> set[int]:
        """Return those of the messages that are held under the lock now."""
        ...

    def held_rows(self, keys: Sequence[int], token: int) -> dict[int, MessageRow]:
        """Return those of the messages that are held under the lock now, by key."""
        ...

    def delete_held(self, held: Mapping[int, Sequence[int]]) -> bool:
        """Remove messages held under locks, given by token; return False if the lock on any is lost."""
        ...

    def delete_messages(self, keys: Sequence[int]) -> None:
        """Remove messages."""
        ...

    def row(self, key: int) -> MessageRow | None:
        """Return one message."""
        ...

    def rows(self, keys: Sequence[int]) -> dict[int, MessageRow]:
        """Return those of the messages that are there, by key."""
        ...

    def body(self, key: int) -> bytes:
        """Return one message's body."""
        ...

    def save_row(self, row: MessageRow, new_key: int | None = None) -> None:
        """Store a message's new standing, unlocked, under another key if one is given."""
        ...

    def save_rows(self, rows: Mapping[int, MessageRow]) -> None:
        """Store the new standing of several messages, unlocked, each under the key it is given by."""
        ...

    def save_counters(self, row: MessageRow) -> None:
        """Store a message's counters alone; its lock, if it has one, stays."""
        ...

    def renew_lock(self, key: int, token: int, until: int) -> bool:
        """Prolong a lock; return False if it is lost."""
        ...

    def renew_locks(self, keys: Sequence[int], token: int, until: int) -> None:
        """Prolong the locks on those of the messages that are held."""
        ...

    def anything_due(self) -> bool:
        """Return whether the time of any message, session, claim or idle entity has come."""
        ...

    def due(self, limit: int) -> list[MessageRow]:
        """Return the messages whose time has come."""
        ...

    def active(self, first: int, last: int, limit: int) -> list[MessageRow]:
        """Return the first active messages between two keys."""
        ...

    def make_due(self, first: int, last: int) -> None:
        """Let the first active message between two keys be looked at by whoever does what is due."""
        ...

    def next_due(self) -> int | None:
        """Return when the store must next look at a message, session, claim or idle entity."""
        ...

    def peek(self, first: int, last: int, limit: int, *, delayed: bool) -> list[PeekedMessage]:
        """Return messages between two keys as they stand."""
        ...

    def peek_keys(self, keys: Sequence[int]) -> list[PeekedMessage]:
        """Return those of the messages that are there, as `peek` does."""
        ...

    def select_suspect(self, first: int, last: int) -> ReceivedMessage | None:
        """Return the first message between two keys that must be handed out alone."""
        ...


class Again(enum.Enum):
    """The one answer that is none."""

    AGAIN = enum.auto()


AGAIN = Again.AGAIN


class Operation(Generic[T]):
    """Something to do within one commit, together with the operations of others.

    `run` may be called more than once, each time on a clean state: when another operation of the
    same commit fails, the commit is done again with each operation by itself. It must therefore
    keep nothing from one call to the next.
    """

    __slots__ = ()

    #: Whether the answer waits until the commit is on disk, or only until it survives a kill.
    durable: ClassVar[bool] = True
    #: Whether it often needs nothing but the settings of queues to be read before its commit.
    foreseeable: ClassVar[bool] = False

    def run(self, tx: Transaction) -> T | Again:
        """Do it and return the answer.

        `AGAIN` as the answer: a part of what goes before is done; `run` is called again, in another commit.
        """
        raise LazarettoError(f"{type(self).__name__} cannot be run")

    def start(self, tx: Transaction) -> Callable[[], T | Again] | None:
        """Do it without reading the store, and return what gives the answer once the commit is done.

        None if that is not possible. `AGAIN` as the answer: it was not, nothing was done; `run` is to do it.
        """
        return None

    #: The place of operations of this class among those of one commit: lower ones are done first.
    rank: ClassVar[int] = 1

    #: Whether `run_all` does more than one at a time better than one after the other.
    mergeable: ClassVar[bool] = False

    @classmethod
    def run_all(cls, tx: Transaction, operations: Sequence[Any]) -> Iterable[Any]:
        """Do several operations of this class; return their answers in order."""
        return [operation.run(tx) for operation in operations]

    @classmethod
    def start_all(
        cls, tx: Transaction, operations: Sequence[Any]
    ) -> Sequence[Callable[[], Any | Again] | None]:
        """Start several operations of this class, as `start` does each."""
        return [operation.start(tx) for operation in operations]


class Savepoint(Protocol):
    """A point within an exclusive session to return to."""

    def rollback(self) -> None:
        """Undo what was done since."""
        ...


class Exclusive(Protocol):
    """The store's one writer, held by one caller for its own SQL and operations in one commit."""

    def execute(self, sql: str, parameters: Any) -> Any:
        """Run the user's SQL and return its cursor."""
        ...

    def savepoint(self) -> Savepoint:
        """Mark a point to return to."""
        ...

    def commit(self, operation: Operation[T]) -> T:
        """Run the operation, commit everything, end."""
        ...

    def rollback(self) -> None:
        """Undo everything, end."""
        ...


class Store(Protocol):
    """Keeps everything, for several threads and several processes."""

    clock: Clock

    @property
    def errors(self) -> type[Exception]:
        """The database's own errors, which a user's SQL may raise."""
        ...

    @property
    def paramstyle(self) -> str:
        """How its SQL names parameters, in DB-API's words."""
        ...

    def run(self, operation: Operation[T]) -> T:
        """Do an operation, in one commit with those of other threads; return when it is safe."""
        ...

    def read(self, query: Callable[[Transaction], T]) -> T:
        """Return what `query` finds in one consistent snapshot."""
        ...

    def exclusive(self) -> Exclusive:
        """Become the one writer, for the user's own SQL."""
        ...

    def own_fault(self, error: Exception) -> StoreError | None:
        """Return a database's error as ours if the store is at fault; None if a user's SQL is."""
        ...

    def changes(self, key: int) -> int:
        """Return a number that grows when the subqueue that `key` lies in may have more to receive."""
        ...

    def wait(self, key: int, seen: int, seconds: float, alike: str | None = None) -> bool:
        """Wait until `changes(key)` is no longer `seen`; return False when the time is over.

        `alike`: what it waits for, as others do who may be woken in its stead; then `pass_on` is to follow.
        """
        ...

    def pass_on(self, key: int, alike: str | None) -> None:
        """Wake one more of those who wait for the same: who was woken has found something, or failed."""
        ...

    def close(self) -> None:
        """Give everything up. Waiting callers get BrokerClosed."""
        ...
