"""`lazaretto store`: checks a store, brings it up to date, copies it to another database."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lazaretto.cli import output
from lazaretto.cli.call import CallOptions, ListingOptions
from lazaretto.cli.command import Group
from lazaretto.cli.exits import Exit
from lazaretto.store.addresses import copy_store, migrate_store

commands = Group()
stores = commands.group("store")


@stores.command("check")
def check(call: CallOptions) -> None:
    """Check a store for damage.

    It reads the whole store; the exit code is 1 if something is damaged.
    """
    with call.broker() as broker:
        problems, facts = broker.check(), broker.facts()

    def print_facts() -> None:
        output.fields([(name.replace("_", " "), value) for name, value in facts.items()])
        for text in problems:
            output.line(f"damage: {text}")
        output.line("the store is damaged" if problems else "the store is OK")

    call.print({"ok": not problems, "damage": problems, "store": facts}, print_facts)
    if problems:
        raise typer.Exit(Exit.FAILED)


@stores.command("migrate")
def migrate(
    call: CallOptions,
    after: Annotated[
        bool,
        typer.Option(
            "--after", help="Also run migrations that older versions cannot work with; stop those first."
        ),
    ] = False,
) -> None:
    """Bring a store's tables up to this version.

    On a server this takes two steps: the first before you deploy a new version, while older workers run;
    the second with --after, when none of them is left. Opening a store does the first step by itself, if
    its user may.
    """
    steps = migrate_store(call.url(), after=after)
    numbers = ", ".join(map(str, steps))
    call.print({"migrations": steps}, f"done: migration {numbers}" if steps else "already up to date")


@stores.command("copy")
def copy(
    call: ListingOptions,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="URL of the new store.", show_default=False)
    ],
) -> None:
    """Copy a store with everything in it to a new store.

    Stop all users of the store first. Messages, history, sessions and settings are copied; locks are
    dropped. The copy is read back and compared. If interrupted, run it again to resume.
    """
    with output.progress("copying", "rows") as progress:
        # The tables one after the other; the bar is of the one that is being copied.
        copied = copy_store(call.url(), target, lambda table, done, total: progress(done, total))
    call.print_all(copied, ("table", "rows", "sha256"), _row, "nothing to copy", shortened=None)
    if not call.wants_objects and not call.csv:
        output.line("copied and verified")


def _row(copied: Any) -> tuple[object, ...]:
    return copied.table.removeprefix("lazaretto_").replace("_", " "), f"{copied.rows:,}", copied.sha256[:12]
