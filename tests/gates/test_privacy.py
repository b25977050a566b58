"""What stands on the engine uses what others offer: it reads no private attribute of another object."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "lazaretto"

#: Public in spite of their names.
NAMED_SO = {"_replace", "_asdict", "_exit"}


@pytest.mark.parametrize("room", ["cli", "dialogs", "host", "spark", "testing"])
def test_nothing_private_is_read_from_outside(room: str) -> None:
    found = [
        f"{path.name}:{node.lineno} {ast.unparse(node)}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and node.attr not in NAMED_SO
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]
    assert found == []
