"""`lazaretto completion`: prints what a shell needs to complete commands."""

from __future__ import annotations

import enum
from importlib import resources
from typing import Annotated

import typer

from lazaretto.cli.command import Group

commands = Group()


class Shell(enum.Enum):
    """A shell that completes commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@commands.command("completion")
def completion(
    shell: Annotated[Shell, typer.Argument(help="Your shell.", show_default=False)],
) -> None:
    """Print a script that completes commands in a shell.

    \b
    bash: add eval "$(lazaretto completion bash)" to ~/.bashrc.
    zsh: add eval "$(lazaretto completion zsh)" to ~/.zshrc, below compinit.
    fish: add lazaretto completion fish | source to ~/.config/fish/config.fish.
    """
    print(resources.files("lazaretto.cli").joinpath(f"completion.{shell.value}").read_text("utf-8"), end="")
