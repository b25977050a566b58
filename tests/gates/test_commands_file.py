"""A command is declared once, in the engine: the module that names all of them is written from their classes.

Run as a program, this module writes it anew.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lazaretto.engine.command import Command

FILE = Path(__file__).parents[2] / "src" / "lazaretto" / "commands" / "__init__.py"

HEAD = '''"""Changes by operators, as values. Written by tests/gates/test_commands_file.py."""

from typing import Final

'''
#: What the package has beside the commands.
_BESIDE = {
    "lazaretto.commands.desk": ["CommandDesk"],
    "lazaretto.commands.opposites": ["opposite_of"],
    "lazaretto.engine.command": ["Command"],
}


def kinds() -> list[type[Command]]:
    """Return the classes of all commands, by name."""
    packages = [importlib.import_module(name) for name in ("lazaretto.engine", "lazaretto.commands")]
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    by_action = importlib.import_module("lazaretto.engine.command").BY_ACTION
    found = (kind for some in by_action.values() for kind in some if kind.__module__.startswith("lazaretto."))
    return sorted(found, key=lambda kind: kind.command_name)


def source() -> str:
    """Return the text of the module."""
    names = defaultdict(list, {module: list(some) for module, some in _BESIDE.items()})
    for kind in kinds():
        names[kind.__module__].append(kind.__name__)
    lines = [f"from {module} import {', '.join(sorted(some))}\n" for module, some in sorted(names.items())]
    table = ", ".join(kind.__name__ for kind in kinds())
    exported = sorted(["COMMANDS", *(name for some in names.values() for name in some)])
    text = (
        f"{HEAD}{''.join(lines)}\n"
        '#: All commands by their names, such as "create_queue".\n'
        "COMMANDS: Final[dict[str, type[Command]]] = {\n"
        f"    kind.command_name: kind for kind in ({table})\n}}\n\n__all__ = {exported!r}\n"
    )
    return _formatted(text)


def _formatted(text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    for step in (["check", "--fix-only", "--select", "I,RUF022"], ["format"]):
        command = [str(ruff), *step, "--quiet", "--stdin-filename", str(FILE), "-"]
        text = subprocess.run(command, input=text, text=True, capture_output=True, check=True).stdout
    return text


def test_the_module_of_all_commands_is_written_from_their_classes() -> None:
    assert FILE.read_text("utf-8") == source(), "run python -m tests.gates.test_commands_file"


if __name__ == "__main__":
    # What stands there may name classes that have moved or are gone.
    FILE.write_text(HEAD, "utf-8")
    FILE.write_text(source(), "utf-8")
