"""`lazaretto breaker`: how a queue's breaker stands, and what an operator says of it."""

from __future__ import annotations

import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, QueueArgument, StoreOption
from lazaretto.model.entities import BreakerDescription

app = typer.Typer(
    help="Show a queue's breaker, keep it open or closed, or let it decide by itself.",
    rich_markup_mode=None,
)


def _show(call: Call, queue: str, found: BreakerDescription) -> None:
    if call.json:
        output.json_object(found)
        return
    output.line(output.safe(f"breaker of {queue}"))
    output.fields(
        [
            ("status", found.status.value),
            ("since", output.shown_time(found.since)),
            ("error", found.error),
            ("fingerprint", found.fingerprint),
            ("next probe", output.shown_time(found.probe_at)),
        ],
        "  ",
    )


@app.command("show")
def show(
    context: typer.Context, queue: QueueArgument, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Show whether service hosts are handed messages, and if not, because of which failure."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.breaker(queue)
    _show(call, queue, found)


def _set(context: typer.Context, queue: str, verb: str, store: str | None, json: bool) -> None:
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.set_breaker(queue, verb)
    _show(call, queue, found)


@app.command("open")
def open_(
    context: typer.Context, queue: QueueArgument, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Keep it open: nothing is handed to service hosts until you say close or auto."""
    _set(context, queue, "open", store, json)


@app.command("close")
def close(
    context: typer.Context, queue: QueueArgument, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Keep it closed: everything is handed out, and every failure counts, whatever it looks like."""
    _set(context, queue, "close", store, json)


@app.command("auto")
def auto(
    context: typer.Context, queue: QueueArgument, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Let it decide by itself again, from closed."""
    _set(context, queue, "auto", store, json)


def add_to(program: typer.Typer) -> None:
    """Add the commands to the command line."""
    program.add_typer(app, name="breaker")
