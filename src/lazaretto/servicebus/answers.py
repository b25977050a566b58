"""Answers to clients: errors as Service Bus's conditions, outcomes as verbs. Pure.

Answers to requests have the AMQP types that Service Bus gives their fields, and rules are as AMQP has them.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from lazaretto import errors
from lazaretto.model.checks import without_unseen
from lazaretto.model.entities import EntityPath
from lazaretto.model.filters.rules import CorrelationFilter, FalseFilter, Filter, Rule, SqlAction, SqlFilter
from lazaretto.model.headers import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, PropertyValue
from lazaretto.servicebus.amqp import AmqpError, Properties, Section, encode_section
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.conditions import (
    DECODE_ERROR,
    NOT_ALLOWED,
    TRANSACTION_TIMEOUT,
    TRANSACTION_UNKNOWN_ID,
)
from lazaretto.servicebus.amqp.performatives import (
    Accepted,
    DeliveryState,
    Error,
    Modified,
    Rejected,
    Released,
    TransactionalState,
)
from lazaretto.servicebus.amqp.values import (
    Array,
    Byte,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
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


_LONG, _TIMESTAMP, _STRING = 0x81, 0x83, 0xB1
TRACKING_ID: Final = "com.microsoft:tracking-id"

_SUBSCRIPTIONS: Final = "/subscriptions/"
#: Descriptors of lists.
_RULE, _NO_ACTION, _SQL_ACTION = 0x13700000004, 0x13700000005, 0x13700000006
_SQL, _TRUE, _FALSE, _CORRELATION = 0x1370000006, 0x1370000007, 0x1370000008, 0x1370000009
#: Service Bus's level of SQL.
_LEVEL: Final = Int(20)
#: Types of numbers by what a rule's description calls them.
_KINDS: Final[Mapping[type, str]] = {
    Byte: "byte", UByte: "unsignedByte", Short: "short", UShort: "unsignedShort", Int: "int",
    UInt: "unsignedInt", int: "long", ULong: "unsignedLong", Float: "float",
}  # fmt: skip
#: Fields of a correlation filter, in the order of its list, by the names that requests use.
_FIELDS: Final = {
    "correlation-id": "correlation_id",
    "message-id": "message_id",
    "to": "to",
    "reply-to": "reply_to",
    "label": "subject",
    "session-id": "session_id",
    "reply-to-session-id": "reply_to_session_id",
    "content-type": "content_type",
}


class Answer(NamedTuple):
    """A status, its text, and the fields of an answer's body; None: it has no body."""

    status: int
    text: str
    body: Mapping[str, Any] | None = None
    condition: str | None = None


def _as_it_is(value: Any) -> Any:
    return value


#: What gives each field its type; those that are bytes, UUIDs, lists or maps have it.
_TYPES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "statusCode": Int,
    "status-code": Int,
    "statusDescription": str,
    "status-description": str,
    "errorCondition": Symbol,
    "error-condition": Symbol,
    TRACKING_ID: str,
    "expiration": Timestamp,
    "expirations": lambda moments: Array(_TIMESTAMP, list(moments)),
    "sequence-numbers": lambda numbers: Array(_LONG, list(numbers)),
    "sessions-ids": lambda ids: Array(_STRING, list(ids)),
    "skip": Int,
    "message-count": Int,
    "session-state": _as_it_is,
    "messages": _as_it_is,
    "message": _as_it_is,
    "lock-token": _as_it_is,
    "rules": _as_it_is,
}


def typed_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an answer, each with its type. Raises KeyError for one that has none here."""
    return {name: _TYPES[name](value) for name, value in fields.items()}


def encode_answer(said: Answer, message_id: Any, tracking: Any, *, token: bool) -> bytes:
    """Return an answer as a message.

    `message_id`: of the request, whose type the answer keeps. `tracking`: the id that the request was given
    to be followed by, if it is text. `token`: answers to tokens have names of their own.
    """
    status, text, condition = (
        ("status-code", "status-description", "error-condition")
        if token
        else ("statusCode", "statusDescription", "errorCondition")
    )
    properties: dict[str, Any] = {
        status: said.status,
        text: said.text,
        TRACKING_ID: tracking if isinstance(tracking, str) else str(uuid.uuid4()),
    }
    if said.condition is not None:
        properties[condition] = said.condition
    return b"".join(
        (
            encode_composite(Properties(correlation_id=message_id)),
            encode_section(Section.APPLICATION_PROPERTIES, typed_fields(properties)),
            encode_section(Section.VALUE, None if said.body is None else typed_fields(said.body)),
        )
    )


def subscription_of(path: str) -> tuple[str, str]:
    """Return the topic and the name of a subscription. Raises AmqpError for any other entity."""
    path_ = str(EntityPath.parse(path))
    at = path_.lower().rfind(_SUBSCRIPTIONS)
    if at < 0:
        raise AmqpError(NOT_ALLOWED, f"expected a subscription, which has rules, got {path!r}")
    return path_[:at], path_[at + len(_SUBSCRIPTIONS) :]


def rule_of(name: Any, description: Any) -> Rule:
    """Return the rule that a request describes. Raises AmqpError, InvalidOption, FilterSyntaxError."""
    if not isinstance(name, str) or not isinstance(description, Mapping):
        raise AmqpError(DECODE_ERROR, "expected a rule's name to be text and its description to be a map")
    action = description.get("sql-rule-action")
    return Rule(
        str(name), _filter_of(description), None if action is None else SqlAction(_expression(action))
    )


def _filter_of(description: Mapping[Any, Any]) -> Filter:
    if "sql-filter" in description:
        return SqlFilter(_expression(description["sql-filter"]))
    correlation = description.get("correlation-filter")
    if not isinstance(correlation, Mapping):
        raise AmqpError(DECODE_ERROR, "expected a rule to have a sql-filter or a correlation-filter")
    fields: dict[str, Any] = {ours: correlation.get(theirs) for theirs, ours in _FIELDS.items()}
    texts: Any = correlation.get("properties")
    properties: Mapping[Any, Any] = texts if isinstance(texts, Mapping) else {}
    written = {
        str(name): f"{_KINDS[type(value)]} {value}"
        for name, value in properties.items()
        if type(value) in _KINDS
    }
    return CorrelationFilter(**fields, properties=properties_of(properties), written=written)


def _expression(part: Any) -> str:
    value = part.get("expression") if isinstance(part, Mapping) else None
    if not isinstance(value, str):
        raise AmqpError(DECODE_ERROR, "expected an expression as text in a map, got something else")
    return str(value)


def described_rule(rule: Rule) -> Described:
    """Return a rule as an answer lists it: without its SQL's parameters and its age, which is not known."""
    action = (
        Described(ULong(_NO_ACTION), [])
        if rule.action is None
        else Described(ULong(_SQL_ACTION), [rule.action.expression, _LEVEL])
    )
    return Described(ULong(_RULE), [_described_filter(rule.filter), action, rule.name, None])


def _of_kind(value: Any, written: str) -> Any:
    """Return a value with the type that a client gave it."""
    kind = written.partition(" ")[0]
    made = next((one for one, name in _KINDS.items() if name == kind), None)
    return value if made is None else made(value)


def _described_filter(filter_: Filter) -> Described:
    if isinstance(filter_, SqlFilter):
        return Described(ULong(_SQL), [filter_.expression, _LEVEL])
    if isinstance(filter_, CorrelationFilter):
        fields = [getattr(filter_, name) for name in _FIELDS.values()]
        properties = {
            name: _of_kind(value, filter_.written.get(name, "")) for name, value in filter_.properties.items()
        }
        return Described(ULong(_CORRELATION), [*fields, properties])
    return Described(ULong(_FALSE if isinstance(filter_, FalseFilter) else _TRUE), [])
