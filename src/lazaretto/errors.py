"""Every error that Lazaretto raises: one tree, each class with a stable code.

An error raised without a message uses the first line of its class's docstring.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import ClassVar


class LazarettoError(Exception):
    """Something went wrong in Lazaretto."""

    #: In this module, the class's name in small letters, unless the class says otherwise.
    code: ClassVar[str] = "error"
    #: Whether the same call may succeed later, unchanged.
    retriable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        doc = type(self).__doc__ or type(self).__name__
        super().__init__(message or doc.split("\n", 1)[0])

    def __init_subclass__(cls) -> None:
        # A subclass of elsewhere is its parent to those who read codes.
        if "code" not in vars(cls) and cls.__module__ == __name__:
            cls.code = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


class InvalidOption(LazarettoError, ValueError):
    """An option has an unknown name or a value that is not allowed."""

    #: The error without the entities that it names, and which these are.
    plain: str | None = None
    entities: tuple[str, ...] = ()


class InvalidMessage(LazarettoError, ValueError):
    """A field of a message has the wrong type or exceeds its limit."""


class MessageTooLarge(InvalidMessage):
    """A message is larger than the queue accepts."""


class InvalidPath(LazarettoError, ValueError):
    """A path is empty, too long, or has a character that is not allowed."""


class NotAllowed(LazarettoError):
    """The operation is not allowed on this entity."""


class EntityError(LazarettoError):
    """The entity is in the wrong state for the operation."""


class EntityNotFound(EntityError, LookupError):
    """No entity exists at this path."""

    #: The error without what it suggests, the path that was asked for, those it was compared with, and
    #: whether there are more.
    plain: str | None = None
    path: str = ""
    others: tuple[str, ...] = ()
    more: bool = False


class EntityExists(EntityError):
    """An entity already exists at this path."""


class QueueDisabled(EntityError):
    """The queue is disabled for sending, for receiving, or for both."""


class ChangedMeanwhile(EntityError):
    """Somebody has changed the entity since it was looked at."""


class QuotaExceeded(EntityError):
    """The queue or topic is full."""

    retriable = True


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _because(reason: str, error: str | None) -> str:
    return reason if error is None else f"{reason} ({error.rstrip('.')})"


class PoisonMessageError(EntityError):
    """A poison message halted the queue, which delivers nothing until it is resumed.

    Attributes: `entity` (path), `sequence_number` (of the poison message), `delivery_count`, `cycle`
    (retry cycles used), `reason`, `error` (the latest one, or None). `Broker.resume_queue` resumes the
    queue with a verdict on the message.
    """

    code = "poison_message"

    def __init__(
        self,
        entity: str,
        sequence_number: int,
        delivery_count: int,
        cycle: int,
        reason: str,
        error: str | None = None,
    ) -> None:
        self.entity = entity
        self.sequence_number = sequence_number
        self.delivery_count = delivery_count
        self.cycle = cycle
        self.reason = reason
        self.error = error
        super().__init__(
            f"queue {entity!r} is halted by message {sequence_number} "
            f"after {_counted(delivery_count, 'attempt')} ({_counted(cycle, 'retry cycle')}): "
            f"{_because(reason, error)}. "
            "Resume the queue with a verdict on this message: retry, move, drop or reject"
        )


class SessionHeld(EntityError):
    """A poison message holds the session, which delivers nothing until it is resumed.

    Attributes: `entity` (path), `session_id`, `sequence_number` (of the poison message), `mode`
    ("block" or "park"), `reason`, `error` (the latest one, or None). `Broker.resume_session` resumes the
    session. Other sessions of the queue are not affected.
    """

    def __init__(
        self,
        entity: str,
        session_id: str,
        sequence_number: int,
        mode: str,
        reason: str,
        error: str | None = None,
    ) -> None:
        self.entity = entity
        self.session_id = session_id
        self.sequence_number = sequence_number
        self.mode = mode
        self.reason = reason
        self.error = error
        what = (
            "Resume the session with a verdict on this message: retry, move, drop or reject"
            if mode == "block"
            else "Resubmit or purge this dead letter, or resume the session with retry or skip"
        )
        super().__init__(
            f"session {session_id!r} of {entity!r} is held by message {sequence_number}: "
            f"{_because(reason, error)}. {what}"
        )


class SettlementError(LazarettoError):
    """A message could not be settled."""


class MessageLockLost(SettlementError):
    """The lock on the message is no longer held; nothing was changed.

    The lock expired, the message was already settled, or another receiver holds it now.
    `sequence_numbers` lists the messages of the call whose locks are lost.
    """

    def __init__(self, message: str | None = None, sequence_numbers: Sequence[int] = ()) -> None:
        self.sequence_numbers = tuple(sequence_numbers)
        super().__init__(message)


class SessionLockLost(SettlementError):
    """The lock on the session is no longer held; nothing was changed."""


class SessionCannotBeLocked(LazarettoError):
    """Another receiver has locked the session."""

    retriable = True


class MessageNotFound(LazarettoError, LookupError):
    """No message with this sequence number is in the required state."""


class MessageNotReceivable(MessageNotFound):
    """The message exists but cannot be received by its number now.

    Attributes: `entity` (path), `sequence_number`, `state` (a MessageState: locked, deferred, scheduled,
    delayed or suspect; active if there is another reason).
    """

    def __init__(self, text: str, entity: str, sequence_number: int, state: enum.Enum) -> None:
        self.entity = entity
        self.sequence_number = sequence_number
        self.state = state
        super().__init__(text)


class DefinitionError(LazarettoError):
    """A message type, contract, service or priority is missing, in use, or does not allow this."""


class ConversationNotFound(LazarettoError, LookupError):
    """No conversation has this handle; it may have ended."""


class ConversationError(EntityError):
    """The conversation's state does not allow this."""


class ConversationLocked(LazarettoError):
    """Another receiver has locked the conversation's group."""

    retriable = True


class TransactionError(LazarettoError):
    """The transaction does not allow this."""


class BrokerClosed(LazarettoError):
    """The broker, sender or receiver is closed."""

    code = "closed"


class ClaimFenced(EntityError):
    """Another driver has taken over this consumer of claims; this one must stop."""


class RepairNotFound(LazarettoError, LookupError):
    """No repair has this name."""


class RepairError(LazarettoError):
    """The repair is in the wrong phase for the operation, or its name is taken."""


class IdempotencyConflict(LazarettoError):
    """The idempotency key was used for another command."""


class PersonNotFound(LazarettoError, LookupError):
    """Nobody of this name was granted anything."""


class TokenNotFound(LazarettoError, LookupError):
    """No token or session has this id."""


class SecondPersonNeeded(LazarettoError):
    """Somebody else than whoever planned the repair must let it go on."""


class JavaNotFound(LazarettoError):
    """No Java version that Spark supports was found."""


class ExecutorNotReady(LazarettoError):
    """An executor of a Spark cluster cannot do the pipeline's work.

    `cause`: "no_executor", "no_python", "other_python", "no_package", "other_version", "no_handler",
    "no_store", "other_store", "other_schema", "no_results" or "unknown".
    """

    def __init__(self, message: str | None = None, cause: str = "unknown") -> None:
        super().__init__(message)
        self.cause = cause


class SystemicFailure(LazarettoError):
    """Most messages of a micro-batch failed in the same way, or its results cannot be written.

    It is an outage, not poison: the messages were released.
    """


class FilterSyntaxError(LazarettoError, ValueError):
    """A filter or action of a rule has a syntax error.

    `line` and `column` count from 1; 0 means the whole text.
    """

    code = "filter_syntax"

    def __init__(self, message: str | None = None, line: int = 0, column: int = 0) -> None:
        super().__init__(f"line {line}, column {column}: {message}" if line else message)
        self.line = line
        self.column = column


class FilterError(LazarettoError):
    """A filter or action of a rule cannot be evaluated on this message."""


class HandlerError(LazarettoError):
    """A handler cannot be used: it cannot be imported, or has the wrong signature."""


class SandboxError(LazarettoError):
    """No sandbox process can be started."""


class SandboxSetupError(SandboxError):
    """The setup in a sandbox failed.

    `error_type` and `stack` describe the error that the setup raised, if it raised one.
    """

    def __init__(
        self, message: str | None = None, error_type: str | None = None, stack: str | None = None
    ) -> None:
        self.error_type = error_type
        self.stack = stack
        super().__init__(message)


class StoreError(LazarettoError):
    """The store failed; the call changed nothing."""


class StoreBusy(StoreError):
    """Another process held the write lock for longer than the timeout."""

    retriable = True


class QueryTooLong(LazarettoError):
    """A query took longer than a server lets one take, and was ended. Ask for less."""

    retriable = True


class TooManyRequests(LazarettoError):
    """Somebody has as many requests of a kind under way as one person may. Ask again later."""

    retriable = True


class ServerOverloaded(LazarettoError):
    """A server holds as much for its clients as it may. Ask again later."""

    retriable = True


class StoreUnavailable(StoreError):
    """The store's server is unreachable, or has no free connection."""

    retriable = True


class CommitUnknown(StoreError):
    """The connection was lost during the commit, which may or may not have happened.

    Settling again is safe: it raises MessageLockLost if the first settlement was committed. Sending again is
    safe if the queue detects duplicates and the sender sets the message id.
    """


class StoreFull(StoreError):
    """The store's disk is full."""

    retriable = True


class StoreReadOnly(StoreError):
    """The store is read-only."""


class StoreNotFound(StoreError, FileNotFoundError):
    """The store does not exist, and the call does not create it."""


class StoreGone(StoreError):
    """The store's file, or its write-ahead log, was removed or replaced while it was open."""


class StoreCorrupt(StoreError):
    """The file is damaged, or is not a database."""


class ServerUnsuitable(StoreError):
    """The database, or a pooler before its server, cannot do what a store relies on."""


class StoreForeign(StoreError):
    """The database belongs to another application."""


class StoreIncomplete(StoreError):
    """The store is an interrupted copy of another one."""


class StoreOutdated(StoreError):
    """The store must be migrated first; stop workers of older versions before."""


class StoreTooNew(StoreError):
    """A newer version of Lazaretto, or of SQLite, wrote the store."""
