"""`lazaretto peek`, `receive` and `show`: messages, and what happened to one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Annotated

from lazaretto.broker.receiver import Receiver
from lazaretto.broker.settling import NEXT_SESSION, NextSession
from lazaretto.cli import output
from lazaretto.cli.call import Call, CallOptions, ListingOptions, QueueArgument, limit_option
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.dead_letter_text import first_line, message_facts, print_block
from lazaretto.cli.exits import usage
from lazaretto.cli.output import Columns, Table
from lazaretto.cli.parse import duration, number
from lazaretto.errors import LazarettoError
from lazaretto.model.message_history import GONE, MessageHistory, Moment
from lazaretto.model.messages import MOST_MESSAGES, PeekedMessage, ReceivedMessage

commands = Group()

_BATCH = 100
#: The most characters of an error beside a body.
_ERROR = 60
#: What makes room for the body, in this order.
_SPARE = ("message id", "deliveries", "enqueued", "error")

_SENT: Columns = {"enqueued": "enqueued_time", "message id": "message_id", "session": "session_id"}
_BODY: Columns = {"body": lambda message: output.body_text(message.body)}
_PEEK_COLUMNS: Columns = {
    "sequence": "sequence_number",
    "state": "state",
    **_SENT,
    "deliveries": "deliveries",
    "error": lambda message: message.error and message.error[:_ERROR],
    **_BODY,
}
_RECEIVE_COLUMNS: Columns = {"sequence": "sequence_number", **_SENT, "attempt": "attempt", **_BODY}
_COLUMNS: Columns = {
    "time": "time",
    "queue": "queue",
    "number": "sequence_number",
    "what": lambda moment: _what(moment),
    "by": lambda moment: moment.attempt and moment.attempt.worker,
}
_STATES = {
    "dead_lettered": "a dead letter",
    GONE: "gone: completed, discarded or deleted",
}


@commands.command("peek")
def peek(
    call: ListingOptions,
    queue: QueueArgument,
    most: Annotated[int, limit_option("Maximum number of messages.")] = 10,
    start: Annotated[int, option("First sequence number.", "NUMBER", "--from", parser=number(0))] = 0,
    session: Annotated[str | None, option("Only messages of this session.", "ID")] = None,
) -> None:
    """Look at messages without locking them.

    No attempt is counted. QUEUE;poison shows the dead letters, QUEUE;retry the messages that wait for a
    retry.
    """
    with call.broker() as broker, broker.receiver(queue) as receiver:
        messages = _peeked(receiver, most, start, session)
        empty = f"no messages in {queue}"
        call.print_all(messages, _PEEK_COLUMNS, empty, spare=_SPARE)


def _peeked(receiver: Receiver, rest: int, start: int, session: str | None) -> Iterator[PeekedMessage]:
    while rest > 0:
        messages = receiver.peek(min(rest, _BATCH), start, session_id=session)
        yield from messages
        if len(messages) < min(rest, _BATCH):
            return
        rest -= len(messages)
        start = messages[-1].sequence_number + 1


@commands.command("receive")
def receive(
    call: CallOptions,
    queue: QueueArgument,
    most: Annotated[int, limit_option("Maximum number of messages.", MOST_MESSAGES)] = 1,
    wait: Annotated[
        float | None,
        option("Time to wait for the first message.  [default: 0s]", "DURATION", "-w", parser=duration),
    ] = None,
    numbers: Annotated[
        list[int] | None,
        option(
            "Receive the active message with this sequence number; repeatable.",
            "NUMBER",
            "--number",
            parser=number(1),
        ),
    ] = None,
    complete: Annotated[bool, option("Complete the messages: they leave the queue.")] = False,
    abandon: Annotated[bool, option("Count a failed attempt; the poison policy applies.")] = False,
    dead_letter: Annotated[bool, option("Move the messages to the dead-letter queue.")] = False,
    error: Annotated[str | None, option("With --abandon: 'Type: text'.")] = None,
    delay: Annotated[
        float | None, option("With --abandon: delay before the retry.", "DURATION", parser=duration)
    ] = None,
    reason: Annotated[str | None, option("With --dead-letter: reason.")] = None,
    description: Annotated[str | None, option("With --dead-letter: detailed reason.", "DETAIL")] = None,
    session: Annotated[str | None, option("Receive from this session.", "ID")] = None,
    next_session: Annotated[bool, option("Receive from the next free session.")] = False,
) -> None:
    """Receive messages, print them and settle them.

    --complete, --abandon or --dead-letter says how. Without one of them, the messages are released after
    printing: they stay in the queue, and no failure is counted. Messages that could not be printed
    (Control-C, closed pipe) are released too. QUEUE;poison receives dead letters.
    """
    if complete + abandon + dead_letter > 1:
        raise usage("give one of --complete, --abandon and --dead-letter")
    if not abandon and (error is not None or delay is not None):
        raise usage("--error and --delay belong to --abandon")
    if not dead_letter and (reason is not None or description is not None):
        raise usage("--reason and --description belong to --dead-letter")
    if session is not None and next_session:
        raise usage("give --session or --next-session, not both")
    if numbers and (next_session or wait is not None):
        raise usage("--number cannot be combined with --next-session or --wait")
    session_: str | NextSession | None = NEXT_SESSION if next_session else session
    taken = 0
    with (
        call.broker() as broker,
        broker.receiver(queue, session=session_) as receiver,
        _printing(call) as show,
    ):
        # What is abandoned or released may be receivable again at once; it must not come twice, so it is
        # held to the end.
        messages: list[ReceivedMessage] = []
        with _given_back(receiver, messages):
            while taken < most:
                if numbers:
                    most, batch = 0, receiver.receive_by_number(numbers)
                else:
                    batch = receiver.receive(min(_BATCH, most - taken), wait if wait and not taken else 0.0)
                if not batch:
                    break
                taken += len(batch)
                messages += batch
                show(batch)
                if dead_letter:
                    receiver.dead_letter(messages, reason=reason, description=description)
                    messages.clear()
                elif complete:
                    receiver.complete(messages)
                    messages.clear()
            if abandon:
                receiver.abandon(messages, error=error, delay=delay)
            else:
                receiver.release(messages)
            messages.clear()
    if taken and not (complete or abandon or dead_letter):
        output.notice(
            f"released {output.plural(taken, 'message')}, no failure counted; "
            "to settle, give --complete, --abandon or --dead-letter"
        )
    if not taken and not call.json:
        output.notice(f"no messages in {queue}")


class _Show:
    """Prints batches of messages as they are received."""

    def __init__(self, array: output.JsonArray | None) -> None:
        self._array = array
        self._listing = Table(list(_RECEIVE_COLUMNS), shortened=None)

    def __call__(self, batch: Sequence[ReceivedMessage]) -> None:
        if self._array is not None:
            self._array.add(batch)
        else:
            self._listing.add(output.rows_of(batch, _RECEIVE_COLUMNS))


@contextlib.contextmanager
def _printing(call: Call) -> Iterator[_Show]:
    if call.json:
        with output.JsonArray() as array:
            yield _Show(array)
    else:
        yield _Show(None)


@contextlib.contextmanager
def _given_back(receiver: Receiver, messages: list[ReceivedMessage]) -> Iterator[None]:
    """Give back, uncharged, what is still held when the block fails."""
    try:
        yield
    except BaseException:
        # The locks may be lost already; the error that brought us here is the one to tell.
        with contextlib.suppress(LazarettoError):
            receiver.release(messages)
        raise


@commands.command("show")
def show(
    call: CallOptions,
    queue: QueueArgument,
    sequence: Annotated[int, argument("Sequence number.", "NUMBER", parser=number(1))],
) -> None:
    """Show a message, and what happened to it.

    It finds a message in every state. A dead letter that is sent back gets a new number: what happened
    before and after is told, too. Of a
    message that is completed the store keeps nothing but its earlier numbers.
    """
    with call.broker() as broker:
        history = broker.message_history(queue, sequence)
    call.print(history, lambda: _print(history))


def _print(history: MessageHistory) -> None:
    asked, message = history.asked, history.message
    where = f" ({asked.subqueue})" if asked.subqueue else ""
    output.line(f"message {history.sequence_number} of {history.queue}{where}: {_state(asked.state)}")
    facts: list[tuple[str, object]] = [
        ("became", None if history.latest is asked else _became(history)),
        ("message id", asked.message_id),
        ("description", first_line(asked.description)),
        ("error type", asked.error_type),
        ("error", first_line(asked.error_message)),
    ]
    if message is not None:
        facts += [
            ("number when sent", _other(message.enqueued_sequence_number, history.sequence_number)),
            ("deliveries", message.deliveries),
            ("locked until", message.locked_until),
            ("expires", message.expires_at),
            ("scheduled for", message.scheduled_enqueue_time),
            *message_facts(message),
        ]
    output.fields(facts, "  ")
    if not history.complete:
        output.line("it has more generations than are shown")
    output.table(
        list(_COLUMNS),
        output.rows_of(history.moments(), _COLUMNS),
        "nothing is known of what happened to it",
        shortened="what",
    )
    if message is not None:
        output.line(f"body ({output.plural(len(message.body), 'byte')})")
        print_block(output.body_text(message.body))


def _other(number: int | None, than: int) -> int | None:
    return None if number == than else number


def _state(state: str) -> str:
    return _STATES.get(state, state)


def _became(history: MessageHistory) -> str:
    latest = history.latest
    return f"message {latest.sequence_number} of {latest.queue}: {_state(latest.state)}"


def _what(moment: Moment) -> str:
    attempt = moment.attempt
    if attempt is None or attempt.error_type is None:
        return moment.what
    return f"{moment.what}: {attempt.error_type}: {first_line(attempt.error_message) or ''}"
