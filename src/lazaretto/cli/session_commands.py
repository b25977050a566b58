"""`lazaretto session`: list, show, and resume those that a poison message holds back."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from lazaretto.cli import output
from lazaretto.cli.call import CallOptions, QueueArgument
from lazaretto.cli.command import Group
from lazaretto.cli.derived import add_change
from lazaretto.cli.listings import ListingOptions
from lazaretto.commands import FreeSession, ResumeSession
from lazaretto.model.descriptions import SessionDescription

commands = Group()
sessions = commands.group("session")

SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="ID of the session.", show_default=False)
]
_COLUMNS = ("session", "messages", "locked until", "held by", "mode", "reason", "error")


class SessionVerdict(enum.Enum):
    """What may be decided on the message that holds its session back."""

    RETRY = "retry"
    MOVE = "move"
    DROP = "drop"
    REJECT = "reject"
    SKIP = "skip"


def _row(session: SessionDescription) -> tuple[object, ...]:
    hold = session.held
    return (
        session.session_id,
        sum(session.messages.values()),
        output.shown_time(session.locked_until),
        hold.sequence_number if hold else None,
        hold.mode.value if hold else "",
        hold.reason if hold else "",
        hold.error if hold else "",
    )


@sessions.command("list")
def list_(
    call: ListingOptions,
    queue: QueueArgument,
    held: Annotated[bool, typer.Option("--held", help="Only sessions held by a poison message.")] = False,
) -> None:
    """List the sessions of a queue.

    It lists sessions that have messages, a lock or a state, or are held back.
    """
    with call.broker() as broker:
        names = [h.session_id for h in broker.held_sessions(queue)] if held else broker.sessions(queue)
        found = (broker.session(queue, name) for name in names)
        empty = "no held sessions" if held else "no sessions"
        call.print_all(found, _COLUMNS, _row, empty, spare=("mode",))


@sessions.command("show")
def show(call: CallOptions, queue: QueueArgument, session: SessionArgument) -> None:
    """Show a session: messages, lock, and what holds it back."""
    with call.broker() as broker:
        description = broker.session(queue, session)

    def print_facts() -> None:
        output.line(f"session {description.session_id} of {description.queue}")
        output.fields(_facts(description), "  ")

    call.print(description, print_facts)


def _facts(description: SessionDescription) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [*sorted(description.messages.items())]
    facts += [
        ("locked until", output.shown_time(description.locked_until)),
        ("locked by", description.locked_by),
        ("has state", "yes" if description.has_state else "no"),
    ]
    if description.held is not None:
        hold = description.held
        error_text = f": {hold.error}" if hold.error else ""
        why = f"message {hold.sequence_number} since {output.shown_time(hold.time)}: {hold.reason}"
        facts.append(("held back by", f"{why} ({hold.mode.value}){error_text}"))
    return facts


add_change(
    sessions,
    "free",
    FreeSession,
    "freed session {session_id} of {path}",
    parameters={"session_id": (SessionArgument, ...)},
)
add_change(
    sessions,
    "resume",
    ResumeSession,
    "resumed session {session_id} of {path}: {verdict}",
    parameters={
        "session_id": (SessionArgument, ...),
        "verdict": (
            Annotated[
                SessionVerdict,
                typer.Option(
                    help="What happens to the poison message. A blocked session takes retry, move, drop or "
                    "reject; a parked one takes retry or skip.",
                    show_default=False,
                ),
            ],
            ...,
        ),
    },
    result=lambda broker, fields, answer: broker.session(fields["path"], fields["session_id"]),
)
