"""`lazaretto breaker`: how a queue's breaker stands, and what an operator says of it."""

from __future__ import annotations

from typing import Annotated

import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, QueueArgument, StoreOption
from lazaretto.model.entities import BreakerDescription

app = typer.Typer(
    help="Show a queue's breaker; pause and resume deliveries.",
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
    """Show a queue's breaker, and the failure that opened it."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.breaker(queue)
    _show(call, queue, found)


def _set(context: typer.Context, queue: str, verb: str, store: str | None, json: bool) -> None:
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.set_breaker(queue, verb)
    _show(call, queue, found)


@app.command("pause")
@app.command("open", hidden=True)
def pause(
    context: typer.Context, queue: QueueArgument, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Hand nothing to service hosts until `resume`."""
    _set(context, queue, "open", store, json)


@app.command("resume")
@app.command("auto", hidden=True)
def resume(
    context: typer.Context,
    queue: QueueArgument,
    always: Annotated[
        bool, typer.Option("--always", help="Do not let the breaker open by itself, whatever fails.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Hand messages out again; the breaker decides by itself."""
    _set(context, queue, "close" if always else "auto", store, json)


@app.command("close", hidden=True)
def close(
    context: typer.Context, queue: QueueArgument, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Hand messages out whatever fails: `resume --always`."""
    _set(context, queue, "close", store, json)


def add_to(program: typer.Typer) -> None:
    """Add the commands to the command line."""
    program.add_typer(app, name="breaker")
