"""`lazaretto session`: list, show, and resume those that a poison message holds back."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, QueueArgument, StoreOption
from lazaretto.cli.listings import print_listing, takes_listing_options
from lazaretto.model.entities import SessionDescription

app = typer.Typer(
    help="List and show sessions, and resume those held back by a poison message.", rich_markup_mode=None
)

SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="The session's id.", show_default=False)
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
    held = session.held
    return (
        session.session_id,
        sum(session.messages.values()),
        output.shown_time(session.locked_until),
        held.sequence_number if held else None,
        held.mode.value if held else "",
        held.reason if held else "",
        held.error if held else "",
    )


@app.command("list")
@takes_listing_options
def list_(
    context: typer.Context,
    queue: QueueArgument,
    held: Annotated[bool, typer.Option("--held", help="Only those that are held back.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List the sessions that have messages, a lock or a state, or are held back."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        names = [h.session_id for h in broker.held_sessions(queue)] if held else broker.sessions(queue)
        found = (broker.session(queue, name) for name in names)
        empty = "no sessions held back" if held else "no sessions"
        print_listing(context, call, found, _COLUMNS, _row, empty, spare=("mode",))


@app.command("show")
def show(
    context: typer.Context,
    queue: QueueArgument,
    session: SessionArgument,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show one session: its messages by state, its lock, and what holds it back."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.session(queue, session)
    if call.json:
        output.json_object(found)
        return
    output.line(output.safe(f"session {found.session_id} of {found.queue}"))
    facts: list[tuple[str, object]] = [*sorted(found.messages.items())]
    facts += [
        ("locked until", output.shown_time(found.locked_until)),
        ("locked by", found.locked_by),
        ("has state", "yes" if found.has_state else "no"),
    ]
    if found.held is not None:
        held = found.held
        told = f": {held.error}" if held.error else ""
        why = f"message {held.sequence_number} since {output.shown_time(held.time)}: {held.reason}"
        facts.append(("held back by", f"{why} ({held.mode.value}){told}"))
    output.fields(facts, "  ")


@app.command("resume")
def resume(
    context: typer.Context,
    queue: QueueArgument,
    session: SessionArgument,
    verdict: Annotated[
        SessionVerdict,
        typer.Option(
            help="On the message that holds it: retry, move, drop, reject (blocked); retry, skip (parked).",
            show_default=False,
        ),
    ],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Let a held session go on, by a verdict on its poison message."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        broker.resume_session(queue, session, verdict.value)
        found = broker.session(queue, session) if call.json else None
    if found is not None:
        output.json_object(found)
    else:
        output.line(output.safe(f"resumed session {session} of {queue}: {verdict.value}"))


def add_to(program: typer.Typer) -> None:
    """Add the commands to the command line."""
    program.add_typer(app, name="session")
