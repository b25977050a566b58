"""The commands by name, loaded when they are called: `--help` and each command start without the others."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

#: Each command: what the help of all says of it, and the module that has it.
COMMANDS = {
    "send": ("Send a message, or one per line of JSON.", "send_command"),
    "peek": ("Look at messages without taking them.", "receive_commands"),
    "receive": ("Receive messages, print and settle them.", "receive_commands"),
    "run": ("Run handlers on their queues.", "host_commands"),
    "try": ("Try a handler on one message.", "host_commands"),
    "events": ("Print what happened, or follow it.", "log_commands"),
    "audit": ("Print what operators did.", "log_commands"),
    "doctor": ("Check the store and its queues.", "doctor_command"),
    "queue": ("Create, list, change, switch and resume queues.", "queue_commands"),
    "topic": ("Create, list, change and delete topics.", "topic_commands"),
    "subscription": ("Create, list, change and delete subscriptions.", "topic_commands"),
    "rule": ("List, add, delete and test a subscription's rules.", "rule_commands"),
    "dead-letter": ("Look at dead letters, send them back, delete them.", "dead_letter_commands"),
    "breaker": ("Show a queue's breaker, pause and resume it.", "breaker_commands"),
    "session": ("List, show and resume sessions.", "session_commands"),
    "dialog": ("Dialogs between services: define, look into, decide.", "dialog_commands"),
    "claim": ("List the claims that pipelines hold, give one back.", "claim_commands"),
    "spark": ("Run pipelines on Spark.", "spark_commands"),
    "store": ("Check a store, bring it up to date, copy it.", "store_commands"),
}

#: Other names, which work and are not shown.
ALIASES = {
    "queues": "queue",
    "topics": "topic",
    "subscriptions": "subscription",
    "rules": "rule",
    "dead-letters": "dead-letter",
    "dlq": "dead-letter",
    "breakers": "breaker",
    "sessions": "session",
    "dialogs": "dialog",
    "claims": "claim",
}


def load(name: str) -> Any:
    """Return a command, as typer makes it of its module's `add_to`."""
    part = typer.Typer(rich_markup_mode=None)
    import_module(f"lazaretto.cli.{COMMANDS[name][1]}").add_to(part)
    return typer.main.get_group(part).commands[name]


class Commands(TyperGroup):
    """The group of all commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
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

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write what each of them is for."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (text, _) in COMMANDS.items()])
