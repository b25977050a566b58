"""The faces of the package use what others offer: none reads a private attribute of another room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "lazaretto"


@pytest.mark.parametrize("room", ["cli", "host", "spark", "testing"])
def test_no_face_reads_the_store_of_a_broker_by_itself(room: str) -> None:
    """They ask `store_of`, so that there is one place to look at when that changes."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr == "_store"
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]
    assert found == []
