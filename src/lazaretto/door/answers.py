"""What a client is told: errors as Service Bus's conditions, outcomes as verbs. Pure."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, Final

from lazaretto import errors
from lazaretto.amqp.composites import encode_composite
from lazaretto.amqp.conditions import TRANSACTION_TIMEOUT, TRANSACTION_UNKNOWN_ID
from lazaretto.amqp.performatives import (
    Accepted,
    DeliveryState,
    Error,
    Modified,
    Rejected,
    Released,
    TransactionalState,
)
from lazaretto.door.conversions import properties_of
from lazaretto.model.checks import without_unseen
from lazaretto.model.headers import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, PropertyValue

TIMEOUT: Final = "com.microsoft:timeout"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
SESSION_LOCK_LOST: Final = "com.microsoft:session-lock-lost"
INTERNAL: Final = "amqp:internal-error"

#: Conditions by error, the first that fits.
_CONDITIONS: Final[tuple[tuple[type[errors.LazarettoError], str], ...]] = (
    (errors.MessageTooLarge, "amqp:link:message-size-exceeded"),
    (errors.QuotaExceeded, "amqp:resource-limit-exceeded"),
    (errors.QueueDisabled, "com.microsoft:entity-disabled"),
    (errors.PoisonMessageError, "com.microsoft:entity-disabled"),
    (errors.MessageLockLost, "com.microsoft:message-lock-lost"),
    (errors.SessionLockLost, SESSION_LOCK_LOST),
    (errors.SessionCannotBeLocked, "com.microsoft:session-cannot-be-locked"),
    (errors.SessionHeld, "com.microsoft:session-cannot-be-locked"),
    (errors.MessageNotFound, "com.microsoft:message-not-found"),
    (errors.EntityNotFound, "amqp:not-found"),
    (errors.InvalidPath, "amqp:not-found"),
    (errors.EntityExists, "com.microsoft:entity-already-exists"),
    (errors.NotAllowed, "amqp:not-allowed"),
    (errors.InvalidMessage, "amqp:not-allowed"),
    (errors.InvalidOption, "com.microsoft:argument-error"),
    (errors.FilterSyntaxError, "com.microsoft:argument-error"),
    (errors.StoreBusy, "com.microsoft:server-busy"),
    (errors.StoreUnavailable, "com.microsoft:server-busy"),
    (errors.CommitUnknown, "com.microsoft:server-busy"),
)
#: The longest text for a client, in characters: it must fit in a frame.
_LONGEST_TEXT: Final = 1_000
#: Status codes of answers to requests; 500 for any other condition.
_STATUS: Final = {
    "com.microsoft:message-lock-lost": 410,
    SESSION_LOCK_LOST: 410,
    "com.microsoft:session-cannot-be-locked": 410,
    "com.microsoft:message-not-found": 404,
    "amqp:not-found": 404,
    "com.microsoft:entity-already-exists": 409,
    "com.microsoft:argument-error": 400,
    "amqp:not-allowed": 400,
    "amqp:decode-error": 400,
    TIMEOUT: 408,
    UNAUTHORIZED: 401,
    "com.microsoft:server-busy": 503,
    "amqp:link:message-size-exceeded": 403,
    "amqp:resource-limit-exceeded": 403,
    "com.microsoft:entity-disabled": 400,
    "amqp:not-implemented": 501,
    TRANSACTION_UNKNOWN_ID: 400,
    TRANSACTION_TIMEOUT: 400,
}


def condition_of(error: BaseException) -> str:
    """Return the condition that tells a client of an error."""
    known = getattr(error, "condition", None)
    if isinstance(known, str):
        return known
    return next((condition for kind, condition in _CONDITIONS if isinstance(error, kind)), INTERNAL)


def _sees_nothing(path: str) -> bool:
    return False


def description_of(error: BaseException, sees: Callable[[str], bool] = _sees_nothing) -> str:
    """Return the text for a client: that of our errors; of others, nothing of what went wrong.

    `sees`: which entities the client may be told of besides that which it named.
    """
    if not isinstance(error, errors.LazarettoError):
        return "an internal error: see the server's log"
    text = str(error)
    if isinstance(error, errors.EntityNotFound):
        text = str(without_unseen(error, sees))
        # Service Bus's clients know by these words that it was no fault of the connection.
        text = f"The messaging entity in question could not be found: {text}"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def status_of(condition: str) -> int:
    """Return the status code of an answer with a condition."""
    return _STATUS.get(condition, 500)


def rejected(error: BaseException) -> bytes:
    """Return the state of a delivery that failed, encoded."""
    return encode_composite(Rejected(Error(condition_of(error), description_of(error))))


class Verb(enum.Enum):
    """What a receiver does with a message."""

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
