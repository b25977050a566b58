"""`lazaretto mark`: marks this moment, such as a release."""

from __future__ import annotations

from typing import Annotated

import typer

from lazaretto.cli.call import ChangeOptions
from lazaretto.cli.command import Group
from lazaretto.commands import Mark

commands = Group()


@commands.command("mark")
def mark(
    call: ChangeOptions,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Such as 'release 42'.", show_default=False)],
) -> None:
    """Mark this moment, such as a release.

    Causes of dead letters tell after which mark they came first. `lazaretto audit --action mark` lists marks.
    """
    with call.broker() as broker:
        call.run(broker, Mark(text=text))
    call.print_done({"text": text}, f"marked {text}")
