"""JSON merge patches (RFC 7396) and JSON Patches (RFC 6902), applied to JSON as text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from lazaretto.model.edits.json_text import (
    Misfit,
    begin_of,
    end_of,
    equal,
    find,
    find_part,
    insert,
    kind_at,
    parts_of,
    put,
    remove,
)
from lazaretto.model.filters.body import Step

#: How deep a merge patch may be nested.
DEEPEST = 60
#: Operations of a JSON Patch.
MOST_OPERATIONS = 1_000

_INDEX = re.compile(r"(?:0|[1-9][0-9]{0,8})\Z", re.ASCII)
_NEEDS = {
    "add": "value", "replace": "value", "test": "value", "remove": None, "move": "from", "copy": "from",
}  # fmt: skip


class MergeStep(NamedTuple):
    """A value that a merge patch sets, as JSON; None: it removes it. "{": it needs an object there."""

    path: tuple[Step, ...]
    value: str | None


_OBJECT = "{"


def read_merge(patch: str) -> list[MergeStep]:
    """Return the steps of a merge patch, which is JSON. Raises Misfit if it is nested too deep."""
    steps: list[MergeStep] = []
    _read_merge(patch, begin_of(patch), (), steps)
    return steps


def _read_merge(patch: str, begin: int, path: tuple[Step, ...], steps: list[MergeStep]) -> None:
    if len(path) > DEEPEST:
        raise Misfit(f"a merge patch is nested at most {DEEPEST} levels deep")
    if patch[begin] != "{":
        value = patch[begin : end_of(patch, begin)]
        steps.append(MergeStep(path, None if value == "null" and path else value))
        return
    steps.append(MergeStep(path, _OBJECT))
    for part in parts_of(patch, begin):
        _read_merge(patch, part.start, (*path, part.key), steps)


def merge(text: str, steps: Sequence[MergeStep]) -> str:
    """Return a JSON text with a merge patch applied."""
    for path, value in steps:
        if value is None:
            text = remove(text, path)
            continue
        if value == _OBJECT:
            if not path and text[begin_of(text)] == "{":
                continue
            value = "{}"
            where = find(text, path)
            if where is None or text[where[0]] != "{":
                text = put(text, path, value)
            continue
        where = find(text, path)
        if where is None:
            text = put(text, path, value)
        elif not equal(text[slice(*where)], value):
            text = text[: where[0]] + value + text[where[1] :]
    return text


# -- JSON Patch ----------------------------------------------------------------------------------


class Operation:
    """One operation of a JSON Patch, checked. `value`: JSON as it was written."""

    __slots__ = ("name", "path", "source", "value")

    def __init__(self, name: str, path: tuple[str, ...], value: str, source: tuple[str, ...]) -> None:
        self.name, self.path, self.value, self.source = name, path, value, source


def read_operations(patch: str) -> list[Operation]:
    """Return the operations of a JSON Patch, which is JSON. Raises Misfit."""
    begin = begin_of(patch)
    if patch[begin] != "[":
        raise Misfit(f"a JSON Patch is an array of operations, not {kind_at(patch, begin)}")
    parts = parts_of(patch, begin)
    if not 0 < len(parts) <= MOST_OPERATIONS:
        raise Misfit(f"a JSON Patch has 1 to {MOST_OPERATIONS} operations, not {len(parts)}")
    return [_operation(patch, number, part.start) for number, part in enumerate(parts)]


def _operation(patch: str, number: int, start: int) -> Operation:
    if patch[start] != "{":
        raise Misfit(f"operation {number} is {kind_at(patch, start)}, not an object")

    def text_of(name: str) -> str:
        part = find_part(patch, start, name)
        if part is None or patch[part.start] != '"':
            raise Misfit(f"operation {number} needs {name!r}, a string")
        return str(json.loads(patch[part.start : part.end]))

    name = text_of("op")
    if name not in _NEEDS:
        raise Misfit(f"operation {number}: there is no {name!r}, only {', '.join(_NEEDS)}")
    value = ""
    source: tuple[str, ...] = ()
    if _NEEDS[name] == "value":
        part = find_part(patch, start, "value")
        if part is None:
            raise Misfit(f"operation {number} ({name}) needs 'value'")
        value = patch[part.start : part.end]
    path = read_pointer(text_of("path"))
    if _NEEDS[name] == "from":
        source = read_pointer(text_of("from"))
        if name == "move" and len(source) < len(path) and path[: len(source)] == source:
            raise Misfit(f"operation {number}: nothing can be moved into itself")
    return Operation(name, path, value, source)


def read_pointer(pointer: str) -> tuple[str, ...]:
    """Return the tokens of a JSON Pointer (RFC 6901). Raises Misfit."""
    if pointer == "":
        return ()
    if not pointer.startswith("/") or re.search(r"~(?![01])", pointer):
        raise Misfit(f"{pointer!r} is not a JSON Pointer such as /items/0/price")
    return tuple(t.replace("~1", "/").replace("~0", "~") for t in pointer[1:].split("/"))


def patch_text(text: str, operations: Sequence[Operation]) -> str:
    """Return a JSON text with all operations applied in order. Raises Misfit: nothing is changed then."""
    for number, operation in enumerate(operations):
        try:
            text = _apply(text, operation)
        except Misfit as error:
            raise Misfit(f"operation {number} ({operation.name}): {error}") from None
    return text


def _apply(text: str, operation: Operation) -> str:
    name = operation.name
    if name == "add":
        return _add(text, operation.path, operation.value)
    if name in ("move", "copy"):
        where = _place(text, operation.source)
        value = text[slice(*where)]
        if name == "move":
            if operation.source == operation.path:
                return text
            text = remove(text, _steps(text, operation.source))
        return _add(text, operation.path, value)
    start, end = _place(text, operation.path)
    if name == "remove":
        if not operation.path:
            raise Misfit("the whole body cannot be removed")
        return remove(text, _steps(text, operation.path))
    same = equal(text[start:end], operation.value)
    if name == "test":
        if not same:
            raise Misfit(
                f"{_shown(operation.path)} is {_short(text[start:end])}, not {_short(operation.value)}"
            )
        return text
    return text if same else text[:start] + operation.value + text[end:]


def _add(text: str, path: tuple[str, ...], value: str) -> str:
    if not path:
        return value
    parent = _place(text, path[:-1])[0]
    steps, last = _steps(text, path[:-1]), path[-1]
    if text[parent] == "{":
        return put(text, (*steps, last), value)
    if text[parent] != "[":
        raise Misfit(f"{_shown(path[:-1])} is {kind_at(text, parent)}, which has no parts")
    length = len(parts_of(text, parent))
    place = length if last == "-" else int(last) if _INDEX.match(last) else -1
    if not 0 <= place <= length:
        raise Misfit(f"{_shown(path)} is not a position in an array of {length} elements")
    return insert(text, parent, place, value)


def _steps(text: str, path: tuple[str, ...]) -> tuple[Step, ...]:
    """Return a pointer's tokens as steps: numbers where there are arrays. Raises Misfit: not there."""
    start = begin_of(text)
    steps: list[Step] = []
    for token in path:
        step: Step = token
        if text[start] == "[":
            step = int(token) if _INDEX.match(token) else -1
        part = find_part(text, start, step)
        if part is None:
            raise Misfit(f"{_shown(path)} is not there")
        steps.append(step)
        start = part.start
    return tuple(steps)


def _place(text: str, path: tuple[str, ...]) -> tuple[int, int]:
    part = find(text, _steps(text, path))
    assert part is not None
    return part


def _shown(path: Sequence[str]) -> str:
    return "/" + "/".join(path) if path else "the body"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
