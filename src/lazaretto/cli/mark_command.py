"""`lazaretto mark`: marks this moment, such as a release."""

from __future__ import annotations

from typing import Annotated

import typer

from lazaretto.cli.command import Group
from lazaretto.cli.derived import add_change
from lazaretto.commands import Mark

commands = Group()


add_change(
    commands,
    "mark",
    Mark,
    "marked {text}",
    text="Mark this moment, such as a release.\n\n"
    "Causes of dead letters tell after which mark they came first. `lazaretto audit --action mark` lists "
    "marks.",
    parameters={
        "text": (
            Annotated[str, typer.Argument(metavar="TEXT", help="Such as 'release 42'.", show_default=False)],
            ...,
        )
    },
    result=lambda broker, fields, answer: {"text": fields["text"]},
)
