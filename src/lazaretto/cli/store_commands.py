"""`lazaretto store`: looks a store over, brings it up to date, copies it to another database."""

from __future__ import annotations

from typing import Annotated

import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, StoreOption
from lazaretto.cli.exits import Exit
from lazaretto.store.addresses import copy_store, migrate_store

app = typer.Typer(
    help="Check a store, bring it up to date, and copy it between a file and a server.", rich_markup_mode=None
)


@app.command()
def check(context: typer.Context, store: StoreOption = None, json: JsonOption = False) -> None:
    """Read the store and say what is damaged; the exit code is 1 if something is."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found, facts = broker.check(), broker.facts()
    if call.json:
        output.json_object({"ok": not found, "damage": found, "store": facts})
    else:
        output.fields([(name.replace("_", " "), value) for name, value in facts.items()])
        for text in found:
            output.line(f"damage: {output.safe(text)}")
        output.line("the store is damaged" if found else "the store is whole")
    if found:
        raise typer.Exit(Exit.FAILED)


@app.command()
def migrate(
    context: typer.Context,
    after: Annotated[
        bool,
        typer.Option("--after", help="Also what workers of older versions do not survive: none is left."),
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Bring the store's tables up to this version.

    On a server this is done in two halves: before a new version is deployed, while older workers go on, and
    with --after when none of them is left. Opening a store does the first half by itself, if its user may.
    """
    call = Call.of(context, store, json)
    done = migrate_store(call.url(), after=after)
    if call.json:
        output.json_object({"migrations": done})
    elif done:
        output.line(f"done: migration {', '.join(map(str, done))}")
    else:
        output.line("nothing to do")


@app.command()
def copy(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The new store's URL.", show_default=False)],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Copy the store with everything in it to TARGET, a store that does not exist yet.

    Stop whoever uses it first. Messages, history, sessions and settings are copied; locks are dropped. What
    was written is read back and compared. Broken off, it goes on where it was when it is run again.
    """
    call = Call.of(context, store, json)
    with output.progress("copying", "rows") as progress:
        # The tables one after the other; the bar is of the one that is being copied.
        copied = copy_store(call.url(), target, lambda table, done, total: progress(done, total))
    if call.json:
        output.json_array({"table": c.table, "rows": c.rows, "sha256": c.sha256} for c in copied)
        return
    rows = [
        (c.table.removeprefix("lazaretto_").replace("_", " "), f"{c.rows:,}", c.sha256[:12]) for c in copied
    ]
    output.table(("table", "rows", "sha256"), rows, "nothing to copy")
    output.line("copied, and read back the same")


def add_to(program: typer.Typer) -> None:
    """Add the commands to the command line."""
    program.add_typer(app, name="store")
