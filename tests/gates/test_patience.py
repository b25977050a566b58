"""No test bets on a quick machine: limits that only what hangs reaches are long."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: The least that a limit may be which only what hangs reaches, in seconds.
LEAST = 60
#: What is waited for in full on purpose, or told that so much time has passed, is shorter than this or named.
BRIEF = 1

CLOCKS = {"monotonic", "perf_counter"}
#: What waits, with a limit as its first argument or named `timeout`.
BY_PLACE = {"communicate", "exception", "join", "result", "timeout", "wait"}
BY_NAME = BY_PLACE | {"create_connection", "get", "run", "wait_for"}


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) in CLOCKS


def _is_short(node: ast.AST | None) -> bool:
    """Whether this is a number of seconds that a slow machine takes for nothing."""
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, int | float) and BRIEF < value < LEAST


def _is_elapsed(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _is_clock(node.left)


def find_haste(source: str) -> Iterator[int]:
    """Return the lines that bet on a quick machine."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[right]) if _is_elapsed(left):
                if not _is_long(right) and not any(isinstance(n, ast.Name) for n in ast.walk(right)):
                    yield node.lineno
            case ast.Assign(value=ast.BinOp(left=left, op=ast.Add(), right=right)) if _is_clock(left):
                if _is_short(right):
                    yield node.lineno
            case ast.Call(func=func, args=args, keywords=named) if _name(func) in BY_NAME:
                given = [one.value for one in named if one.arg == "timeout"]
                first = args if _name(func) in BY_PLACE and len(args) == 1 else []
                if any(map(_is_short, [*given, *first])):
                    yield node.lineno


def _is_long(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value >= LEAST


@pytest.mark.parametrize(
    "source",
    [
        "assert time.monotonic() - begun < 10", "assert perf_counter() - begun <= 4 * 1.0",
        "end = time.monotonic() + 30", "thread.join(5)", "process.communicate(timeout=20)",
        "asyncio.timeout(20)", "told.get(timeout=10.0)", "future.result(30)",
    ],
)  # fmt: skip
def test_haste_is_found(source: str) -> None:
    assert list(find_haste(source)) == [1]


@pytest.mark.parametrize(
    "source",
    [
        "assert time.monotonic() - begun >= 4", "assert time.monotonic() - begun < 60", "thread.join(120)",
        "end = time.monotonic() + PATIENCE", "done.wait(0.05)", "notifier.wait(5, seen)", '", ".join(names)',
        "api.get('/', timeout=60)", "peer.check_time(time.monotonic() + 31)",
    ],
)  # fmt: skip
def test_patience_is_no_haste(source: str) -> None:
    assert list(find_haste(source)) == []


def test_no_test_is_in_a_hurry() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in find_haste(path.read_text())
        if path != Path(__file__)
    ]
    assert not found, f"lengthen these, or let an event decide (see tests/patience.py): {', '.join(found)}"
