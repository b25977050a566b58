"""The picture in docs/architecture.md holds: its layers.

Run as a program, this module prints what each module does.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
PAGE = ROOT / "docs" / "architecture.md"

#: Pairs of rooms of which one imports from the other.
MOST_ARROWS = 66

# What the model may import beside itself: nothing that reads, writes or waits.
PURE = {
    "__future__",
    "base64",
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "fnmatch",
    "functools",
    "hashlib",
    "heapq",
    "ipaddress",
    "itertools",
    "json",
    "lark",
    "linecache",
    "math",
    "msgspec",
    "operator",
    "re",
    "shlex",
    "struct",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "uuid",
}
IMPURE_BY_NATURE = {
    "lazaretto": {"importlib", "sys", "warnings"},  # loads a public name when it is asked for
    "lazaretto.model.clock": {"contextlib", "contextvars", "threading", "time"},  # where time comes from
    "lazaretto.model.failure": {"pathlib"},  # names of source files, none of which it opens
    "lazaretto.model.site": {"pathlib", "sysconfig"},  # which files are no application's
    "lazaretto.model.filters.rules": {"importlib"},  # loads the grammar when a filter needs it
    "lazaretto.model.filters.sql": {"importlib", "pathlib", "threading"},  # reads its own grammar, once
}


def modules() -> dict[str, Path]:
    """Every module of the package by its name."""
    names = {}
    for path in sorted(SOURCES.rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__") or parts[0]] = path
    return names


MODULES = modules()


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the modules that a file imports, also within functions."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def table_rows(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading of the page, without its head."""
    below = PAGE.read_text("utf-8").split(heading, 1)[1]
    lines = [line for line in below.split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


LAYERS = {name: set(re.findall(r"`([^`]+)`", rooms)) for name, rooms, _ in table_rows("## Layers\n")}
USES = {
    name: {name, "model", *filter(None, re.split(r",\s*", uses))}
    for name, _, uses in table_rows("## Layers\n")
}


def layer_of(module: str) -> str | None:
    """The layer whose room is the longest that a module stands in."""
    inner = module.removeprefix("lazaretto.") if module != "lazaretto" else "__init__"
    rooms = [
        (len(room), layer)
        for layer, names in LAYERS.items()
        for room in names
        if inner == room or inner.startswith(room + ".")
    ]
    return max(rooms)[1] if rooms else None


def jobs() -> dict[str, str]:
    """Return the first line of each module's docstring."""
    docstrings = {
        module: ast.get_docstring(ast.parse(path.read_text("utf-8"))) for module, path in MODULES.items()
    }
    return {module: docstring.splitlines()[0] for module, docstring in docstrings.items() if docstring}


def test_every_module_stands_in_a_layer() -> None:
    assert [module for module in MODULES if layer_of(module) is None] == []
    assert set().union(*USES.values()) == set(LAYERS), "the table names a layer that it does not have"


def test_imports_follow_the_layers() -> None:
    wrong = []
    for module, path in MODULES.items():
        layer = layer_of(module)
        for target in imports(path):
            if target.split(".")[0] == "lazaretto" and layer_of(target) not in USES[layer or ""]:
                wrong.append(f"{module} ({layer}) imports {target} ({layer_of(target)})")
    assert wrong == []


def test_the_model_triage_and_protocols_are_pure() -> None:
    wrong = []
    for module, path in MODULES.items():
        if layer_of(module) in ("model", "triage", "protocols"):
            allowed = PURE | IMPURE_BY_NATURE.get(module, set()) | {"lazaretto"}
            wrong += [
                f"{module} imports {name}" for name in imports(path) if name.split(".")[0] not in allowed
            ]
    assert wrong == []


def test_the_engine_asks_by_hooks_what_a_kind_of_queue_adds() -> None:
    own = ("lazaretto.engine.queue_hooks", "lazaretto.engine.queue_admission", "lazaretto.engine.dialogs.")
    engine = {module: path for module, path in MODULES.items() if module.startswith("lazaretto.engine.")}
    asking = [module for module, path in engine.items() if "dialogs" in _options_read(path)]
    assert [module for module in asking if not module.startswith(own)] == []


def _options_read(path: Path) -> set[str]:
    """The options that a file reads of something's `options`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] == "options"
    }


#: Folders and modules that stand in the room of another name.
_ROOMS = {
    **dict.fromkeys(("aio", "commands", "dialogs"), "broker"),
    **dict.fromkeys(("__init__", "errors"), "model"),
    "__main__": "cli",
    "api": "face",
}


def room_of(module: str) -> str:
    """The room in which a module stands."""
    parts = module.split(".")
    if parts[0] != "lazaretto":
        return "spark"
    return _ROOMS.get(name := parts[1] if len(parts) > 1 else "__init__", name)


def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports from, for types or at run time."""
    graph: dict[str, set[str]] = {room_of(module): set() for module in MODULES}
    for module, path in MODULES.items():
        inner = (target for target in imports(path) if target.split(".")[0] == "lazaretto")
        graph[room_of(module)] |= {room_of(target) for target in inner} - {room_of(module)}
    return graph


def test_rooms_are_few_and_have_no_circles() -> None:
    graph = arrows()
    assert set(graph) == {name for name, _ in table_rows("## Rooms\n")}
    assert sum(map(len, graph.values())) <= MOST_ARROWS, "two rooms more know each other: is that needed?"
    assert list(graphlib.TopologicalSorter(graph).static_order())
    assert {path.stem for path in (SOURCES / "lazaretto").glob("*.py")} == {
        "__init__", "__main__", "api", "errors",
    }  # fmt: skip


def circles() -> list[list[str]]:
    """Return the modules that import each other in a circle, for types or at run time.

    A package's own module, which says what is public, is no member.
    """
    graph = {
        module: {target for target in imports(path) if target in MODULES and target != module}
        for module, path in MODULES.items()
        if path.name != "__init__.py"
    }
    reach = {module: _reached(graph, module) for module in graph}
    groups = {
        frozenset(other for other in reach[module] if module in reach.get(other, ()))
        for module in graph
        if module in reach[module]
    }
    return [sorted(group) for group in groups]


def _reached(graph: dict[str, set[str]], module: str) -> set[str]:
    reached: set[str] = set()
    ahead = [*graph[module]]
    while ahead:
        if (target := ahead.pop()) not in reached:
            reached.add(target)
            ahead += graph.get(target, ())
    return reached


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles() == [], "name what one needs of the other in a Protocol beside it, or move it"


def test_every_module_says_its_job() -> None:
    assert [module for module in MODULES.keys() - jobs() if MODULES[module].read_text("utf-8")] == []


if __name__ == "__main__":
    sys.stdout.writelines(f"{module}: {job}\n" for module, job in jobs().items())
