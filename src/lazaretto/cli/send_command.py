"""`lazaretto send`: one message, or a stream of JSON lines."""

from __future__ import annotations

import os
import stat
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, QueueArgument, StoreOption
from lazaretto.cli.exits import CommandError, exit_code_of, usage
from lazaretto.cli.json_lines import BadLine, LineSender
from lazaretto.cli.parse import duration, future, properties
from lazaretto.errors import LazarettoError
from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE
from lazaretto.model.messages import Message
from lazaretto.sender import Sender


def _text(name: str, help_: str) -> typer.models.OptionInfo:
    return typer.Option(name, help=help_, show_default=False)  # type: ignore[no-any-return]


def send(
    context: typer.Context,
    queue: QueueArgument,
    body: Annotated[
        str | None, typer.Argument(metavar="[BODY]", help="The body.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read from FILE; - is standard input."),
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option("--jsonl", help="Send one message per line of JSON, from standard input or --file."),
    ] = False,
    message_id: Annotated[str | None, _text("--message-id", "The message's id [assigned].")] = None,
    session: Annotated[str | None, _text("--session", "The session it belongs to.")] = None,
    subject: Annotated[str | None, _text("--subject", "What it is about.")] = None,
    correlation_id: Annotated[str | None, _text("--correlation-id", "What it answers or belongs to.")] = None,
    to: Annotated[str | None, _text("--to", "Whom it is for.")] = None,
    reply_to: Annotated[str | None, _text("--reply-to", "Where answers go.")] = None,
    reply_to_session: Annotated[str | None, _text("--reply-to-session", "The session of answers.")] = None,
    content_type: Annotated[str | None, _text("--content-type", "Of the body.")] = None,
    partition_key: Annotated[str | None, _text("--partition-key", "Its partition.")] = None,
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property", "-p", metavar="NAME=TEXT", help="An application property; repeat for more."
        ),
    ] = None,
    time_to_live: Annotated[
        float | None, typer.Option("--ttl", parser=duration, metavar="DURATION", help="How long it lives.")
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(
            "--at",
            parser=future,
            metavar="TIME",
            help="When it becomes receivable: ISO 8601, or 5m from now.",
        ),
    ] = None,
    via: Annotated[
        str | None, _text("--via", "A queue it passes through, which keeps it if it cannot be delivered.")
    ] = None,
    dead_letter_queue: Annotated[
        str, _text("--dead-letter-queue", "Where it goes if it is rejected: a queue, or none [the system's].")
    ] = SYSTEM_DEAD_LETTER_QUEUE,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Send a message, or with --jsonl one for each line.

    A line is {"body": text or any JSON value} or {"body_base64": …}, and besides, as wanted,
    "message_id", "session_id", "subject", "correlation_id", "to", "reply_to",
    "reply_to_session_id", "content_type", "partition_key", "time_to_live" (seconds or 5m),
    "scheduled_enqueue_time" (ISO 8601) and "properties" ({"name": value}). The options above count
    for every line that does not say otherwise. A thousand lines are one commit. At a bad line
    it stops: all lines before it are sent, none from there on, and the error says so.
    """
    call = Call.of(context, store, json)
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
    )
    with call.broker() as broker, broker.sender(queue, via=via) as sender:
        if jsonl:
            with _opened(file) as lines:
                _send_lines(call, queue, sender, message, lines)
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
    if call.json:
        output.json_object({"queue": queue, "sent": len(numbers), "sequence_numbers": numbers})
        return
    which = f": {numbers[0]}" if len(numbers) == 1 else f": {numbers[0]} to {numbers[-1]}" if numbers else ""
    output.line(f"sent {output.plural(len(numbers), 'message')} to {output.safe(queue)}{which}")


def _size(lines: BinaryIO) -> int | None:
    status = os.fstat(lines.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _send_lines(call: Call, queue: str, sender: Sender, like: Message, lines: BinaryIO) -> None:
    sending = LineSender(sender, like)
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
    done = "nothing was sent"
    if sending.sent:
        sent = output.plural(len(sending.sent), "message")
        done = f"{sent} sent, all up to line {sending.last_line}; nothing after that"
    if isinstance(failure, KeyboardInterrupt):
        output.notice(done)
        raise failure
    cause = failure.cause if isinstance(failure, BadLine) else failure
    text = f"{failure} ({done})"
    if isinstance(cause, LazarettoError):
        raise CommandError(cause.code, text, exit_code_of(cause)) from failure
    raise CommandError("bad_line" if isinstance(failure, BadLine) else "io_error", text) from failure


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("send", short_help="Send a message, or one per line of JSON.")(send)
