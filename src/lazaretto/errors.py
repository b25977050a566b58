"""Every error Lazaretto raises: one tree, each class with a stable code.

The docstring of a class is its message when it is raised without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class LazarettoError(Exception):
    """Something went wrong in Lazaretto."""

    code: ClassVar[str] = "error"
    #: Whether the same call may succeed later without a change by the caller.
    retriable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        doc = type(self).__doc__ or type(self).__name__
        super().__init__(message or doc.split("\n", 1)[0])


class InvalidOption(LazarettoError, ValueError):
    """An option has an unknown name or a value that is not allowed."""

    code = "invalid_option"


class InvalidMessage(LazarettoError, ValueError):
    """A message has a field of the wrong type or over its limit."""

    code = "invalid_message"


class MessageTooLarge(InvalidMessage):
    """A message is larger than the queue accepts."""

    code = "message_too_large"


class InvalidPath(LazarettoError, ValueError):
    """A path is empty, too long, or has a character that is not allowed."""

    code = "invalid_path"


class NotAllowed(LazarettoError):
    """The operation is not allowed on this entity."""

    code = "not_allowed"


class EntityError(LazarettoError):
    """An entity is not in the state the operation needs."""

    code = "entity_error"


class EntityNotFound(EntityError, LookupError):
    """No entity exists at this path."""

    code = "entity_not_found"


class EntityExists(EntityError):
    """An entity exists at this path already."""

    code = "entity_exists"


class QueueDisabled(EntityError):
    """The queue is switched off: for sending, for receiving, or for both."""

    code = "queue_disabled"


class QuotaExceeded(EntityError):
    """The queue or topic is full."""

    code = "quota_exceeded"
    retriable = True


def _because(reason: str, error: str | None) -> str:
    return reason if error is None else f"{reason} ({error.rstrip('.')})"


class PoisonMessageError(EntityError):
    """The queue is halted by a poison message and cannot be received from.

    Attributes: `entity` (path), `sequence_number` (the culprit's lookup id), `delivery_count`,
    `cycle` (retry cycles used), `reason`, `error` (the latest, None if there was none). The queue goes on
    after `resume` with a verdict.
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
            f"{entity!r} is halted by message {sequence_number} after {delivery_count} deliveries "
            f"({cycle} retry cycles): {_because(reason, error)}. Resume it with a verdict on that message: "
            "retry, move, drop or reject"
        )


class SessionHeld(EntityError):
    """The session is held back by a poison message and cannot be received from.

    Attributes: `entity` (path), `session_id`, `sequence_number` (of the poison message), `mode`
    ("block" or "park"), `reason`, `error`, the latest. Other sessions of the queue go on; this one does
    after `resume_session`.
    """

    code = "session_held"

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
            "Resume it with a verdict on that message: retry, move, drop or reject"
            if mode == "block"
            else "Resubmit or purge that dead letter, or resume the session with retry or skip"
        )
        super().__init__(
            f"session {session_id!r} of {entity!r} is held back by message {sequence_number}: "
            f"{_because(reason, error)}. {what}"
        )


class SettlementError(LazarettoError):
    """A message could not be settled."""

    code = "settlement_error"


class MessageLockLost(SettlementError):
    """The lock on the message is no longer held; nothing was changed.

    The lock expired, the message was settled already, or another receiver holds it now.
    `sequence_numbers` names the messages of the call whose lock is lost.
    """

    code = "message_lock_lost"

    def __init__(self, message: str | None = None, sequence_numbers: Sequence[int] = ()) -> None:
        self.sequence_numbers = tuple(sequence_numbers)
        super().__init__(message)


class SessionLockLost(SettlementError):
    """The lock on the session is no longer held; nothing was changed."""

    code = "session_lock_lost"


class SessionCannotBeLocked(LazarettoError):
    """The session is locked by another receiver."""

    code = "session_cannot_be_locked"
    retriable = True


class MessageNotFound(LazarettoError, LookupError):
    """No message with this sequence number is in the state the operation needs."""

    code = "message_not_found"


class MessageNotReceivable(MessageNotFound):
    """The message is there and cannot be received by its number now.

    Attributes: `entity` (path), `sequence_number`, `state` (a MessageState: locked, deferred, scheduled,
    delayed, suspect; active if something else stands against it).
    """

    code = "message_not_receivable"

    def __init__(self, text: str, entity: str, sequence_number: int, state: object) -> None:
        self.entity = entity
        self.sequence_number = sequence_number
        self.state = state
        super().__init__(text)


class DefinitionError(LazarettoError):
    """A message type, contract, service or priority is missing, in use, or does not allow this."""

    code = "definition_error"


class ConversationNotFound(LazarettoError, LookupError):
    """No conversation has this handle; it may have been ended."""

    code = "conversation_not_found"


class ConversationError(EntityError):
    """The conversation is not in a state that allows this."""

    code = "conversation_error"


class ConversationLocked(LazarettoError):
    """The conversation's group is locked by another receiver."""

    code = "conversation_locked"
    retriable = True


class TransactionError(LazarettoError):
    """The transaction cannot do this."""

    code = "transaction_error"


class BrokerClosed(LazarettoError):
    """The broker, sender or receiver is closed."""

    code = "closed"


class ClaimFenced(EntityError):
    """Another driver has attached to the consumer of claims since; this one must stop."""

    code = "claim_fenced"


class JavaNotFound(LazarettoError):
    """There is no Java that Spark runs on."""

    code = "java_not_found"


class SystemicFailure(LazarettoError):
    """Most messages of a micro-batch fail in one way: an outage, not poison. They were given back."""

    code = "systemic_failure"


class FilterSyntaxError(LazarettoError, ValueError):
    """A filter or action of a rule cannot be understood.

    `line`, `column`: where, counted from 1; 0: the whole of it.
    """

    code = "filter_syntax"

    def __init__(self, message: str | None = None, line: int = 0, column: int = 0) -> None:
        super().__init__(f"line {line}, column {column}: {message}" if line else message)
        self.line = line
        self.column = column


class FilterError(LazarettoError):
    """A filter or action of a rule cannot be evaluated on this message."""

    code = "filter_error"


class HandlerError(LazarettoError):
    """A handler cannot be used: it cannot be imported, or has the wrong signature."""

    code = "handler_error"


class SandboxError(LazarettoError):
    """A sandbox has no process to run anything in."""

    code = "sandbox_error"


class SandboxSetupError(SandboxError):
    """What a sandbox is to run could not be set up there.

    `error_type` and `stack`: of the error that the setup raised, where it did.
    """

    code = "sandbox_setup_error"

    def __init__(
        self, message: str | None = None, error_type: str | None = None, stack: str | None = None
    ) -> None:
        self.error_type = error_type
        self.stack = stack
        super().__init__(message)


class StoreError(LazarettoError):
    """The store could not do its work; what the call asked for did not happen."""

    code = "store_error"


class StoreBusy(StoreError):
    """Another process held the store for longer than the time allowed."""

    code = "store_busy"
    retriable = True


class StoreUnavailable(StoreError):
    """The server of the store cannot be reached, or has no connection left."""

    code = "store_unavailable"
    retriable = True


class CommitUnknown(StoreError):
    """The connection was lost while the store committed: what the call asked for may have happened or not.

    Settling again is safe: it raises MessageLockLost if it had happened. Sending again is, where the queue
    detects duplicates and the message has an id of its sender's.
    """

    code = "commit_unknown"


class StoreFull(StoreError):
    """There is no room left for the store on its disk."""

    code = "store_full"
    retriable = True


class StoreReadOnly(StoreError):
    """The store cannot be written to."""

    code = "store_read_only"


class StoreNotFound(StoreError, FileNotFoundError):
    """There is no store at this place, and none was to be made."""

    code = "store_not_found"


class StoreGone(StoreError):
    """The store's file, or its write-ahead log, was removed or replaced while it was open."""

    code = "store_gone"


class StoreCorrupt(StoreError):
    """The file is damaged, or is not a database."""

    code = "store_corrupt"


class StoreForeign(StoreError):
    """The file is a database, but not one of Lazaretto's."""

    code = "store_foreign"


class StoreIncomplete(StoreError):
    """The store is a copy of another one that was broken off."""

    code = "store_incomplete"


class StoreOutdated(StoreError):
    """The store must be migrated first, which workers of older versions do not survive."""

    code = "store_outdated"


class StoreTooNew(StoreError):
    """The store was written by a newer version of Lazaretto."""

    code = "store_too_new"
