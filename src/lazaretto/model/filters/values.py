"""Values in filters: comparison and arithmetic. None is unknown, and stays unknown.

As in Service Bus, whose rules are those of C#: numbers of both kinds go together, nothing else does;
whole numbers have 64 bits, and are divided towards zero.
"""

from __future__ import annotations

import decimal
import functools
import math
import operator
import re
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from lazaretto.errors import FilterError
from lazaretto.model.clock import check
from lazaretto.model.filters.body import Step

Value = Any
#: True, False, or None: unknown.
Truth = bool | None

_NUMBER, _TEXT, _FLAG, _BYTES, _ID, _TIME = "a number", "text", "a boolean", "bytes", "a UUID", "a time"
_DURATION = "a duration"
KINDS: dict[type, str] = {
    int: _NUMBER, float: _NUMBER, str: _TEXT, bool: _FLAG, bytes: _BYTES, uuid.UUID: _ID, datetime: _TIME,
    decimal.Decimal: _NUMBER, timedelta: _DURATION,
}  # fmt: skip
#: What no property can be, but a part of a JSON body can.
_PARTS: dict[type, str] = {list: "an array", dict: "an object"}
_NAMES: dict[type, str] = {
    int: "number", float: "number", str: "string", bool: "boolean", list: "array", dict: "object",
    type(None): "null", bytes: "bytes", uuid.UUID: "uuid", datetime: "datetime",
    decimal.Decimal: "number", timedelta: "duration",
}  # fmt: skip
#: Characters of a text that are searched at once, and comparisons that are made at once.
_SLICE, _STEPS = 4_096, 1_000_000
_NUMERAL = re.compile(r"[+-]?\d{1,400}(?:\.\d{1,400})?(?:[eE][+-]?\d{1,400})?\Z", re.ASCII)
_ORDERED = frozenset({_NUMBER, _TEXT, _TIME, _DURATION})
#: Decimals are computed with as those of 128 bits.
_DECIMALS = decimal.Context(
    prec=34, Emin=-6_143, Emax=6_144, clamp=1,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)  # fmt: skip

Compare = Callable[[Any, Any], bool]
COMPARISONS: dict[str, Compare] = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_EQUALITIES = frozenset({"=", "<>", "!="})
_COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_DECIMALS_BY_SIGN: dict[str, Callable[[decimal.Decimal, decimal.Decimal], decimal.Decimal]] = {
    "+": _DECIMALS.add, "-": _DECIMALS.subtract, "*": _DECIMALS.multiply, "/": _DECIMALS.divide,
    "%": _DECIMALS.remainder,
}  # fmt: skip
_LOW, _HIGH = -(1 << 63), (1 << 63) - 1

_PLAIN = re.compile(r"[^\W\d]\w*\Z")
_LEAST = -(1 << 63)


def kind_of(value: Value) -> str:
    """Return what kind of value it is, as an error tells it."""
    return KINDS.get(type(value)) or _PARTS.get(type(value), type(value).__name__)


def type_name(value: Value) -> str:
    """Return what TYPE calls the type of a value that is there: JSON's names, for None "null"."""
    return _NAMES.get(type(value), "other")


def is_numeral(text: str) -> bool:
    """Return whether a text is a number's."""
    return _NUMERAL.match(text) is not None


def _of_text(trait: Callable[[str], Any]) -> Callable[[Value], Value]:
    return lambda value: trait(value) if type(value) is str else None


#: Functions of the grammar by name. What has no such trait, as a number has no length, is unknown.
TRAITS: dict[str, Callable[[Value], Value]] = {
    "length": lambda value: len(value) if type(value) in (str, list) else None,
    "trim": _of_text(str.strip),
    "is_ascii": _of_text(str.isascii),
    "is_numeric": _of_text(is_numeral),
}


def compare(sign: str, left: Value, right: Value) -> Truth:
    """Compare two values. Raises FilterError where they are not of one kind."""
    if left is None or right is None:
        return None
    kind = kind_of(left)
    if kind != kind_of(right):
        raise FilterError(
            f"expected two values of the same kind around {sign}, got {kind} and {kind_of(right)}"
        )
    if type(left) in _PARTS:
        raise FilterError(f"{kind} cannot be compared: expected a part of it around {sign}")
    if sign not in _EQUALITIES and kind not in _ORDERED:
        raise FilterError(f"{kind} has no order: expected = or <>, got {sign}")
    return COMPARISONS[sign](*_alike(left, right))


def _alike(left: Value, right: Value) -> tuple[Value, Value]:
    """Return two numbers so that Python compares and computes with them: a decimal beside a double is one."""
    if type(left) is decimal.Decimal and type(right) is float:
        return float(left), right
    if type(left) is float and type(right) is decimal.Decimal:
        return left, float(right)
    return left, right


def conjoin(truths: list[Callable[[Any], Truth]]) -> Callable[[Any], Truth]:
    """Return AND of conditions: false if one is, else unknown if one is."""
    return _combine(truths, decisive=False)


def disjoin(truths: list[Callable[[Any], Truth]]) -> Callable[[Any], Truth]:
    """Return OR of conditions: true if one is, else unknown if one is."""
    return _combine(truths, decisive=True)


def _combine(truths: list[Callable[[Any], Truth]], *, decisive: bool) -> Callable[[Any], Truth]:
    otherwise = not decisive

    def combined(view: Any) -> Truth:
        answer: Truth = otherwise
        for truth in truths:
            result = truth(view)
            if result is decisive:
                return decisive
            if result is None:
                answer = None
        return answer

    return combined


def compute(sign: str, left: Value, right: Value) -> Value:
    """Compute with two values. Raises FilterError for what cannot be computed."""
    if left is None or right is None:
        return None
    if sign == "+" and type(left) is str and type(right) is str:
        return left + right
    for value in (left, right):
        if kind_of(value) != _NUMBER:
            raise FilterError(f"expected numbers around {sign}, got {kind_of(left)} and {kind_of(right)}")
    if type(left) is int and type(right) is int:
        return _whole(sign, left, right)
    left, right = _alike(left, right)
    if decimal.Decimal in (type(left), type(right)):
        return _decimal(sign, decimal.Decimal(left), decimal.Decimal(right))
    return _fraction(sign, float(left), float(right))


def _decimal(sign: str, left: decimal.Decimal, right: decimal.Decimal) -> decimal.Decimal:
    try:
        return _DECIMALS_BY_SIGN[sign](left, right)
    except decimal.DecimalException as error:
        raise FilterError(f"decimals cannot be computed with {sign}: {type(error).__name__}") from None


def _whole(sign: str, left: int, right: int) -> int:
    if sign in "/%":
        if right == 0:
            raise FilterError("integer division by zero")
        quotient = abs(left) // abs(right)
        quotient = quotient if (left < 0) == (right < 0) else -quotient
        number = quotient if sign == "/" else left - quotient * right
    else:
        number = _COMPUTED[sign](left, right)
    if not _LOW <= number <= _HIGH:
        raise FilterError(f"the result of {sign} does not fit in 64 bits")
    return int(number)


def _fraction(sign: str, left: float, right: float) -> float:
    if sign in "/%" and right == 0.0:
        if sign == "%" or left == 0.0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    if sign == "%":
        return math.fmod(left, right) if math.isfinite(left) else math.nan
    return float(_COMPUTED[sign](left, right))


def negate(value: Value) -> Value:
    """Return the number with the other sign."""
    if value is None:
        return None
    if kind_of(value) != _NUMBER:
        raise FilterError(f"expected a number after -, got {kind_of(value)}")
    if value == _LOW:
        raise FilterError("the result of - does not fit in 64 bits")
    return value.copy_negate() if type(value) is decimal.Decimal else -value


def like(value: Value, pattern: Value, escape: Value) -> Truth:
    """Return whether a text is like a pattern of % (any text) and _ (any character)."""
    if value is None or pattern is None:
        return None
    for what, operand in (("before LIKE", value), ("as its pattern", pattern)):
        if type(operand) is not str:
            raise FilterError(f"expected text {what}, got {kind_of(operand)}")
    return _matcher(pattern, check_escape(escape))(value)


def check_escape(escape: Value) -> str | None:
    """Return an escape character. Raises FilterError if it is none."""
    if escape is not None and (type(escape) is not str or len(escape) != 1):
        raise FilterError("expected one character after ESCAPE")
    return escape


@functools.lru_cache(1024)
def _matcher(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """Return what matches a pattern.

    Its parts between % are looked for one after the other, each as early as can be: so that no
    pattern takes longer than its length times the text's.
    """
    parts: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                raise FilterError(
                    "expected a character after the escape character, got the end of the pattern"
                )
            parts[-1].append(re.escape(following))
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append("." if character == "_" else re.escape(character))
    first, *rest = [re.compile("".join(part), re.DOTALL) for part in parts]
    if not rest:
        return lambda text: first.fullmatch(text) is not None
    *middle, last = rest
    sizes, size = [len(part) for part in parts[1:-1]], len(parts[-1])

    def matches(text: str) -> bool:
        match = first.match(text)
        if match is None:
            return False
        at = match.end()
        for part, length in zip(middle, sizes, strict=True):
            match = _search(part, length, text, at)
            if match is None:
                return False
            at = match.end()
        return len(text) - size >= at and last.match(text, len(text) - size) is not None

    return matches


def _search(part: re.Pattern[str], length: int, text: str, at: int) -> re.Match[str] | None:
    """Look for a part of a pattern in slices: a search in C cannot be stopped, and lets no thread work."""
    width = max(_SLICE, _STEPS // max(1, length))
    while at <= len(text):
        match = part.search(text, at, min(len(text), at + width + length))
        if match is not None:
            return match
        at += width + 1
        check()
    return None


def print_name(name: str) -> str:
    """Return a name as the grammar has it. Raises ValueError for an empty one, which it does not have."""
    if not name:
        raise ValueError("expected a name, got an empty text")
    return name if _PLAIN.match(name) else f"[{name.replace(']', ']]')}]"


def print_path(path: Sequence[Step]) -> str:
    """Return a path into the body, such as `body.items[0].sku`. Raises ValueError for an empty key."""
    return "body" + "".join(f"[{s}]" if isinstance(s, int) else f".{print_name(s)}" for s in path)


def print_value(value: str | float | bool) -> str:
    """Return a constant of the grammar. Raises ValueError for a number that it does not have."""
    if isinstance(value, str):
        return f"'{value.replace(chr(39), chr(39) * 2)}'"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value}")
    if isinstance(value, int) and not _LEAST <= value < -_LEAST:
        raise ValueError(f"expected a number of 64 bits, got {value}")
    # The sign is none of a constant's characters, so the least number has no text of its own.
    return f"({value + 1} - 1)" if value == _LEAST and isinstance(value, int) else repr(value)
