"""Messages from JSON, as lines of a file or requests over HTTP spell them."""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from lazaretto.model.checks import shown, suggestion
from lazaretto.model.filters.records import property_value
from lazaretto.model.messages import DeadLetter, Message, SentColumns
from lazaretto.model.records.plain import MESSAGE_FIELDS, plain
from lazaretto.model.spans import iso_time, seconds_of

_KNOWN = ("body_base64", *(name for name in Message.__struct_fields__ if name != "dead_letter_queue"))
#: What the broker says of a message that it has: `peek` prints it, and sending it again leaves it out.
_OF_THE_BROKER = {*MESSAGE_FIELDS, "state", "lock_token", "locked_until", "error"} - {*_KNOWN}

#: What the decoder raises for text that is no JSON, or of which it cannot see the end.
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: Bytes of JSON: what is made of it takes many times as much.
_MOST_OF_PROPERTIES = 4 << 20

_line = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)

#: Columns of dead letters as CSV, whose names are those of JSON.
LETTER_COLUMNS = (
    "sequence_number", "message_id", "reason", "description", "error_type", "error_message",
    "dead_lettered", "enqueued", "generation", "fingerprint",
)  # fmt: skip
#: With what a cell begins that a spreadsheet could take for a formula: in any width, also behind what is not
#: seen.
_FORMULA = re.compile(
    r"[\t\r\n]|[\s\x00-\x1f\x7f-\xa0\u200b-\u200f\u2060\ufeff]*[=+\-@\u2212＝＋－＠﹦﹢﹣﹫]"
)


class _Usual(SentColumns, forbid_unknown_fields=True, gc=False):
    """The usual message: a body, and texts."""

    body: msgspec.Raw
    message_id: str | None = None
    session_id: str | None = None
    subject: str | None = None
    correlation_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    partition_key: str | None = None


_TEXTS = tuple(name for name in _Usual.__struct_fields__ if name != "body")
_usual = msgspec.json.Decoder(_Usual)
_several_usual = msgspec.json.Decoder(list[_Usual])


def refuse_many(content: bytes, most: int) -> None:
    """Raise ValueError for an array of more than so many objects, before memory is taken for them."""
    if content.count(b",") < most:
        return
    left = most

    class Counted(msgspec.Struct, gc=False):
        """An object of which nothing is kept."""

        def __post_init__(self) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise ValueError

    # What else is wrong is told by whoever reads it.
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        msgspec.json.decode(content, type=list[Counted])
    if left < 0:
        raise ValueError(f"expected at most {most} messages at once, got more")


def usual_messages(content: bytes) -> list[Message] | None:
    """Return what an object or an array means, quickly; None if any has to be looked at more closely."""
    try:
        messages = [_usual.decode(content)] if content[:1] == b"{" else _several_usual.decode(content)
        return [Message(**{**msgspec.structs.asdict(one), "body": _body(one.body)}) for one in messages]
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError):
        return None


def message_of(line: bytes, like: Message) -> Message:
    """Return the message that a line means; what it leaves out is as in `like`. Raises ValueError."""
    try:
        # A line may be an element of an array, as `--json` prints it.
        line_ = _line.decode(line.strip().removesuffix(b","))
    except _NO_JSON as error:
        raise ValueError(f"expected an object as JSON, got {shown(line.strip())}: {_why(error)}") from None
    for name in line_:
        if name not in _KNOWN and name not in _OF_THE_BROKER:
            raise ValueError(f"unknown field {name!r}{suggestion(name, _KNOWN)}")
    if ("body" in line_) == ("body_base64" in line_):
        raise ValueError("expected either a body or a body_base64")
    if len(line_.get("properties", b"")) > _MOST_OF_PROPERTIES:
        raise ValueError(f"expected properties of at most {_MOST_OF_PROPERTIES} bytes, got more")
    values: dict[str, Any] = {
        name: _decoded(name, raw) for name, raw in line_.items() if name != "body" and name in _KNOWN
    }
    changes = {name: values[name] for name in _TEXTS if values.get(name) is not None}
    if "body" in line_:
        changes["body"] = _body(line_["body"])
    else:
        changes["body"] = _base64(values["body_base64"])
    if values.get("time_to_live") is not None:
        changes["time_to_live"] = _time_to_live(values["time_to_live"])
    if values.get("scheduled_enqueue_time") is not None:
        changes["scheduled_enqueue_time"] = _time(values["scheduled_enqueue_time"])
    if values.get("properties") is not None:
        changes["properties"] = {**(like.properties or {}), **_properties(values["properties"])}
    if values.get("amqp") is not None:
        changes["amqp"] = _bytes("amqp", values["amqp"])
    return msgspec.structs.replace(like, **changes)


def _decoded(name: str, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except _NO_JSON as error:
        raise ValueError(f"{name}: {_why(error)}") from None


def _why(error: Exception) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def _body(raw: msgspec.Raw) -> bytes:
    # Anything but a text is sent as it is spelled, so that numbers and order stay exactly so.
    value = bytes(raw)
    if not value.startswith(b'"'):
        return value
    try:
        return _text.decode(value).encode()
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(f"body: {error}") from None


def _base64(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise ValueError(f"expected body_base64 to be base64, got {shown(value)}") from None


def _bytes(name: str, value: Any) -> bytes:
    try:
        data = property_value(value)
    except ValueError:
        data = None
    if not isinstance(data, bytes):
        raise ValueError(f'expected {name} to be {{"base64": …}}, got {shown(value)}')
    return data


def _time_to_live(value: Any) -> Any:
    seconds = seconds_of(value) if isinstance(value, str) else value
    if seconds is None:
        raise ValueError(f"expected time_to_live to be seconds or a duration such as 5m, got {shown(value)}")
    return seconds


def _time(value: Any) -> Any:
    moment = iso_time(value) if isinstance(value, str) else None
    if moment is None:
        raise ValueError(f"expected scheduled_enqueue_time to be a time in ISO 8601, got {shown(value)}")
    return moment


def _properties(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected properties to be an object, got {shown(value)}")
    properties = {}
    for name, part in value.items():
        try:
            properties[name] = property_value(part)
        except ValueError as error:
            raise ValueError(f"property {name!r}: {error}") from None
    return properties


def values_of(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return properties that people write as texts: numbers, true and false as such, all else as text."""
    return {name: _value(text) for name, text in texts.items()}


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def csv_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def letter_cells(letter: DeadLetter) -> list[Any]:
    """Return a dead letter as a row under LETTER_COLUMNS."""
    return [csv_cell(plain(getattr(letter, name))) for name in LETTER_COLUMNS]
