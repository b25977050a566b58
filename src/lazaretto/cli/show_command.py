"""`lazaretto show`: one message, wherever it is, and what happened to it so far."""

from __future__ import annotations

from typing import Annotated

import typer

from lazaretto.cli import output
from lazaretto.cli.call import CallOptions, QueueArgument
from lazaretto.cli.command import Group
from lazaretto.cli.dead_letter_text import first_line, message_facts, print_block
from lazaretto.cli.parse import number
from lazaretto.model.message_history import GONE, MessageHistory, Moment

commands = Group()

_COLUMNS = ("time", "queue", "number", "what", "by")
_STATES = {
    "dead_lettered": "a dead letter",
    GONE: "gone: completed, discarded or deleted",
}


@commands.command("show")
def show(
    call: CallOptions,
    queue: QueueArgument,
    sequence: Annotated[
        int,
        typer.Argument(metavar="NUMBER", parser=number(1), help="Sequence number.", show_default=False),
    ],
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
            ("locked until", output.shown_time(message.locked_until)),
            ("expires", output.shown_time(message.expires_at)),
            ("scheduled for", output.shown_time(message.scheduled_enqueue_time)),
            *message_facts(message),
        ]
    output.fields(facts, "  ")
    if not history.complete:
        output.line("it has more generations than are shown")
    output.table(
        _COLUMNS, map(_row, history.moments()), "nothing is known of what happened to it", shortened="what"
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


def _row(moment: Moment) -> tuple[object, ...]:
    attempt = moment.attempt
    what = moment.what
    if attempt is not None and attempt.error_type is not None:
        what = f"{what}: {attempt.error_type}: {first_line(attempt.error_message) or ''}"
    by = None if attempt is None else attempt.worker
    return (output.shown_time(moment.time), moment.queue, moment.sequence_number, what, by)
