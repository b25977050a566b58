"""Methods, records and errors are described once, in their docstrings: the reference follows from them.

Run as a program, this module writes the tables anew.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import lazaretto
from lazaretto import errors
from lazaretto.broker.repairs import Repair
from lazaretto.dialogs import Dialogs
from lazaretto.engine.command import hints_of
from lazaretto.errors import LazarettoError
from lazaretto.model.messages import SentColumns

from .test_option_tables import CLASSES as OPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
CLASSES = {
    cls.__name__: cls
    for cls in (
        lazaretto.Broker,
        Repair,
        lazaretto.Sender,
        lazaretto.Receiver,
        lazaretto.BrokerTransaction,
        Dialogs,
    )
}
#: Errors of Python's that ours are, too.
BUILT_IN = (LookupError, ValueError)
#: Parameters of errors that are in their text.
TEXTS = ("message", "text", "error")
#: Records that the page describes by hand: some of their fields are not for users.
MESSAGES = (lazaretto.Message, lazaretto.ReceivedMessage, lazaretto.PeekedMessage)
#: Pages with more about a method, by its name, and by that of its class if others have one of that name.
MORE = {
    **dict.fromkeys(
        ("complete", "abandon", "invalid", "defer", "dead_letter", "release"),
        "messages-and-settling.md#settling",
    ),
    "Broker.dead_letter": "triage.md",
    "Broker.sender": "forwarding.md#send-via-another-queue",
    "Broker.transaction": "transactions.md",
    "Dialogs.transaction": "dialogs.md#conversations",
    "ExecutorNotReady": "spark-cluster.md#on-a-cluster",
    "claims": "spark-claims.md",
    "create_topic": "topics.md",
    "four_eyes": "access.md#four-eyes",
    "people": "access.md",
    "plan_repair": "repairs.md",
    "receive_by_number": "messages-and-settling.md#receive-one-message-by-its-number",
    "redaction": "redaction.md",
    "run": "commands.md",
    "set_status": "forwarding.md#switch-a-queue-on-and-off",
    "triage": "triage.md",
}
_TABLE = re.compile(r"(?<=<!-- methods of )(\w+)( -->\n)((?:\|.*\n)*)")
_RECORDS = re.compile(r"(<!-- records -->\n)((?:\|.*\n)*)")
#: The rows of what has columns of its own, behind the last row that stands there by hand.
_SENT = re.compile(r"(\n\| `amqp` \|.*\n)((?:\|.*\n)*)")
_ERRORS = re.compile(r"(<!-- errors -->\n)((?:\|.*\n)*)")


def members(cls: type[Any]) -> dict[str, Any]:
    """Return the public methods and properties of a class, by name."""
    names = sorted(name for name in dir(cls) if not name.startswith("_"))
    return {name: inspect.getattr_static(cls, name) for name in names}


def shown_call(name: str, member: Any) -> tuple[str, str]:
    """Return how a method is called, and the type of its answer. Whoever acts is left out."""
    if isinstance(member, property):
        answer = member.fget.__annotations__["return"]
        return name, str(answer)
    signature = inspect.signature(member)
    shown = []
    star = False
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.name == "actor" and "`actor`" not in (inspect.getdoc(member) or ""):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            shown.append("*")
        if parameter.kind is parameter.VAR_POSITIONAL:
            star = True
            shown.append(f"*{parameter.name}")
        elif parameter.kind is parameter.VAR_KEYWORD:
            shown.append(f"**{parameter.name}")
        elif parameter.default is parameter.empty:
            shown.append(parameter.name)
        else:
            default = "…" if parameter.default is ... else repr(parameter.default)
            shown.append(f"{parameter.name}={default}")
    if shown[-1:] == ["*"]:
        shown.pop()
    return f"{name}({', '.join(shown)})", str(signature.return_annotation)


def row(cls: type[Any], name: str, member: Any) -> str:
    """Return the row of a method."""
    call, answer = shown_call(name, member)
    summary, *_ = (inspect.getdoc(member) or "").splitlines() or [""]
    text = summary.partition(". ")[0].rstrip(".").removeprefix("Return ") + "." if summary else ""
    assert text, f"{cls.__name__}.{name} needs a docstring"
    text = text[0].upper() + text[1:]
    more = MORE.get(f"{cls.__name__}.{name}") or MORE.get(name)
    link = f" [More]({more})." if more else ""
    answered = "" if answer == "None" else f"`{answer}`".replace("|", "\\|")
    return f"| `{call}` | {answered} | {text.replace('|', chr(92) + '|')}{link} |"


def table_of(cls: type[Any]) -> str:
    """Return the table of a class. Methods that a class before it has alike share one row."""
    rows = {name: row(cls, name, member) for name, member in members(cls).items()}
    classes = list(CLASSES.values())
    for other in classes[: classes.index(cls)]:
        theirs = members(other)
        shared = [name for name in rows if name in theirs and row(other, name, theirs[name]) == rows[name]]
        if shared:
            names = ", ".join(f"`{name}`" for name in shared)
            rows = {name: text for name, text in rows.items() if name not in shared}
            rows[names] = f"| {names} |  | As of a `{other.__name__}`. |"
    return "\n".join([f"| `{cls.__name__}` | answer | |", "|---|---|---|", *rows.values()]) + "\n"


def parts_of(cls: type[Any]) -> list[str]:
    """Return the names of a record's fields and properties, or the values of an enumeration."""
    if issubclass(cls, enum.Enum):
        return [member.value for member in cls if member.value]
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls) if not field.name.startswith("_")]
    else:
        names = [*getattr(cls, "__struct_fields__", ()), *getattr(cls, "_fields", ())]
    return names + [name for name, member in members(cls).items() if isinstance(member, property)]


def table_of_records() -> str:
    """Return the table of what methods take and answer, but for options and what has a table of its own."""
    values = {name: getattr(lazaretto, name) for name in sorted(lazaretto.__all__)}
    records = {
        name: parts_of(value)
        for name, value in values.items()
        if inspect.isclass(value)
        and not issubclass(value, Exception)
        and value not in (*MESSAGES, *OPTIONS.values(), *CLASSES.values())
    }
    rows = [f"| `{name}` | `{', '.join(parts)}` |" for name, parts in records.items() if parts]
    return "\n".join(["| record | fields, or values |", "|---|---|", *rows]) + "\n"


def rows_of_columns() -> str:
    """Return the rows of what a sender sets that has a column of its own."""
    return "".join(f"| `{name}` | {text} |\n" for name, text in hints_of(SentColumns).items())


def row_of_error(error: type[LazarettoError]) -> str:
    """Return the row of an error: its code, its default message, and what else a program can ask of it."""
    summary, *_ = (inspect.getdoc(error) or "").splitlines()
    parts = [summary.rstrip(".")]
    if "__init__" in vars(error):
        names = [name for name in inspect.signature(error).parameters if name not in TEXTS]
        parts += [f"has {', '.join(f'`{name}`' for name in names)}"] if names else []
    parts += [f"also a `{base.__name__}`" for base in error.__bases__ if base in BUILT_IN]
    parts += ["retriable"] if error.retriable else []
    more = f" [More]({MORE[error.__name__]})." if error.__name__ in MORE else ""
    return f"| `{error.__name__}` | `{error.code}` | {'; '.join(parts)}.{more} |"


def table_of_errors() -> str:
    """Return the table of all errors, as the tree has them."""
    tree = [v for v in vars(errors).values() if inspect.isclass(v) and issubclass(v, LazarettoError)]
    return "\n".join(["| error | code | when |", "|---|---|---|", *map(row_of_error, tree)]) + "\n"


def with_tables() -> str:
    """Return the page with its tables written anew."""
    page = _TABLE.sub(
        lambda match: f"{match[1]}{match[2]}{table_of(CLASSES[match[1]])}", PAGE.read_text("utf-8")
    )
    page = _RECORDS.sub(lambda match: f"{match[1]}{table_of_records()}", page)
    page = _SENT.sub(lambda match: f"{match[1]}{rows_of_columns()}", page)
    return _ERRORS.sub(lambda match: f"{match[1]}{table_of_errors()}", page)


def test_tables_are_those_of_the_docstrings() -> None:
    assert PAGE.read_text("utf-8") == with_tables(), "run `python -m tests.gates.test_reference_tables`"


def test_every_class_has_its_table() -> None:
    assert {match[1] for match in _TABLE.finditer(PAGE.read_text("utf-8"))} == CLASSES.keys()


if __name__ == "__main__":
    PAGE.write_text(with_tables(), "utf-8")
    sys.stdout.write(f"wrote the tables of methods in {PAGE}\n")
