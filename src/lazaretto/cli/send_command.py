"""`lazaretto send`: one message, or a stream of JSON lines."""

from __future__ import annotations

import codecs
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, BinaryIO

import typer

from lazaretto.broker.broker import store_of
from lazaretto.broker.sender import Sender
from lazaretto.cli import output
from lazaretto.cli.call import Call, CallOptions
from lazaretto.cli.command import Group, Options, argument, option
from lazaretto.cli.completion import names_of_destinations, names_of_queues
from lazaretto.cli.derived import parameters_of
from lazaretto.cli.exits import CommandError, exit_code_of, usage
from lazaretto.cli.parse import duration, future, properties
from lazaretto.engine.maintenance import look
from lazaretto.engine.messages.prepare import prepare_all
from lazaretto.engine.outcome.send_back import MOST_IN_UNIT, goes_to_units
from lazaretto.errors import InvalidMessage, LazarettoError
from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE, EntityPath
from lazaretto.model.messages import Message, SentColumns
from lazaretto.model.records.messages import message_of

commands = Group()

#: Messages of one commit.
BATCH = 1000
#: Bytes of bodies of one commit, so that large messages do not fill the memory.
BATCH_BYTES = 16_777_216


def _text(name: str, metavar: str, help_: str, names: Callable[..., list[str]] | None = None) -> Any:
    return typer.Option(name, metavar=metavar, help=help_, show_default=False, autocompletion=names)


@commands.command("send")
def send(
    call: CallOptions,
    queue: Annotated[str, argument("Path of the queue or topic.", complete=names_of_destinations)],
    body: Annotated[str | None, argument("Body as text.")] = None,
    file: Annotated[Path | None, option("Read from FILE; - is standard input.", "", "-f")] = None,
    jsonl: Annotated[
        bool, option("Send one message per line of JSON, from standard input or --file.")
    ] = False,
    message_id: Annotated[str | None, option("Message ID.  [default: assigned]", "ID")] = None,
    session: Annotated[str | None, option("Session ID.", "ID")] = None,
    subject: Annotated[str | None, option("Subject.")] = None,
    correlation_id: Annotated[
        str | None, option("Correlation ID, for example of the request it answers.", "ID")
    ] = None,
    to: Annotated[str | None, option("Recipient.", "ADDRESS")] = None,
    reply_to: Annotated[str | None, option("Address for replies.", "ADDRESS")] = None,
    reply_to_session: Annotated[str | None, option("Session ID for replies.", "ID")] = None,
    content_type: Annotated[str | None, option("Content type of the body.", "TYPE")] = None,
    partition_key: Annotated[str | None, option("Partition key.", "KEY")] = None,
    property_: Annotated[
        list[str] | None, option("Application property; repeatable.", "NAME=TEXT", "-p")
    ] = None,
    time_to_live: Annotated[
        float | None, option("Time to live.", "DURATION", "--ttl", parser=duration)
    ] = None,
    at: Annotated[
        datetime | None,
        option("Deliver no earlier than this time (ISO 8601, or 5m from now).", parser=future),
    ] = None,
    via: Annotated[
        str | None,
        option(
            "Send through this queue; undeliverable messages stay there.", "QUEUE", complete=names_of_queues
        ),
    ] = None,
    dead_letter_queue: Annotated[
        str,
        option(
            "Queue that receives it if it is rejected.",
            "QUEUE|none",
            complete=names_of_queues,
        ),
    ] = SYSTEM_DEAD_LETTER_QUEUE,
    *,
    columns: Annotated[dict[str, Any], Options(parameters_of(SentColumns, {}), lambda _, columns: columns)],
) -> None:
    """Send a message, or one per line of JSON.

    With --jsonl, a line is {"body": text or any JSON value} or {"body_base64": text}, and optionally
    "message_id", "session_id", "subject", "correlation_id", "to", "reply_to", "reply_to_session_id",
    "content_type", "partition_key", "time_to_live" (seconds or 5m), "scheduled_enqueue_time" (ISO 8601)
    and "properties" ({"name": value}). The options apply to every line that does not say otherwise. A
    thousand lines are one commit; where sessions are units (on_poison_session=whole), lines of one session in
    a row are in one commit, up to 100,000. Sending stops at a bad line: all lines before it are sent, and the
    error says so.
    """
    if jsonl and (body is not None or message_id is not None):
        raise usage("with --jsonl bodies and message ids come from the lines, not from the command line")
    if not jsonl and (body is None) == (file is None):
        raise usage(
            "give the message as BODY or with --file FILE (- is standard input), or many with --jsonl"
        )
    message = Message(
        b"",
        message_id=message_id,
        session_id=session,
        subject=subject,
        correlation_id=correlation_id,
        to=to,
        reply_to=reply_to,
        reply_to_session_id=reply_to_session,
        content_type=content_type,
        partition_key=partition_key,
        time_to_live=time_to_live,
        scheduled_enqueue_time=at,
        properties=properties(property_ or []),
        dead_letter_queue=None if dead_letter_queue.lower() == "none" else dead_letter_queue,
        **columns,
    )
    with call.broker() as broker, broker.sender(queue, via=via) as sender:
        if jsonl:
            units = look(store_of(broker), lambda tx: goes_to_units(tx, EntityPath.parse(queue)))
            with _opened(file) as lines:
                _send_lines(call, queue, LineSender(sender, message, units=units), lines)
            return
        message.body = os.fsencode(body) if body is not None else _read(file)
        number = sender.send(message)
        _report(call, queue, [number])


def _opened(file: Path | None) -> BinaryIO:
    if file is None or str(file) == "-":
        # Closing a file of its own leaves standard input open.
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    try:
        return file.open("rb")
    except OSError as error:
        raise usage(f"--file {file} cannot be read: {error.strerror}") from None


def _read(file: Path | None) -> bytes:
    with _opened(file) as opened:
        try:
            return opened.read()
        except OSError as error:
            raise usage(f"--file {file} cannot be read: {error.strerror}") from None


def _report(call: Call, queue: str, numbers: list[int]) -> None:
    which = f": {numbers[0]}" if len(numbers) == 1 else f": {numbers[0]} to {numbers[-1]}" if numbers else ""
    shown = f"sent {output.plural(len(numbers), 'message')} to {queue}{which}"
    call.print_done({"queue": queue, "sent": len(numbers), "sequence_numbers": numbers}, shown)


def _size(lines: BinaryIO) -> int | None:
    status = os.fstat(lines.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _send_lines(call: Call, queue: str, sending: LineSender, lines: BinaryIO) -> None:
    size = _size(lines)
    with output.progress(f"sending to {queue}", "messages" if size is None else "bytes") as advance:

        def on_commit() -> None:
            advance(len(sending.sent) if size is None else sending.bytes_read, size)

        try:
            sending.run(lines, on_commit)
            failure: BaseException | None = None
        except (BadLine, LazarettoError, KeyboardInterrupt, OSError) as error:
            failure = error
    if failure is None:
        _report(call, queue, sending.sent)
        return
    if call.json:
        _report(call, queue, sending.sent)
    progress_text = "nothing was sent"
    if sending.sent:
        sent = output.plural(len(sending.sent), "message")
        progress_text = f"{sent} sent, all up to line {sending.last_line}; nothing after that"
    if isinstance(failure, KeyboardInterrupt):
        output.notice(progress_text)
        raise failure
    cause = failure.cause if isinstance(failure, BadLine) else failure
    text = f"{failure} ({progress_text})"
    if isinstance(cause, LazarettoError):
        raise CommandError(cause.code, text, exit_code_of(cause)) from failure
    raise CommandError("bad_line" if isinstance(failure, BadLine) else "io_error", text) from failure


class BadLine(Exception):
    """A line cannot be sent: its number, and what is wrong with it. `cause` is the broker's error, if any."""

    def __init__(self, number: int, what: str, cause: Exception | None = None) -> None:
        super().__init__(f"line {number}: {what}")
        self.cause = cause


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Control-C back until the block is done, so that what was sent is known exactly."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if signals:
        raise KeyboardInterrupt


class LineSender:
    """Sends lines in order and keeps count: `sent` numbers, `last_line` sent, `bytes_read` up to there.

    `units`: sessions are units where they go, so that lines of one session in a row are one commit, however
    many they are.
    """

    def __init__(self, sender: Sender, like: Message, *, units: bool) -> None:
        self._sender = sender
        self._like = like
        self._units = units
        self.sent: list[int] = []
        self.last_line = 0
        self.bytes_read = 0

    def run(self, lines: Iterable[bytes], on_commit: Callable[[], None]) -> None:
        """Send all lines. Raises BadLine after the lines before it are sent; empty lines are skipped."""
        batch: list[tuple[int, Message]] = []
        size = read = 0
        for number, line in enumerate(lines, 1):
            read += len(line)
            if number == 1:
                # Windows' programs begin files with it.
                line = line.removeprefix(codecs.BOM_UTF8)
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
            full = len(batch) >= BATCH or size >= BATCH_BYTES
            if full and not self._belongs_to(batch, message):
                self._commit(batch)
                self.bytes_read = read - len(line)
                on_commit()
                batch, size = [], 0
            batch.append((number, message))
            size += len(message.body)
        self._commit(batch)
        self.bytes_read = read
        on_commit()

    def _belongs_to(self, batch: list[tuple[int, Message]], message: Message) -> bool:
        """Return whether a message must be in the commit of those before it."""
        session_id = message.session_id
        if not self._units or session_id is None or len(batch) >= MOST_IN_UNIT:
            return False
        return batch[-1][1].session_id == session_id

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
