"""The commands by name, loaded when they are called: `--help` and each command start without the others."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

import typer
from typer import core
from typer.core import TyperGroup

from lazaretto.cli.exits import usage
from lazaretto.model.shown_text import safe

#: Each command: what the help of all says of it, and the module that has it.
COMMANDS = {
    "send": ("Send a message, or one per line of JSON.", "send_command"),
    "peek": ("Look at messages without locking them.", "receive_commands"),
    "show": ("Show a message, and what happened to it.", "receive_commands"),
    "receive": ("Receive messages, print them and settle them.", "receive_commands"),
    "run": ("Run handlers on their queues.", "host_commands"),
    "serve": ("Serve the console, and clients over HTTP and AMQP 1.0.", "serve_command"),
    "emulator": ("Serve a namespace of Service Bus, as its emulator does.", "emulator_command"),
    "try": ("Try a handler on one message, in a sandbox.", "host_commands"),
    "events": ("Print what happened, oldest first.", "log_commands"),
    "audit": ("Print what operators did, newest first.", "log_commands"),
    "mark": ("Mark this moment, such as a release.", "log_commands"),
    "status": ("Show queues, the worst first, and what to type next.", "status_command"),
    "metrics": ("Print metrics in Prometheus's format.", "status_command"),
    "doctor": ("Check the store, its machine and its queues.", "doctor_command"),
    "queue": ("Create, inspect, change, delete and resume queues.", "queue_commands"),
    "topic": ("Create, inspect, change and delete topics.", "topic_commands"),
    "subscription": ("Create, inspect, change and delete subscriptions.", "topic_commands"),
    "rule": ("List, add, delete and test a subscription's rules.", "topic_commands"),
    "triage": ("Show the causes of dead letters; merge, split, note.", "triage_commands"),
    "dead-letter": ("Inspect, resubmit, move and purge dead letters.", "dead_letter_commands"),
    "repair": ("Send sets of dead letters back, watched, with undo.", "repair_commands"),
    "breaker": ("Show, pause and resume a queue's breaker.", "worker_commands"),
    "session": ("List, show and resume sessions.", "worker_commands"),
    "worker": ("List the processes that take messages.", "worker_commands"),
    "dialog": ("Define dialogs, inspect and repair conversations.", "dialog_commands"),
    "claim": ("List and revoke the claims of Spark pipelines.", "worker_commands"),
    "spark": ("Run pipelines on Spark.", "spark_commands"),
    "command": ("Run changes that are given as JSON.", "json_commands"),
    "access": ("Grant roles; create tokens for people and programs.", "access_commands"),
    "redaction": ("Hide fields of messages from people.", "access_commands"),
    "store": ("Check, migrate and copy a store.", "doctor_command"),
    "completion": ("Print a script that completes commands in a shell.", "completion"),
}

#: Other names, which work and are not shown.
ALIASES = {
    "queues": "queue",
    "topics": "topic",
    "subscriptions": "subscription",
    "rules": "rule",
    "dead-letters": "dead-letter",
    "dlq": "dead-letter",
    "repairs": "repair",
    "breakers": "breaker",
    "sessions": "session",
    "workers": "worker",
    "dialogs": "dialog",
    "claims": "claim",
}


def load(name: str) -> Any:
    """Return a command, as typer makes it of its module's `commands`."""
    module = import_module(f"lazaretto.cli.{COMMANDS[name][1]}")
    return typer.main.get_group(module.commands.program).commands[name]


class CommandGroup(TyperGroup):
    """A group of commands, whose help names each with one sentence."""

    def texts(self, ctx: Any) -> list[tuple[str, str]]:
        """Return the commands that are shown, each with what it is for."""
        shown = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        return [
            (name, command.short_help or command.help or "")
            for name, command in shown.items()
            if command is not None and not command.hidden
        ]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was given. Raises CommandError if no command is."""
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            names = ", ".join(name for name, _ in self.texts(ctx))
            raise usage(f"expected a command of `{ctx.command_path}`, got none; there are: {names}")
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is named first. Raises CommandError, with what it may be."""
        if args and self.get_command(ctx, args[0]) is None:
            names = [name for name, _ in self.texts(ctx)]
            if not difflib.get_close_matches(args[0], names):
                path = ctx.command_path
                advice = (
                    self._within_groups(ctx, args[0])
                    if ctx.parent is None
                    else f"there are: {', '.join(names)}"
                )
                raise usage(f"`{path}` has no command {safe(args[0])!r}; {advice}")
        return super().resolve_command(ctx, args)

    def _within_groups(self, ctx: Any, name: str) -> str:
        """Return which groups have a command of a name, or where all commands are told."""
        groups = [
            group
            for group, _ in self.texts(ctx)
            if name in getattr(self.get_command(ctx, group), "commands", ())
        ]
        if not groups:
            return f"`{ctx.command_path} --help` names all"
        return "there are: " + ", ".join(f"`{ctx.command_path} {group} {name}`" for group in groups)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands that begin so, each with its whole text, and the options."""
        texts = self.texts(ctx)
        item: Any = core.CompletionItem  # type: ignore[attr-defined]
        items = [item(name, help=text) for name, text in texts if name.startswith(incomplete)]
        return items + super(TyperGroup, self).shell_complete(ctx, incomplete)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write what each of them is for."""
        with formatter.section("Commands"):
            formatter.write_dl(self.texts(ctx))


class Commands(CommandGroup):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # By these names typer suggests one for a name that is unknown.
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return their names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return one of them, by its name or another one, or None."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            self.commands[cmd_name] = load(cmd_name)
        return self.commands.get(cmd_name)

    def texts(self, ctx: Any) -> list[tuple[str, str]]:
        """Return all commands, each with what it is for; none of them is loaded."""
        return [(name, text) for name, (text, _) in COMMANDS.items()]
