"""A command is declared once, in the engine: the modules of all of them are written from their classes.

One names them; the other has their methods in Python. Run as a program, this module writes both anew.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
import textwrap
import types
import typing
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from lazaretto.engine.command import Command

ROOM = Path(__file__).parents[2] / "src" / "lazaretto" / "commands"
FILE, METHODS = ROOM / "__init__.py", ROOM / "methods.py"

HEAD = '''"""Changes by operators, as values. Written by tests/gates/test_commands_file.py."""

from typing import Final

'''
METHODS_HEAD = '''"""Changes by operators, as methods. Written by tests/gates/test_commands_file.py."""

# ruff: noqa: A002
from __future__ import annotations

from lazaretto.commands.desk import Maker
'''
#: What the package has beside the commands.
_BESIDE = {
    "lazaretto.commands.desk": ["CommandDesk"],
    "lazaretto.commands.opposites": ["opposite_of"],
    "lazaretto.engine.command": ["Command"],
}
#: By the holder of methods: their class, what it is, and the class that has those written by hand.
HOLDERS = {
    "broker": ("BrokerMethods", "Methods of a broker", "lazaretto.broker.broker.Broker"),
    "repair": ("RepairMethods", "Methods of a repair", "lazaretto.broker.repairs.Repair"),
    "dialogs": ("DialogMethods", "Methods of `broker.dialogs`", "lazaretto.dialogs.Dialogs"),
}


def kinds() -> list[type[Command]]:
    """Return the classes of all commands, by name."""
    packages = [importlib.import_module(name) for name in ("lazaretto.engine", "lazaretto.commands")]
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    by_name = importlib.import_module("lazaretto.engine.command").Command.by_name
    return [kind for _, kind in sorted(by_name.items()) if kind.__module__.startswith("lazaretto.")]


def source() -> str:
    """Return the text of the module that names all commands."""
    names = defaultdict(list, {module: list(some) for module, some in _BESIDE.items()})
    for kind in kinds():
        names[kind.__module__].append(kind.__name__)
    lines = [f"from {module} import {', '.join(sorted(some))}\n" for module, some in sorted(names.items())]
    exported = sorted(["COMMANDS", *(name for some in names.values() for name in some)])
    text = (
        f"{HEAD}{''.join(lines)}\n"
        '#: All commands by their names, such as "create_queue".\n'
        "COMMANDS: Final = dict(sorted(Command.by_name.items()))\n\n"
        f"__all__ = {exported!r}\n"
    )
    return _formatted(text, FILE)


class _Types:
    """Writes types as annotations, and gathers what these import."""

    def __init__(self) -> None:
        self.imports: set[str] = set()

    def text(self, kind: Any) -> str:
        """Return a type as it is written."""
        origin, parts = typing.get_origin(kind), typing.get_args(kind)
        if kind is None or kind is types.NoneType:
            return "None"
        if origin in (typing.Union, types.UnionType):
            return " | ".join(map(self.text, parts))
        if origin is None:
            if kind.__module__ != "builtins":
                self.imports.add(f"from {kind.__module__} import {kind.__name__}")
            return str(kind.__name__)
        return (
            f"{self.text(origin)}[{', '.join('...' if part is ... else self.text(part) for part in parts)}]"
        )

    def parameter(self, kind: Any) -> tuple[str, str]:
        """Return how a method takes a field, and what makes the field of that: a function, or nothing."""
        origin, parts = typing.get_origin(kind), typing.get_args(kind)
        if origin is tuple and parts[-1] is ...:
            self.imports.add("from collections.abc import Iterable")
            return f"Iterable[{self.text(parts[0])}]", "tuple_of"
        if origin is dict and typing.get_origin(parts[1]) is tuple:
            self.imports.add("from collections.abc import Iterable, Mapping")
            inner, _ = self.parameter(parts[1])
            return f"Mapping[{self.text(parts[0])}, {inner}]", "tuples_of"
        return self.text(kind), ""

    def answer(self, kind: type[Command]) -> str:
        """Return what a method answers; what is the store's own is no answer for programs."""
        answer = answer_of(kind)
        if getattr(answer, "__module__", "").startswith("lazaretto.store."):
            return "None"
        return self.text(answer)


def answer_of(kind: type[Command]) -> Any:
    """Return the type of a command's answer."""
    from lazaretto.engine.command import CommandOf

    given: dict[Any, Any] = {}
    for cls in kind.__mro__:
        for base in vars(cls).get("__orig_bases__", ()):
            origin, parts = typing.get_origin(base), typing.get_args(base)
            resolved = [given.get(part, part) for part in parts]
            if origin is CommandOf:
                return resolved[0]
            given |= dict(zip(getattr(origin, "__parameters__", ()), resolved, strict=False))
    raise TypeError(f"{kind.__name__} has no type of answers")


def hand_written(holder: str) -> set[str]:
    """Return the methods of a holder that are not derived."""
    derived, _, path = HOLDERS[holder]
    module, _, name = path.rpartition(".")
    held = getattr(importlib.import_module(module), name)
    return {part for cls in held.__mro__ if cls.__name__ != derived for part in vars(cls)}


def derived(holder: str) -> list[type[Command]]:
    """Return the commands that give a holder a method: those for which it has none of its own."""
    own = hand_written(holder)
    return [kind for kind in kinds() if kind.holder == holder and kind.method not in own]


def _method(kind: type[Command], written: _Types) -> str:
    """Return the method that makes a change."""
    written.imports.add(f"from {kind.__module__} import {kind.__name__}")
    hints = typing.get_type_hints(kind)
    taken, made = ["self"], []
    for field in msgspec.structs.fields(kind):
        if field.name == "name" and kind.holder == "repair":
            made.append("name=self._name")
            continue
        shown, maker = written.parameter(hints[field.name])
        if maker:
            written.imports.add(f"from lazaretto.engine.command import {maker}")
        default = ""
        if not field.required:
            assert field.default is not msgspec.NODEFAULT, f"write {kind.__name__} by hand: {field.name}"
            default = f" = {'UNSET' if field.default is msgspec.UNSET else repr(field.default)}"
            if field.default is msgspec.UNSET:
                written.imports |= {"from msgspec import UNSET", "from msgspec import UnsetType"}
        taken.append(f"{field.name}: {shown}{default}")
        made.append(f"{field.name}={f'{maker}({field.name!r}, {field.name})' if maker else field.name}")
    text = (inspect.getdoc(kind) or "").replace("null", "None")
    paragraphs = (textwrap.fill(part, 102) for part in text.split("\n\n"))
    doc = textwrap.indent("\n\n".join(paragraphs), " " * 8).strip()
    multiline = "\n" in doc
    former = ""
    if kind.former:
        written.imports.add("from lazaretto.engine.command import formerly")
        former = f"    @formerly({', '.join(f'{old}={new!r}' for old, new in kind.former.items())})\n"
    answer = written.answer(kind)
    call = f"self._make({kind.__name__}({', '.join(made)}), actor)"
    return (
        f"{former}    def {kind.method}({', '.join(taken)}, *, actor: str | None = None) -> {answer}:\n"
        f'        """{doc}{chr(10) + "        " if multiline else ""}"""\n'
        f"        {call if answer == 'None' else f'return {call}'}\n"
    )


def methods() -> str:
    """Return the text of the module of methods."""
    written, classes = _Types(), []
    for holder, (name, what, _) in HOLDERS.items():
        body = "\n".join(_method(kind, written) for kind in derived(holder))
        extra = "    _name: str\n\n" if holder == "repair" else ""
        doc = f'    """{what} that follow from what the changes declare."""\n'
        classes.append(f"class {name}(Maker):\n{doc}\n{extra}{body}")
    imports = "\n".join(sorted(written.imports))
    return _formatted(f"{METHODS_HEAD}{imports}\n\n\n" + "\n\n".join(classes), METHODS)


def _formatted(text: str, file: Path) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    for step in (["check", "--fix-only", "--select", "I,RUF022"], ["format"]):
        command = [str(ruff), *step, "--quiet", "--stdin-filename", str(file), "-"]
        text = subprocess.run(command, input=text, text=True, capture_output=True, check=True).stdout
    return text


def test_the_module_of_all_commands_is_written_from_their_classes() -> None:
    assert FILE.read_text("utf-8") == source(), "run python -m tests.gates.test_commands_file"


def test_the_module_of_methods_is_written_from_their_classes() -> None:
    assert METHODS.read_text("utf-8") == methods(), "run python -m tests.gates.test_commands_file"


if __name__ == "__main__":
    # What stands there may name classes that have moved or are gone.
    FILE.write_text(HEAD, "utf-8")
    empty = "".join(f"\n\nclass {name}(Maker):\n    pass\n" for name, *_ in HOLDERS.values())
    METHODS.write_text(METHODS_HEAD + empty, "utf-8")
    text = source()
    FILE.write_text(text, "utf-8")
    # A process of its own imports all of them.
    write = "from tests.gates import test_commands_file as t; t.METHODS.write_text(t.methods(), 'utf-8')"
    subprocess.run([sys.executable, "-c", write], check=True)
