"""What every command shares: the store it works on, and whether it prints JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from lazaretto.cli.exits import CommandError, Exit, usage

if TYPE_CHECKING:
    from lazaretto.broker import Broker

ENVIRONMENT = "LAZARETTO_STORE"

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="STORE",
        help=f"The store: sqlite:///orders.db, a file's path, or postgresql://…. Default: ${ENVIRONMENT}.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's path.", show_default=False)]


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One call of the command."""

    store: str | None
    json: bool

    @classmethod
    def of(cls, context: typer.Context, store: str | None, json: bool) -> Call:
        """Return this call; what is given behind the subcommand goes before what is given in front."""
        outer = context.find_root().obj
        return cls(store or outer.store, json or outer.json) if isinstance(outer, Call) else cls(store, json)

    def url(self) -> str:
        """Return the store's URL. Raises CommandError if none was named."""
        url = self.store or os.environ.get(ENVIRONMENT)
        if not url:
            raise CommandError(
                "no_store",
                f"no store was named; give --store sqlite:///orders.db or set {ENVIRONMENT}",
                Exit.USAGE,
            )
        return url

    @contextlib.contextmanager
    def broker(self, *, create: bool = False) -> Iterator[Broker]:
        """Open the store; only `create` makes one where there is none."""
        from lazaretto.broker import connect
        from lazaretto.store.addresses import without_password

        url = self.url()
        try:
            broker = connect(url, create=create)
        except FileNotFoundError:
            raise CommandError(
                "store_not_found",
                f"there is no store at {without_password(url)}; check the path (--store or {ENVIRONMENT}), "
                "or make one with `lazaretto queue create`",
                Exit.STORE,
            ) from None
        except OSError as error:
            raise CommandError(
                "store_error", f"the store {without_password(url)} cannot be opened: {error}", Exit.STORE
            ) from None
        with broker:
            yield broker


def confirm_deletion(what: str, yes: bool) -> None:
    """Ask before something is deleted, unless `yes`. Raises CommandError if it is not to be."""
    if yes:
        return
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise usage(f"deleting {what} needs --yes")
    if not typer.confirm(f"Delete {what}?", err=True):
        raise CommandError("cancelled", "nothing was deleted")
