"""`lazaretto dialog`: what services may say, conversations and why they wait, readers."""

from __future__ import annotations

import enum
import itertools
import time
from pathlib import Path
from typing import Annotated

import typer

from lazaretto.cli import definition_commands as dialog_definitions
from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, StoreOption, YesOption, confirm_deletion
from lazaretto.cli.exits import usage
from lazaretto.model.conversations import dialog_of
from lazaretto.tools.signals import Ending

app = typer.Typer(
    help="Dialogs between services: define them, look into conversations, decide, run readers.",
    rich_markup_mode=None,
)

DialogArgument = Annotated[
    str,
    typer.Argument(
        metavar="DIALOG", help="A dialog's id, its beginning, or a conversation's handle.", show_default=False
    ),
]
HandleArgument = Annotated[
    str,
    typer.Argument(metavar="CONVERSATION", help="A conversation's handle: ID-i or ID-t.", show_default=False),
]
_COLUMNS = ("conversation", "service", "far service", "state", "messages", "waits")
#: How often `run` looks whether there is still work, in seconds.
_LOOK = 0.5


class DialogVerdict(enum.Enum):
    """What may be decided on the poison message that holds a conversation."""

    RETRY = "retry"
    MOVE = "move"
    DROP = "drop"
    REJECT = "reject"
    END = "end"


class StateName(enum.Enum):
    """A state that a conversation can be in."""

    STARTED_OUTBOUND = "started_outbound"
    CONVERSING = "conversing"
    DISCONNECTED_INBOUND = "disconnected_inbound"
    DISCONNECTED_OUTBOUND = "disconnected_outbound"
    ERROR = "error"


app.add_typer(dialog_definitions.app, name="create")
app.command("delete")(dialog_definitions.delete)
app.command("drop", hidden=True)(dialog_definitions.delete)


@app.command("apply")
def apply(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A TOML file of definitions.", show_default=False)
    ],
    compare: Annotated[bool, typer.Option("--compare", help="Change nothing; say what would be.")] = False,
    delete_others: Annotated[
        bool, typer.Option("--delete-others", help="Delete what the file does not name.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Make the store have the message types, contracts, services and priorities of a file."""
    call = Call.of(context, store, json)
    with call.broker(create=not compare) as broker:
        changes = broker.dialogs.apply(file, drop_others=delete_others, compare=compare)
    if call.json:
        output.json_array(change._asdict() for change in changes)
    else:
        verb = "to do" if compare else "done"
        rows = [(verb, change.verb, change.kind, change.name) for change in changes]
        output.table(("", "what", "kind", "name"), rows, "the store has all of it")


@app.command("definitions")
def definitions(context: typer.Context, store: StoreOption = None, json: JsonOption = False) -> None:
    """Show the message types, contracts, services and priorities of the store."""
    from lazaretto.dialogs.declaration import as_declaration

    call = Call.of(context, store, json)
    with call.broker() as broker:
        tables = as_declaration(broker.dialogs.definitions())
    if call.json:
        output.json_object(tables)
        return
    rows = [
        (table, name, ", ".join(f"{option}={value}" for option, value in options.items()))
        for table, entries in tables.items()
        for name, options in entries.items()
    ]
    output.table(("kind", "name", "options"), rows, "nothing is defined")


@app.command("list")
def list_(
    context: typer.Context,
    queue: Annotated[str | None, typer.Option(help="Only of this service's queue.")] = None,
    state: Annotated[StateName | None, typer.Option(help="Only in this state.")] = None,
    group: Annotated[str | None, typer.Option(help="Only of this conversation group.")] = None,
    held: Annotated[bool, typer.Option("--held", help="Only those that a poison message holds.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 1_000,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List conversations, how they stand, and why they wait."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        wanted = None if state is None else state.value
        every = broker.dialogs.conversations(queue=queue, state=wanted, group=group)
        found = itertools.islice((c for c in every if c.held is not None or not held), limit)
        if call.json:
            output.json_array(found)
        else:
            rows = (
                (c.conversation, c.service, c.far_service, c.state.value, sum(c.messages.values()), c.waits)
                for c in found
            )
            output.table(
                _COLUMNS,
                rows,
                "no conversations held" if held else "no conversations",
                spare=("far service",),
            )


@app.command("show")
def show(
    context: typer.Context, dialog: DialogArgument, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Show both ends of a dialog: states, messages, locks, and why it waits."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        ends = broker.dialogs.dialog(dialog)
    if call.json:
        output.json_array(ends)
        return
    output.line(f"dialog {ends[0].dialog} under contract {output.safe(ends[0].contract)}")
    for end in ends:
        output.line(f"{'initiator' if end.initiator else 'target'} {output.safe(end.service)}")
        facts: list[tuple[str, object]] = [
            ("conversation", end.conversation),
            ("queue", end.queue),
            ("state", end.state.value),
            ("waits", end.waits),
            ("error", None if end.error is None else f"{end.error[0]}: {end.error[1]}"),
            ("sent", end.sent),
            *((f"messages {name}", number) for name, number in sorted(end.messages.items())),
            ("group", end.group),
            ("locked by", end.locked_by),
            ("locked until", output.shown_time(end.locked_until)),
            ("priority", end.priority),
            ("begun", output.shown_time(end.created)),
            ("lifetime ends", output.shown_time(end.expires)),
        ]
        output.fields(facts, "  ")


@app.command("timeline")
def timeline(
    context: typer.Context, dialog: DialogArgument, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Show what happened in a dialog at both ends, in order, and what waits there now."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        entries = broker.dialogs.timeline(dialog)
    if call.json:
        output.json_array(entries)
        return
    rows = [
        (
            output.shown_time(e.time),
            e.end,
            e.kind,
            e.number,
            e.message_type,
            e.text,
        )
        for e in entries
    ]
    output.table(
        ("time", "end", "what", "number", "message type", ""),
        rows,
        "nothing happened",
        spare=("number", "end"),
    )


@app.command("end")
def end(
    context: typer.Context,
    conversation: HandleArgument,
    code: Annotated[int | None, typer.Option("--code", help="End it with an error of this code.")] = None,
    text: Annotated[str | None, typer.Option("--text", help="The error's text.")] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """End a conversation at this end; the far end is told. What waits here unread is dropped."""
    call = Call.of(context, store, json)
    if (code is None) is not (text is None):
        raise usage("an error needs both --code and --text")
    error = None if code is None or text is None else (code, text)
    with call.broker() as broker:
        broker.dialogs.end(conversation, error=error)
    _done(call, conversation, "ended")


@app.command("cleanup")
def cleanup(
    context: typer.Context,
    conversation: HandleArgument,
    both: Annotated[bool, typer.Option("--both", help="The other end, too.")] = False,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete one side of a dialog and its pending messages.

    The other side is not notified.
    """
    call = Call.of(context, store, json)
    confirm_deletion(f"conversation {conversation}", yes)
    with call.broker() as broker:
        ends = [end.conversation for end in broker.dialogs.dialog(conversation)] if both else [conversation]
        for handle in ends:
            broker.dialogs.clean_up(handle)
    _done(call, dialog_of(conversation) if both else conversation, "cleaned up")


@app.command("resume")
def resume(
    context: typer.Context,
    conversation: HandleArgument,
    verdict: Annotated[
        DialogVerdict, typer.Option(help="On the poison message that holds it.", show_default=False)
    ],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Resume a conversation held by a poison message, or end it."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        broker.dialogs.resume(conversation, verdict.value)
    _done(call, conversation, f"resumed: {verdict.value}")


@app.command("run")
def run(
    context: typer.Context,
    services: Annotated[
        list[str] | None, typer.Argument(metavar="[SERVICE]...", help="Which services; by default all.")
    ] = None,
    stop_when_idle: Annotated[
        bool, typer.Option("--stop-when-idle", help="End when no reader has anything to receive.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Start and stop readers of services that name a handler, by load, until SIGTERM or Control-C."""
    call = Call.of(context, store, json)
    ending = Ending()
    with call.broker() as broker, ending.on_signals():
        with broker.dialogs.activate(*(services or ())) as monitors:
            output.notice(f"reading for {', '.join(m.status().service for m in monitors)}")
            while not ending.asked:
                time.sleep(_LOOK)
                if stop_when_idle and not any(monitor.has_work() for monitor in monitors):
                    break
        if call.json:
            output.json_array(monitor.status()._asdict() for monitor in monitors)


def _done(call: Call, conversation: str, what: str) -> None:
    if call.json:
        output.json_object({"conversation": conversation, "result": what})
    else:
        output.line(output.safe(f"{what} {conversation}"))


def add_to(program: typer.Typer) -> None:
    """Add the commands to the command line."""
    program.add_typer(app, name="dialog")
