"""Edits JSON as text: what a change does not touch stays as it was written, to the last digit and space."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn

from lazaretto.model.filters.body import Step
from lazaretto.model.filters.values import print_name

_STRING_TEXT = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_STRING = re.compile(_STRING_TEXT, re.DOTALL)
_NESTING = re.compile(_STRING_TEXT + r"|[\[\]{}]", re.DOTALL)
_SCALAR_TEXT = r"[^\s,\]}\[{\"]+"
_SCALAR = re.compile(_SCALAR_TEXT)
_SPACE_TEXT = r"[ \t\n\r]*"
_SPACE = re.compile(_SPACE_TEXT)
#: Between a part and the next one.
_COMMA_TEXT = rf"{_SPACE_TEXT}(?:,{_SPACE_TEXT})?"
_COMMA = re.compile(_COMMA_TEXT)
#: The name of a member, where its value begins, and a plain value with what follows. Elements have no name.
_VALUE_TEXT = rf"()(?:({_STRING_TEXT}|{_SCALAR_TEXT}){_COMMA_TEXT})?"
_MEMBER = re.compile(rf"({_STRING_TEXT}){_SPACE_TEXT}:{_SPACE_TEXT}{_VALUE_TEXT}", re.DOTALL)
_ELEMENT = re.compile(rf"(){_VALUE_TEXT}", re.DOTALL)
_KINDS = {"{": "an object", "[": "an array", '"': "a string", "t": "a boolean", "f": "a boolean", "n": "null"}

Path = Sequence[Step]


class Misfit(ValueError):
    """A text is no JSON, or has nothing where a change wants something; says what."""


class Part(NamedTuple):
    """A member of an object, or an element of an array: where it begins, and where its value is."""

    key: Step
    begin: int
    start: int
    end: int


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@functools.lru_cache(8)
def _decoder(number: Callable[[str], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(parse_float=number, parse_int=number, parse_constant=_refuse_constant)


def decode_with(text: str, number: Callable[[str], Any]) -> Any:
    """Return JSON decoded, its numbers by a function of their text. Raises Misfit."""
    try:
        return _decoder(number).decode(text)
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Misfit(f"it is not JSON: {why}") from None


def read_json(body: bytes) -> str:
    """Return a body as text that is certainly JSON. Raises Misfit."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise Misfit("it is not JSON: not UTF-8") from None
    decode_with(text, str)
    return text


def quote(value: object) -> str:
    """Return a plain value as JSON. Raises Misfit for a number that JSON does not have."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise Misfit(f"JSON has no number {value}") from None


def equal(left: str, right: str) -> bool:
    """Return whether two JSON texts mean the same: 1.10 is 1.1, and the order of keys is nothing."""
    if left == right:
        return True
    if left[0] == right[0] == '"' and "\\" not in left and "\\" not in right:
        return False
    return _same(_exact(left), _exact(right))


def _exact(text: str) -> Any:
    try:
        return decode_with(text, Decimal)
    except ArithmeticError:
        # An exponent of 20 digits is no number that could be compared.
        return decode_with(text, str)


def _same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


# -- finding -------------------------------------------------------------------------------------


def _after(what: re.Pattern[str], text: str, at: int) -> int:
    match = what.match(text, at)
    return match.end() if match else at


def _after_space(text: str, at: int) -> int:
    return _after(_SPACE, text, at)


def begin_of(text: str) -> int:
    """Return where the value of a whole text begins."""
    return _after_space(text, 0)


def end_of(text: str, start: int) -> int:
    """Return where the value that begins here ends."""
    first = text[start]
    if first in "[{":
        depth = 0
        for match in _NESTING.finditer(text, start):
            sign = text[match.start()]
            depth += 1 if sign in "[{" else -1 if sign in "]}" else 0
            if depth == 0:
                return match.end()
    value = (_STRING if first == '"' else _SCALAR).match(text, start)
    assert value is not None
    return value.end()


def parts_of(text: str, start: int) -> list[Part]:
    """Return the members of the object, or the elements of the array, that begins here; [] for others."""
    parts: list[Part] = []
    if text[start] not in "[{":
        return parts
    shape = _MEMBER if text[start] == "{" else _ELEMENT
    at = _after_space(text, start + 1)
    while text[at] not in "]}":
        match = shape.match(text, at)
        assert match is not None
        name: Step = len(parts)
        if shape is _MEMBER:
            name = match[1][1:-1]
            if "\\" in name:
                name = json.loads(match[1])
        end, behind = match.end(3), match.end()
        if end < 0:
            # An array or an object.
            end = end_of(text, behind)
            behind = _after(_COMMA, text, end)
        parts.append(Part(name, at, match.end(2), end))
        at = behind
    return parts


def kind_at(text: str, start: int) -> str:
    """Return what kind of value begins here, as an error tells it."""
    return _KINDS.get(text[start], "a number")


def find_part(text: str, start: int, step: Step) -> Part | None:
    """Return a part of the value that begins here. Of members with the same name the last one counts."""
    bracket = "{" if isinstance(step, str) else "["
    if text[start] != bracket:
        return None
    return next((part for part in reversed(parts_of(text, start)) if part.key == step), None)


def find(text: str, path: Path) -> tuple[int, int] | None:
    """Return where the value is that a path names; None: there is none."""
    start, end = begin_of(text), -1
    for step in path:
        part = find_part(text, start, step)
        if part is None:
            return None
        start, end = part.start, part.end
    return start, end if path else end_of(text, start)


def told(path: Path) -> str:
    """Return a path as an error tells it."""
    steps = (
        f"[{step}]" if isinstance(step, int) else f".{print_name(step) if step else '[]'}" for step in path
    )
    return "body" + "".join(steps)


# -- changing ------------------------------------------------------------------------------------


def put(text: str, path: Path, value: str) -> str:
    """Set what a path names to a value, a JSON text; make the objects on the way. Raises Misfit."""
    start = begin_of(text)
    end = -1
    for number, step in enumerate(path):
        part = find_part(text, start, step)
        if part is None:
            for inner in reversed(path[number + 1 :]):
                if isinstance(inner, int):
                    raise Misfit(f"{told(path[: number + 1])} is not there")
                value = f"{{{quote(inner)}: {value}}}"
            return _add(text, start, path[: number + 1], value)
        start, end = part.start, part.end
    return f"{text[:start]}{value}{text[end if path else end_of(text, start) :]}"


def _add(text: str, start: int, path: Path, value: str) -> str:
    step = path[-1]
    if isinstance(step, str):
        if text[start] != "{":
            raise Misfit(f"{told(path[:-1])} is {kind_at(text, start)}, not an object")
        return insert(text, start, step, value)
    if text[start] != "[":
        raise Misfit(f"{told(path[:-1])} is {kind_at(text, start)}, not an array")
    raise Misfit(f"{told(path)} is not there: the array has {len(parts_of(text, start))} elements")


def insert(text: str, start: int, step: Step, value: str) -> str:
    """Add a member that is not there yet, or an element before the one with this place.

    It is written as the ones beside it are: with their spaces, on a line of its own if they are.
    """
    parts = parts_of(text, start)
    name = f"{quote(step)}: " if isinstance(step, str) else ""
    if not parts:
        return f"{text[: start + 1]}{name}{value}{text[_after_space(text, start + 1) :]}"
    if isinstance(step, int) and step < len(parts):
        begin = parts[step].begin
        return f"{text[:begin]}{value},{_gap(text, start, parts)}{text[begin:]}"
    last = parts[-1]
    if isinstance(step, str):
        colon = text[end_of(text, last.begin) : last.start]
        name = f"{quote(step)}{colon}"
    return f"{text[: last.end]},{_gap(text, start, parts)}{name}{value}{text[last.end :]}"


def _gap(text: str, start: int, parts: Sequence[Part]) -> str:
    """Return the spaces before a further part."""
    if len(parts) > 1:
        return text[text.index(",", parts[-2].end) + 1 : parts[-1].begin]
    before = text[start + 1 : parts[0].begin]
    return before if "\n" in before else " "


def remove(text: str, path: Path) -> str:
    """Take what a path names away; leave the text as it is if there is no such thing."""
    parent = find(text, path[:-1])
    if parent is None:
        return text
    start = parent[0]
    if text[start] != ("{" if isinstance(path[-1], str) else "["):
        return text
    while True:
        parts = parts_of(text, start)
        number = next((n for n, part in enumerate(parts) if part.key == path[-1]), None)
        if number is None:
            return text
        begin, end = parts[number].begin, parts[number].end
        if number + 1 < len(parts):
            end = parts[number + 1].begin
        elif number:
            begin = parts[number - 1].end
        else:
            begin, end = start + 1, _after_space(text, end)
        text = text[:begin] + text[end:]
        if isinstance(path[-1], int):
            return text
