"""Options stand once, in their classes: the tables on the pages are written from them, and what can change.

Run as a program, this module writes the tables and the module of changes anew.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import re
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

from lazaretto.host import HandlerOptions
from lazaretto.host.handlers import GivenIsolation, Isolation
from lazaretto.isolation import SandboxOptions
from lazaretto.isolation.verdict import Mode
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.entities import GivenPoisonSession, PoisonSession, QueueOptions, TopicOptions
from lazaretto.model.options import Kind, Option, format_size, options_of
from lazaretto.model.policy import (
    Backoff,
    Disposition,
    GivenDisposition,
    GivenGrowth,
    Growth,
    PoisonPolicy,
)
from lazaretto.spark.source_options import SparkOptions

DOCS = Path(__file__).parents[2] / "docs"
MODEL = Path(__file__).parents[2] / "src" / "lazaretto" / "model"
CHANGES = MODEL / "option_changes.py"
CLASSES = {
    cls.__name__: cls
    for cls in (
        QueueOptions,
        PoisonPolicy,
        Backoff,
        BreakerPolicy,
        HandlerOptions,
        SandboxOptions,
        SparkOptions,
    )
}
#: A comment that names a class, and the table below it.
_TABLE = re.compile(r"(?<=<!-- options of )(\w+)( -->\n)((?:\|.*\n)*)")


def shown_default(option: Option) -> str:
    """Return a default as one writes it in Python, and a size in its unit."""
    default = option.default
    if default is dataclasses.MISSING:
        return ""
    if isinstance(default, enum.Enum):
        return f'`"{default.value}"`'
    if isinstance(default, str):
        return f'`"{default}"`' if default else ""
    if isinstance(default, float):
        return f"`{default:g}`"
    if dataclasses.is_dataclass(default):
        return f"`{type(default).__name__}()`"
    size = f" ({format_size(default)})" if option.check.kind is Kind.SIZE and default else ""
    return f"`{default}`{size}"


def table_of(cls: type[Any], page: str) -> str:
    """Return the table of a class's options as a page has it."""
    rows = ["| option | default | allowed | meaning |", "|---|---|---|---|"]
    for name, option in options_of(cls).items():
        text = option.text + (" It cannot change later." if option.fixed else "")
        if option.page is not None:
            text += f" [More]({option.page.removeprefix(page)})."
        rows.append(f"| `{name}` | {shown_default(option)} | {option.check.accepts} | {text} |")
    return "\n".join(rows) + "\n"


def with_tables(page: Path) -> str:
    """Return a page with its tables of options written anew."""
    return _TABLE.sub(
        lambda found: f"{found[1]}{found[2]}{table_of(CLASSES[found[1]], page.name)}", page.read_text("utf-8")
    )


#: How a change is given that is kept as another type.
_GIVEN = {"Duration": "GivenDuration", "OptionalDuration": "GivenDuration | None"}


def _given(annotation: ast.expr) -> str:
    """Return the type in which somebody gives an option."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Converted":
        assert isinstance(annotation.slice, ast.Tuple)
        return ast.unparse(annotation.slice.elts[1])
    text = ast.unparse(annotation)
    return _GIVEN.get(text, text)


def changes() -> str:
    """Return the text of the module of changes."""
    tree = ast.parse((MODEL / "entities.py").read_text("utf-8"))
    (declared,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "QueueOptions"]
    types = {
        node.target.id: _given(node.annotation)
        for node in declared.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    later = [name for name, option in options_of(QueueOptions).items() if not option.fixed]
    origins = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    } | {"GivenDuration": "lazaretto.model.checks"}
    used = {word for name in later for word in re.findall(r"[A-Z]\w+", types[name])} - {"None"}
    modules: dict[str, list[str]] = {"typing": ["TypedDict"]}
    for name in sorted(used):
        modules.setdefault(origins.get(name) or "lazaretto.model.entities", []).append(name)
    lines = [f"from {module} import {', '.join(names)}" for module, names in sorted(modules.items())]
    standard = [line for line in lines if "lazaretto" not in line]
    own = [line for line in lines if "lazaretto" in line]
    text = [
        '"""Options that can change later. Written by tests/gates/test_option_tables.py."""',
        "", "from __future__ import annotations", "", *standard, "", *own,
    ]  # fmt: skip
    of_topics = [name for name in later if name in options_of(TopicOptions)]
    for name, base, what, fields in (
        ("TopicChanges", "TypedDict", "topic", of_topics),
        ("QueueChanges", "TopicChanges", "queue", [name for name in later if name not in of_topics]),
    ):
        doc = f'    """Options of a {what} that can change, as in {what.title()}Options."""'
        text += ["", "", f"class {name}({base}, total=False):", doc, ""]
        text += [f"    {field}: {types[field]}" for field in fields]
    return "\n".join(text) + "\n"


def test_changes_are_those_of_the_options() -> None:
    assert CHANGES.read_text("utf-8") == changes(), "run `python -m tests.gates.test_option_tables`"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_tables_are_those_of_the_classes(page: Path) -> None:
    assert page.read_text("utf-8") == with_tables(page), "run `python -m tests.gates.test_option_tables`"


def test_every_class_has_its_table() -> None:
    named = {found[1] for page in DOCS.glob("*.md") for found in _TABLE.finditer(page.read_text("utf-8"))}
    assert named == CLASSES.keys()


def test_options_of_topics_are_described_with_those_of_queues() -> None:
    of_queues = options_of(QueueOptions)
    for name, option in options_of(TopicOptions).items():
        assert (option.text, option.default) == (of_queues[name].text, of_queues[name].default)
    names = ", ".join(f"`{name}`" for name in options_of(TopicOptions))
    assert f"`TopicOptions` has {names}." in " ".join((DOCS / "reference.md").read_text("utf-8").split())


@pytest.mark.parametrize("cls", [*CLASSES.values(), TopicOptions], ids=[*CLASSES, "TopicOptions"])
def test_every_option_is_declared_whole(cls: type[Any]) -> None:
    options = options_of(cls)
    assert list(options) == [field.name for field in dataclasses.fields(cls)]
    for name, option in options.items():
        assert option.text.endswith("."), name
        if option.default is not dataclasses.MISSING:
            assert option.check.convert(name, option.default) == option.default, name


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (GivenDisposition, Disposition),
        (GivenGrowth, Growth),
        (GivenPoisonSession, PoisonSession),
        (GivenIsolation, Isolation),
    ],
)
def test_names_for_type_checkers_are_those_of_the_values(given: Any, kept: type[enum.Enum]) -> None:
    itself, names = typing.get_args(given)
    assert itself is kept
    assert list(typing.get_args(names)) == [member.value for member in kept]


def test_modes_of_a_sandbox_are_those_it_takes() -> None:
    assert typing.get_args(Mode) == tuple(options_of(SandboxOptions)["mode"].check.choices)


if __name__ == "__main__":
    for path in sorted(DOCS.glob("*.md")):
        path.write_text(with_tables(path), "utf-8")
    CHANGES.write_text(changes(), "utf-8")
    sys.stdout.write(f"wrote the tables of options in {DOCS}, and {CHANGES}\n")
