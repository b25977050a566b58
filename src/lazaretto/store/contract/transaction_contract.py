"""The contract between the engine and a store.

The contract is Lazaretto's own and may change between versions; it is not meant to be
implemented by users.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from lazaretto.errors import LazarettoError
from lazaretto.model.entities import Subqueue
from lazaretto.model.messages import PeekedMessage, ReceivedMessage
from lazaretto.store.contract.access_contract import StoredAccess
from lazaretto.store.contract.cause_contract import StoredCauses
from lazaretto.store.contract.claim_contract import StoredClaims
from lazaretto.store.contract.command_contract import StoredCommands
from lazaretto.store.contract.dialog_contract import StoredDialogs
from lazaretto.store.contract.history_contract import StoredHistory
from lazaretto.store.contract.listing_contract import StoredListings
from lazaretto.store.contract.message_contract import (
    StoredBodies,
    StoredMessageIds,
    StoredPartitions,
    StoredSequences,
)
from lazaretto.store.contract.overview_contract import StoredOverview
from lazaretto.store.contract.queue_contract import StoredQueues
from lazaretto.store.contract.rate_contract import StoredRates
from lazaretto.store.contract.records import (
    Leased,
    MessageRow,
    NewMessage,
    Notice,
    QueueRecord,
    Share,
)
from lazaretto.store.contract.repair_contract import StoredRepairs
from lazaretto.store.contract.sample_contract import StoredSamples
from lazaretto.store.contract.session_contract import StoredSessions
from lazaretto.store.contract.topic_contract import StoredTopics
from lazaretto.store.contract.worker_contract import StoredWorkers

T = TypeVar("T")


class Transaction(Protocol):
    """Everything an operation may do within one commit. A key is a message's address (see keys).

    This class covers messages; each other subject has a part of its own.

    Messages for delivery are returned without their lock: the caller that locks them adds it. Suspects are
    marked `alone`.
    """

    @property
    def queues(self) -> StoredQueues:
        """Operations on queues, topics and subscriptions."""
        ...

    @property
    def sessions(self) -> StoredSessions:
        """Operations on sessions."""
        ...

    @property
    def topics(self) -> StoredTopics:
        """Operations on topics."""
        ...

    @property
    def dialogs(self) -> StoredDialogs:
        """Operations on dialogs."""
        ...

    @property
    def claims(self) -> StoredClaims:
        """Operations on claims."""
        ...

    @property
    def workers(self) -> StoredWorkers:
        """Operations on workers and leases."""
        ...

    @property
    def history(self) -> StoredHistory:
        """Operations on attempts, dead letters, events and the audit log."""
        ...

    @property
    def causes(self) -> StoredCauses:
        """Operations on causes of dead letters."""
        ...

    @property
    def listings(self) -> StoredListings:
        """Reads pages of dead letters."""
        ...

    @property
    def overview(self) -> StoredOverview:
        """Reads how queues stand, at a glance."""
        ...

    @property
    def commands(self) -> StoredCommands:
        """Operations on commands that were run under an idempotency key."""
        ...

    @property
    def access(self) -> StoredAccess:
        """Operations on people and their secrets."""
        ...

    @property
    def repairs(self) -> StoredRepairs:
        """Operations on repairs."""
        ...

    @property
    def message_ids(self) -> StoredMessageIds:
        """Operations on message ids for duplicate detection."""
        ...

    @property
    def bodies(self) -> StoredBodies:
        """Operations on separately stored bodies."""
        ...

    @property
    def samples(self) -> StoredSamples:
        """Operations on completed messages that are kept as examples."""
        ...

    @property
    def rates(self) -> StoredRates:
        """Operations on rates."""
        ...

    @property
    def partitions(self) -> StoredPartitions:
        """Operations on the partitions of queues."""
        ...

    @property
    def sequences(self) -> StoredSequences:
        """Operations on sequence numbers."""
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
        """Whether the commit is only being planned: then only settings of the store can be read."""
        ...

    def random_token(self, messages: int = 1) -> int:
        """Return a new token for a lock on up to `messages` messages."""
        ...

    def random_fraction(self) -> float:
        """Return a number from 0 to 1, for jitter."""
        ...

    def wake(self, key: int, messages: int = 1) -> None:
        """After the commit, wake receivers of the subqueue that contains `key`, for a number of messages."""
        ...

    def tell(self, notice: Notice) -> None:
        """Log a notice after the commit succeeds."""
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
        """Start the work of `insert_messages` without waiting for the keys.

        Return a function that gives the keys after the commit; None if that is not possible.
        """
        ...

    def start_routing(self, route: Callable[[], list[int]]) -> Callable[[], list[int]] | None:
        """Plan the way of new messages, which `route` puts into queues and returns the keys of.

        Return a function that gives these keys after the commit; None if that is not possible.
        """
        ...

    def insert_row(self, row: MessageRow, body: bytes | None) -> None:
        """Add a message with earlier attempts; `body_id` names a separately stored body."""
        ...

    def replace_messages(self, dead: Sequence[MessageRow], live: Sequence[tuple[MessageRow, bytes]]) -> None:
        """Put messages with earlier attempts, each with its body, in the place of others."""
        ...

    def take_clear(self, lane: int, limit: int, token: int, until: int) -> list[ReceivedMessage] | None:
        """Take the next fresh messages of a lane if nothing precedes them, else return None.

        That is: no timer in the store is due, and no message of the lane is suspect or ready.
        """
        ...

    def start_taking(
        self, queue: QueueRecord, wanted: Sequence[tuple[int, int]], until: int
    ) -> Sequence[Callable[[], list[ReceivedMessage] | Again]] | None:
        """Start several `take_clear` calls, each with limit and token, without waiting for answers.

        All take from one lane. Return functions that give the answers after the commit, ELSEWHERE if
        another lane may have messages; None if that is not possible.
        """
        ...

    def start_leasing(
        self, queue: QueueRecord, share: Share, token: int, until: int, *, started: bool
    ) -> Callable[[], Leased | Again] | None:
        """Do `take_clear` for a service host, with a lease on what is taken, without waiting for the answer.

        Return a function that gives the answer after the commit, as `start_taking` does; None if that is not
        possible.
        """
        ...

    def take_fresh(self, lane: int, limit: int, token: int, until: int) -> list[ReceivedMessage]:
        """Lock and return the next fresh messages of a lane."""
        ...

    def select_ready(self, first: int, last: int, limit: int) -> list[ReceivedMessage]:
        """Return ready messages between two keys."""
        ...

    def count_fitting(self, lane: int, subqueue: Subqueue, limit: int, most: int) -> int:
        """Return how many of the next messages of a lane, or a subqueue, fit into a size; at least 1."""
        ...

    def count_fitting_of_session(self, queue_id: int, session_id: str, limit: int, most: int) -> int:
        """Return how many of the next messages of a session fit into a size; at least 1."""
        ...

    def select_session_messages(
        self, queue_id: int, session_id: str, state: int, before: int, limit: int
    ) -> list[ReceivedMessage]:
        """Return receivable messages of a session with a key below `before`."""
        ...

    def select_messages(self, keys: Sequence[int], state: int) -> list[ReceivedMessage]:
        """Return the given messages that are in the state."""
        ...

    def lock(self, keys: Sequence[int], token: int, until: int | None) -> None:
        """Lock messages; `until` is None when a session's lock holds them."""
        ...

    def held(self, keys: Sequence[int], token: int) -> set[int]:
        """Return the given messages that are held under the lock now."""
        ...

    def held_rows(self, keys: Sequence[int], token: int) -> dict[int, MessageRow]:
        """Return the given messages that are held under the lock now, by key."""
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
        """Return the given messages that exist, by key."""
        ...

    def body(self, key: int) -> bytes:
        """Return one message's body."""
        ...

    def look_ahead(self, keys: Sequence[int]) -> None:
        """Read together what is asked of each of several messages that become dead letters next."""
        ...

    def save_row(self, row: MessageRow, new_key: int | None = None) -> None:
        """Store a message's new state, unlocked, under another key if one is given."""
        ...

    def save_rows(self, rows: Mapping[int, MessageRow]) -> None:
        """Store the new states of several messages, unlocked, each under the given key."""
        ...

    def save_counters(self, row: MessageRow) -> None:
        """Store only a message's counters; its lock, if any, stays."""
        ...

    def renew_lock(self, key: int, token: int, until: int) -> bool:
        """Renew a lock; return False if it is lost."""
        ...

    def renew_locks(self, keys: Sequence[int], token: int, until: int) -> None:
        """Renew the locks on the given messages that are held."""
        ...

    def anything_due(self) -> bool:
        """Return whether any message, session, claim or idle entity is due."""
        ...

    def due(self, limit: int) -> list[MessageRow]:
        """Return the messages that are due."""
        ...

    def active(self, first: int, last: int, limit: int) -> list[MessageRow]:
        """Return the first active messages between two keys."""
        ...

    def make_due(self, first: int, last: int) -> None:
        """Make the first active message between two keys due."""
        ...

    def next_due(self) -> int | None:
        """Return when the next message, session, claim or idle entity is due."""
        ...

    def peek(self, first: int, last: int, limit: int, *, delayed: bool) -> list[PeekedMessage]:
        """Return messages between two keys, in every state."""
        ...

    def sizes(self, first: int, last: int, limit: int, *, delayed: bool) -> list[tuple[int, int]]:
        """Return the keys and bytes of messages between two keys, in order, in every state or delayed."""
        ...

    def sizes_of(self, keys: Sequence[int]) -> dict[int, int]:
        """Return the bytes of the given messages that exist, by key."""
        ...

    def peeked_keys(
        self, queue_id: int, session_id: str, first: int, last: int, limit: int, *, delayed: bool
    ) -> list[int]:
        """Return the keys of a session's messages between two keys, in order, in every state or delayed."""
        ...

    def peek_keys(self, keys: Sequence[int]) -> list[PeekedMessage]:
        """Return the given messages that exist, as `peek` does."""
        ...

    def select_suspect(self, first: int, last: int) -> ReceivedMessage | None:
        """Return the first message between two keys that must be delivered alone."""
        ...


class Again(enum.Enum):
    """The type of `AGAIN` and `ELSEWHERE`, which mean that there is no answer yet."""

    AGAIN = enum.auto()
    ELSEWHERE = enum.auto()


AGAIN = Again.AGAIN
ELSEWHERE = Again.ELSEWHERE


class Operation(Generic[T]):
    """One call's change to the store, which shares a commit with other operations.

    `run` may be called more than once, each time on a clean state: when another operation of the
    same commit fails, the commit is done again with each operation by itself. It must therefore
    keep nothing from one call to the next.
    """

    __slots__ = ()

    #: Whether the answer waits until the commit is on disk. If not, it only survives a killed process.
    durable: ClassVar[bool] = True
    #: Whether it may be planned before its commit: it changes no settings, and touches few queues.
    foreseeable: bool = False

    def run(self, tx: Transaction) -> T | Again:
        """Run the operation and return its answer.

        The answer `AGAIN` means that part of the work is done; `run` is called again in another commit.
        """
        raise LazarettoError(f"{type(self).__name__} cannot be run")

    def start(self, tx: Transaction) -> Callable[[], T | Again] | None:
        """Run without reading the store; return a function that gives the answer after the commit.

        Return None if that is not possible. The answer `AGAIN` means that nothing was done, and `run` must do
        it. `ELSEWHERE` means that nothing was found, and it must be started again to look elsewhere.
        """
        return None

    def confined_to(self) -> str | None:
        """Return the key of the path of a queue that nobody else may change meanwhile; None: of all queues.

        What it changes of other queues is no more than what it sends to them.
        """
        return None

    #: The order of this class within a commit: lower ones run first.
    rank: ClassVar[int] = 1

    #: Whether `run_all` is faster for several operations than running each by itself.
    mergeable: ClassVar[bool] = False

    @classmethod
    def run_all(cls, tx: Transaction, operations: Sequence[Any]) -> Iterable[Any]:
        """Run several operations of this class; return their answers in order."""
        return [operation.run(tx) for operation in operations]

    @classmethod
    def start_all(
        cls, tx: Transaction, operations: Sequence[Any]
    ) -> Sequence[Callable[[], Any | Again] | None]:
        """Start several operations of this class, as `start` does each."""
        return [operation.start(tx) for operation in operations]
