"""Lines of JSON as messages, sent in order, a thousand to a commit."""

from __future__ import annotations

import base64
import binascii
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec

from lazaretto.cli.parse import iso_time, seconds_of
from lazaretto.cli.records import MESSAGE_FIELDS, property_value
from lazaretto.errors import InvalidMessage
from lazaretto.model.checks import shown, suggestion
from lazaretto.model.messages import Message
from lazaretto.sender import Sender, prepare_all

#: Messages of one commit.
BATCH = 1000
#: Bytes of bodies of one commit, so that large messages do not fill the memory.
BATCH_BYTES = 16_777_216

_TEXTS = (
    "message_id",
    "session_id",
    "subject",
    "correlation_id",
    "to",
    "reply_to",
    "reply_to_session_id",
    "content_type",
    "partition_key",
)
_KNOWN = ("body", "body_base64", *_TEXTS, "time_to_live", "scheduled_enqueue_time", "properties")
#: What the broker says of a message that it has: `peek` prints it, and sending it again leaves it out.
_OF_THE_BROKER = {*MESSAGE_FIELDS, "state", "locked_until", "error"} - {*_KNOWN}

_line = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)


class BadLine(Exception):
    """A line cannot be sent: its number, and what is wrong with it. `cause` is the broker's error, if any."""

    def __init__(self, number: int, what: str, cause: Exception | None = None) -> None:
        super().__init__(f"line {number}: {what}")
        self.cause = cause


def message_of(line: bytes, like: Message) -> Message:
    """Return the message that a line means; what it leaves out is as in `like`. Raises ValueError."""
    try:
        # A line may be an element of an array, as `--json` prints it.
        given = _line.decode(line.strip().removesuffix(b","))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected an object as JSON, got {shown(line.strip())}: {error}") from None
    for name in given:
        if name not in _KNOWN and name not in _OF_THE_BROKER:
            raise ValueError(f"unknown field {name!r}{suggestion(name, _KNOWN)}")
    if ("body" in given) == ("body_base64" in given):
        raise ValueError("expected either a body or a body_base64")
    values: dict[str, Any] = {
        name: _decoded(name, raw) for name, raw in given.items() if name != "body" and name in _KNOWN
    }
    changes = {name: values[name] for name in _TEXTS if values.get(name) is not None}
    if "body" in given:
        changes["body"] = _body(given["body"])
    else:
        changes["body"] = _base64(values["body_base64"])
    if values.get("time_to_live") is not None:
        changes["time_to_live"] = _time_to_live(values["time_to_live"])
    if values.get("scheduled_enqueue_time") is not None:
        changes["scheduled_enqueue_time"] = _time(values["scheduled_enqueue_time"])
    if values.get("properties") is not None:
        changes["properties"] = {**(like.properties or {}), **_properties(values["properties"])}
    return msgspec.structs.replace(like, **changes)


def _decoded(name: str, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: {error}") from None


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


def _time_to_live(value: Any) -> Any:
    found = seconds_of(value) if isinstance(value, str) else value
    if found is None:
        raise ValueError(f"expected time_to_live to be seconds or a duration such as 5m, got {shown(value)}")
    return found


def _time(value: Any) -> Any:
    found = iso_time(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"expected scheduled_enqueue_time to be a time in ISO 8601, got {shown(value)}")
    return found


def _properties(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected properties to be an object, got {shown(value)}")
    found = {}
    for name, part in value.items():
        try:
            found[name] = property_value(part)
        except ValueError as error:
            raise ValueError(f"property {name!r}: {error}") from None
    return found


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Control-C back until the block is done, so that what was sent is known exactly."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt


class LineSender:
    """Sends lines in order and keeps count: `sent` numbers, `last_line` sent, `bytes_read` up to there."""

    def __init__(self, sender: Sender, like: Message) -> None:
        self._sender = sender
        self._like = like
        self.sent: list[int] = []
        self.last_line = 0
        self.bytes_read = 0

    def run(self, lines: Iterable[bytes], on_commit: Callable[[], None]) -> None:
        """Send all lines. Raises BadLine after the lines before it are sent; empty lines are skipped."""
        batch: list[tuple[int, Message]] = []
        size = read = 0
        for number, line in enumerate(lines, 1):
            read += len(line)
            if line.strip() in (b"", b"[", b"]"):
                continue
            try:
                message = message_of(line, self._like)
                prepare_all(message)
            except (ValueError, InvalidMessage) as error:
                self._commit(batch)
                raise BadLine(
                    number, str(error), error if isinstance(error, InvalidMessage) else None
                ) from None
            batch.append((number, message))
            size += len(message.body)
            if len(batch) >= BATCH or size >= BATCH_BYTES:
                self._commit(batch)
                self.bytes_read = read
                on_commit()
                batch, size = [], 0
        self._commit(batch)
        self.bytes_read = read
        on_commit()

    def _commit(self, batch: list[tuple[int, Message]]) -> None:
        if not batch:
            return
        try:
            with _uninterrupted():
                self.sent += self._sender.send([message for _, message in batch])
                self.last_line = batch[-1][0]
        except InvalidMessage as error:
            # The queue takes less than a message may be: none of the batch was sent. Halving finds
            # the line it refuses, and sends those before it.
            if len(batch) == 1:
                raise BadLine(batch[0][0], str(error), error) from None
            middle = len(batch) // 2
            self._commit(batch[:middle])
            self._commit(batch[middle:])
