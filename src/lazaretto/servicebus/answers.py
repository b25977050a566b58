"""Answers to clients: errors as Service Bus's conditions, outcomes as verbs. Pure."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lazaretto import errors
from lazaretto.model.checks import without_unseen
from lazaretto.model.headers import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, PropertyValue
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.conditions import TRANSACTION_TIMEOUT, TRANSACTION_UNKNOWN_ID
from lazaretto.servicebus.amqp.performatives import (
    Accepted,
    DeliveryState,
    Error,
    Modified,
    Rejected,
    Released,
    TransactionalState,
)
from lazaretto.servicebus.conversions import properties_of

TIMEOUT: Final = "com.microsoft:timeout"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
SESSION_LOCK_LOST: Final = "com.microsoft:session-lock-lost"
INTERNAL: Final = "amqp:internal-error"


class _Row(NamedTuple):
    """A condition, the status of an answer with it, which errors it tells, and how Service Bus tells them.

    `sentence`: programs look for its words, so that every text begins with it; ours follow. `{}` stands for
    the entity or the session.
    """

    condition: str
    status: int
    kinds: tuple[type[errors.LazarettoError], ...] = ()
    sentence: str = ""


#: The first row that fits tells an error. An error that has a condition of its own is told by the row without
#: kinds.
_ROWS: Final = (
    _Row("amqp:link:message-size-exceeded", 403, (errors.MessageTooLarge,),
         "The received message exceeds the limit currently allowed on the link."),
    _Row("amqp:resource-limit-exceeded", 403, (errors.QuotaExceeded,),
         "The maximum entity size has been reached or exceeded for '{}'."),
    _Row("com.microsoft:entity-disabled", 400, (errors.QueueDisabled, errors.PoisonMessageError),
         "Messaging entity '{}' is currently disabled."),
    _Row("com.microsoft:message-lock-lost", 410, (errors.MessageLockLost,),
         "The lock supplied is invalid. Either the lock expired, or the message has already been removed "
         "from the queue."),
    _Row(SESSION_LOCK_LOST, 410, (errors.SessionLockLost,),
         "The session lock has expired on the MessageSession. Accept a new MessageSession."),
    _Row("com.microsoft:session-cannot-be-locked", 410, (errors.SessionCannotBeLocked,),
         "The requested session '{}' cannot be accepted. It may be locked by another receiver."),
    _Row("com.microsoft:session-cannot-be-locked", 410, (errors.SessionHeld,),
         "The requested session '{}' cannot be accepted."),
    _Row("com.microsoft:message-not-found", 404, (errors.MessageNotFound,),
         "Failed to lock one or more specified messages. The message does not exist."),
    _Row("amqp:not-found", 404, (errors.EntityNotFound, errors.InvalidPath),
         "The messaging entity '{}' could not be found."),
    _Row("com.microsoft:entity-already-exists", 409, (errors.EntityExists,),
         "The messaging entity '{}' already exists."),
    _Row("amqp:not-allowed", 400, (errors.NotAllowed, errors.InvalidMessage)),
    _Row("com.microsoft:argument-error", 400, (errors.InvalidOption, errors.FilterSyntaxError)),
    _Row("com.microsoft:server-busy", 503,
         (errors.StoreBusy, errors.StoreUnavailable, errors.CommitUnknown, errors.ServerOverloaded),
         "The server is busy. Please wait a few seconds and try again."),
    _Row(TIMEOUT, 408, (), "The operation did not complete within the allotted timeout."),
    _Row(UNAUTHORIZED, 401, (), "Unauthorized access."),
    _Row("amqp:link:message-size-exceeded", 403),
    _Row("amqp:resource-limit-exceeded", 403),
    _Row("amqp:decode-error", 400),
    _Row("amqp:invalid-field", 400),
    _Row("amqp:not-allowed", 400),
    _Row("amqp:not-implemented", 501),
    _Row(TRANSACTION_UNKNOWN_ID, 400),
    _Row(TRANSACTION_TIMEOUT, 400),
)  # fmt: skip
#: Any other error, and any other condition.
_UNFORESEEN: Final = _Row(INTERNAL, 500)
#: The longest text for a client, in characters: it must fit in a frame.
_LONGEST_TEXT: Final = 1_000
#: The first name in a text, which is that of the entity or the session.
_NAME: Final = re.compile(r"""(['"])(.*?)\1""")


def _row(error: BaseException) -> _Row:
    own = getattr(error, "condition", None)
    if isinstance(own, str):
        rows = (row for row in _ROWS if row.condition == own and not row.kinds)
        return next(rows, _Row(own, status_of(own)))
    return next((row for row in _ROWS if isinstance(error, row.kinds)), _UNFORESEEN)


def condition_of(error: BaseException) -> str:
    """Return the condition that tells a client of an error."""
    return _row(error).condition


def _sees_nothing(path: str) -> bool:
    return False


def description_of(error: BaseException, sees: Callable[[str], bool] = _sees_nothing) -> str:
    """Return the text for a client: that of our errors; of others, nothing of what went wrong.

    `sees`: which entities the client may be told of besides that which it named.
    """
    if not isinstance(error, errors.LazarettoError):
        return "an internal error: see the server's log"
    text = str(without_unseen(error, sees))
    sentence = _row(error).sentence
    if sentence:
        name = _NAME.search(text)
        text = f"{sentence.replace('{}', 'in question' if name is None else name[2])} {text}"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def status_of(condition: str) -> int:
    """Return the status code of an answer with a condition."""
    return next((row.status for row in _ROWS if row.condition == condition), _UNFORESEEN.status)


def rejected(error: BaseException) -> bytes:
    """Return the state of a delivery that failed, encoded."""
    return encode_composite(Rejected(Error(condition_of(error), description_of(error))))


class Verb(enum.Enum):
    """A receiver's verb for a message."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    RELEASE = "release"
    DEFER = "defer"
    DEAD_LETTER = "dead_letter"


@dataclasses.dataclass(frozen=True, slots=True)
class Settlement:
    """A verb, with what a client said beside it."""

    verb: Verb
    properties: dict[str, PropertyValue] | None = None
    reason: str | None = None
    description: str | None = None


def verb_of(settlement: Settlement) -> tuple[str, dict[str, Any]]:
    """Return the method of a receiver or a transaction that a settlement asks for, and what to give it."""
    verb = settlement.verb
    if verb in (Verb.COMPLETE, Verb.RELEASE):
        return verb.value, {}
    details: dict[str, Any] = {"properties": settlement.properties}
    if verb is Verb.DEAD_LETTER:
        details |= {"reason": settlement.reason, "description": settlement.description}
    return verb.value, details


def settlement_of(state: DeliveryState | None) -> Settlement | None:
    """Return what a state asks for; None: nothing yet. As in Service Bus, "undeliverable here" defers.

    Raises InvalidMessage for properties that cannot be kept.
    """
    if isinstance(state, TransactionalState):
        state = state.outcome
    if isinstance(state, Accepted):
        return Settlement(Verb.COMPLETE)
    if isinstance(state, Released):
        return Settlement(Verb.RELEASE)
    if isinstance(state, Modified):
        properties = properties_of(state.message_annotations or {}) or None
        return Settlement(Verb.DEFER if state.undeliverable_here else Verb.ABANDON, properties)
    if isinstance(state, Rejected):
        info = properties_of((state.error.info if state.error is not None else None) or {})
        reason, text = info.pop(DEAD_LETTER_REASON, None), info.pop(DEAD_LETTER_DESCRIPTION, None)
        return Settlement(
            Verb.DEAD_LETTER,
            info or None,
            None if reason is None else str(reason),
            None if text is None else str(text),
        )
    return None


def echo(state: DeliveryState | None) -> bytes:
    """Return the state with which a settlement is confirmed, encoded."""
    if isinstance(state, Rejected):
        return encode_composite(Rejected())
    if isinstance(state, Modified):
        return encode_composite(Modified(bool(state.delivery_failed), bool(state.undeliverable_here)))
    if isinstance(state, Released):
        return encode_composite(Released())
    return encode_composite(Accepted())
