"""Headers of a body: the rarely used fields of a message, encoded as one value."""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lazaretto.errors import InvalidMessage, MessageTooLarge
from lazaretto.model.checks import exact, is_aware, is_unicode, shown
from lazaretto.model.clock import to_datetime, to_micros
from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE

PropertyValue = str | int | float | bool | bytes | uuid.UUID | datetime | timedelta | decimal.Decimal | None

#: Service Bus's quota for all headers of a message together, in bytes.
MAX_HEADERS_SIZE = 65_536
#: And for one property.
MAX_PROPERTY_SIZE = 32_768
#: Properties of a forwarded dead letter that say why it was one, as in Service Bus.
DEAD_LETTER_REASON = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION = "DeadLetterErrorDescription"
#: Fields that hold an id, with the fewest characters: the empty text is a session, as at Service Bus.
SHORTEST_IDS = {"message_id": 1, "session_id": 0, "partition_key": 0, "reply_to_session_id": 0}
#: Service Bus's limit for them.
LONGEST_ID = 128

_UUID_EXTENSION, _DECIMAL_EXTENSION, _DURATION_EXTENSION = 1, 2, 3
#: Digits and exponent of a decimal: no service has longer ones, and none takes long to compute with.
_MOST_DIGITS: Final = 34
_EXPONENTS: Final = range(-6_176, 6_112)
_MICROSECOND: Final = timedelta(microseconds=1)
_INT64: Final = 1 << 63


class NegativeAcknowledgement(msgspec.Struct, frozen=True):
    """A receiver's word to the sender that it rejects a message (as MSMQ's, class 0xC004).

    `status` is "not_delivered": the message was not processed and will not be.
    """

    queue: str
    sequence_number: int
    code: int
    text: str
    kind: str = "rejected"
    status: str = "not_delivered"


class Headers(msgspec.Struct, omit_defaults=True):
    """The fields of a message that the engine carries but hardly ever looks at. Times in microseconds."""

    session_id: str | None = None
    subject: str | None = None
    correlation_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    partition_key: str | None = None
    time_to_live: int | None = None
    scheduled_enqueue_time: int | None = None
    properties: dict[str, Any] = {}
    dead_letter_queue: str | None = SYSTEM_DEAD_LETTER_QUEUE
    edit_of: str | None = None
    negative_acknowledgement: NegativeAcknowledgement | None = None
    #: How often it was forwarded, and which entity's dead letter it was then, if it was one.
    hops: int = 0
    dead_letter_source: str | None = None
    #: What an AMQP client sent that no other field holds, encoded.
    amqp: bytes | None = None
    #: AMQP types of properties that were changed since, by name: a code, or the name of the property whose
    #: value it took.
    types: dict[str, int | str] = {}


EMPTY_HEADERS = Headers()


def _extension(code: int, data: memoryview) -> object:
    if code == _UUID_EXTENSION:
        return uuid.UUID(bytes=bytes(data))
    if code == _DECIMAL_EXTENSION:
        return decimal.Decimal(str(data, "ascii"))
    if code == _DURATION_EXTENSION:
        return timedelta(microseconds=int(str(data, "ascii")))
    raise ValueError(f"unknown extension {code} in message headers")


_EXTENDED: Final[Mapping[type, Callable[[Any], msgspec.msgpack.Ext]]] = {
    uuid.UUID: lambda value: msgspec.msgpack.Ext(_UUID_EXTENSION, value.bytes),
    decimal.Decimal: lambda value: msgspec.msgpack.Ext(_DECIMAL_EXTENSION, str(value).encode()),
    timedelta: lambda value: msgspec.msgpack.Ext(_DURATION_EXTENSION, b"%d" % (value // _MICROSECOND)),
}
_decoder = msgspec.msgpack.Decoder(Headers, ext_hook=_extension)
_encoder = msgspec.msgpack.Encoder()


def decode_headers(encoded: bytes | None) -> Headers:
    """Return the headers that `encode_headers` made `encoded` of; of nothing, empty ones."""
    return _decoder.decode(encoded) if encoded else EMPTY_HEADERS


def encode_headers(headers: Headers) -> bytes:
    """Return headers as bytes. Properties keep their types; some need an extension for that."""
    if not _EXTENDED.keys().isdisjoint(map(type, headers.properties.values())):
        properties = {
            name: value if (extend := _EXTENDED.get(type(value))) is None else extend(value)
            for name, value in headers.properties.items()
        }
        headers = msgspec.structs.replace(headers, properties=properties)
    return _encoder.encode(headers)


# -- checks --------------------------------------------------------------------------------------


def check_text(name: str, value: object, longest: int | None = None, shortest: int = 1) -> str:
    """Return `value` if it is text that can be stored, else raise InvalidMessage.

    `longest`: the most characters, of at least `shortest`; None: any number.
    """
    if not isinstance(value, str):
        raise InvalidMessage(f"expected {name} to be text or None, got {shown(value)}")
    if longest is not None and not shortest <= len(value) <= longest:
        raise InvalidMessage(f"expected {name} of {shortest} to {longest} characters, got {len(value)}")
    if not is_unicode(value):
        raise InvalidMessage(f"expected {name} to be valid Unicode, got a lone surrogate")
    return exact(value)


def check_properties(properties: object) -> dict[str, Any]:
    """Return application properties as a dictionary. Raises InvalidMessage, MessageTooLarge."""
    if not isinstance(properties, Mapping):
        raise InvalidMessage(f"expected properties to be a mapping, got {shown(properties)}")
    return {check_text("a property's name", name, 256): _property(name, v) for name, v in properties.items()}


def _moment(name: str, value: datetime) -> datetime:
    if not is_aware(value):
        raise InvalidMessage(f"expected property {name!r} to have a time zone, got {shown(value)}")
    micros = to_micros(value)
    if to_micros(to_datetime(micros)) != micros:
        raise InvalidMessage(f"expected property {name!r} to be within years 1 to 9999 in UTC, got {value}")
    return value if type(value) is datetime else to_datetime(micros)


def _decimal(name: str, value: decimal.Decimal) -> decimal.Decimal:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or len(digits) > _MOST_DIGITS or exponent not in _EXPONENTS:
        raise InvalidMessage(
            f"expected property {name!r} to be a finite decimal of at most {_MOST_DIGITS} digits, "
            f"got {shown(value)}"
        )
    return value if type(value) is decimal.Decimal else decimal.Decimal(value)


def _property(name: str, value: object) -> PropertyValue:
    if value is None or type(value) is bool or type(value) is float:
        return value
    if type(value) is str and len(value) <= MAX_PROPERTY_SIZE and value.isascii():
        return value
    # What is of a class of its own, as numpy's values are, is kept as the value it is.
    if isinstance(value, float):
        return float(value)
    if isinstance(value, uuid.UUID):
        return uuid.UUID(int=value.int)
    if isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise InvalidMessage(f"expected property {name!r} to fit in 64 bits, got {shown(value)}")
        return int(value)
    if isinstance(value, datetime):
        return _moment(name, value)
    if isinstance(value, decimal.Decimal):
        return _decimal(name, value)
    if isinstance(value, timedelta):
        return value if type(value) is timedelta else timedelta(microseconds=value // _MICROSECOND)
    if isinstance(value, str | bytes):
        checked = check_text(f"property {name!r}", value) if isinstance(value, str) else bytes(value)
        size = len(checked.encode() if isinstance(checked, str) else checked)
        if size > MAX_PROPERTY_SIZE:
            raise MessageTooLarge(
                f"expected property {name!r} of at most {MAX_PROPERTY_SIZE} bytes, got {size}"
            )
        return checked
    raise InvalidMessage(
        f"expected property {name!r} to be str, int, float, bool, bytes, UUID, datetime, timedelta, Decimal "
        f"or None, got {shown(value)}"
    )
