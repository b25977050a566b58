"""`lazaretto command`: changes that are given as JSON."""

from __future__ import annotations

import codecs
import operator
import sys
from typing import Annotated

import msgspec

from lazaretto.cli import output
from lazaretto.cli.call import ChangeOptions, ListingOptions
from lazaretto.cli.command import Group, argument
from lazaretto.cli.exits import usage
from lazaretto.cli.output import Columns

commands = Group()
group = commands.group("command")

_COLUMNS: Columns = {
    "command": operator.itemgetter("command"),
    "fields": lambda row: " ".join(row["fields"]),
    "optional": lambda row: " ".join(row["optional"]),
    "what": operator.itemgetter("what"),
}


@group.command("list")
def list_kinds(call: ListingOptions) -> None:
    """List the commands that there are, with their fields."""
    from lazaretto.commands import COMMANDS

    rows = [
        {
            "command": name,
            "permission": kind.permission.value,
            "fields": [f.encode_name for f in msgspec.structs.fields(kind) if f.required],
            "optional": [f.encode_name for f in msgspec.structs.fields(kind) if not f.required],
            "what": (kind.__doc__ or "").split("\n")[0],
        }
        for name, kind in COMMANDS.items()
    ]
    call.print_all(rows, _COLUMNS, "no commands", spare=("optional",))


@group.command("run")
def run_change(
    call: ChangeOptions,
    name: Annotated[str, argument("Such as purge.")],
    fields: Annotated[str, argument("Its fields; - is standard input.", "JSON")] = "{}",
) -> None:
    """Run a change that is given as JSON, once under a key.

    With a key, the same command prints its first answer again for 24 hours, and changes nothing more.
    """
    from lazaretto.commands import COMMANDS
    from lazaretto.engine.command import read_command

    if name not in COMMANDS:
        raise usage(f"there is no command {output.safe(name)!r}; `lazaretto command list` shows all")
    parts = (
        sys.stdin.buffer.read().removeprefix(codecs.BOM_UTF8)
        if fields == "-"
        else fields.encode("utf-8", "surrogateescape")
    )
    try:
        command = read_command(COMMANDS[name], parts)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise usage(f"{name}: {error}") from None
    except RecursionError:
        raise usage(f"{name}: the JSON is nested too deep") from None
    with call.broker() as broker:
        answer = call.run(broker, command)
    call.print(answer, lambda: output.json_object(answer))
