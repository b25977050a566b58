"""Conditions on one field that separate failed from good messages, and the bits to encode each."""

from __future__ import annotations

import bisect
import itertools
import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from lazaretto.model.filters.values import is_numeral, print_value
from lazaretto.model.triage.features import ABSENT, Column, Group, fields_of, mask_of

#: Maximum length of a condition in characters, so that three of them fit into a filter.
LONGEST = 330
#: Failed messages that each value of a set must have: a value seen once names a message, not a cause.
_LEAST_SHARE = 0.005
_ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d(?::\d\d)*\S{0,20})?\Z", re.ASCII)

#: Who tried a message: only values count. They cost more, so that what is in messages is preferred.
HOST, WORKER = "sys.Host", "sys.Worker"
_WORKER_BITS = 6.0

_K = TypeVar("_K")

_TRAITS: Sequence[tuple[str, Callable[[Any], bool]]] = (
    ("{0} = ''", lambda t: t == ""),
    ("TRIM({0}) <> {0}", lambda t: t != t.strip() if isinstance(t, str) else not t.is_trimmed),
    ("IS_ASCII({0}) = FALSE", lambda t: not t.isascii() if isinstance(t, str) else not t.is_ascii),
    ("IS_NUMERIC({0}) = FALSE", lambda t: not is_numeral(t) if isinstance(t, str) else not t.is_numeral),
)


class Condition(NamedTuple):
    """A condition on one field: its text, its cost in bits, and the rows of each side that it holds for.

    `edge`: "low" or "high" for one side of a range; two of them may be about one field.
    """

    field: str
    text: str
    bits: float
    failing: int
    good: int
    edge: str = ""


def conditions_of(failing: Group, good: Group, told: str = "") -> list[Condition]:
    """Return all candidate conditions. `told`: the text of the error, which may name the field."""
    fields = fields_of(failing, good)
    words = set(re.findall(r"[^\W\d]\w*", told[:4096].lower()))
    per_field = math.log2(max(2, len(fields)))
    conditions: list[Condition] = []
    for field in fields:
        # A field that the error names costs one bit, not a choice among all fields.
        last = re.findall(r"\w+", field.lower())[-1:]
        bits = 1.0 if last and last[0] in words else 1.0 + per_field
        bits += max(0, field.count(".") - 1) + field.count("[")
        if field in (HOST, WORKER):
            bits += _WORKER_BITS
        conditions += _Field(field, bits, failing, good).conditions()
    return conditions


class _Field:
    """One field of both sides."""

    def __init__(self, name: str, bits: float, failing: Group, good: Group) -> None:
        self.name = name
        self.bits = bits
        self._all = failing.count, good.count
        self._full = (1 << failing.count) - 1, (1 << good.count) - 1
        self._sides: tuple[Column, Column] = failing.column(name), good.column(name)

    def conditions(self) -> Iterator[Condition]:
        """Yield the conditions that hold for some messages and not for others."""
        for text, bits, rows, edge in self._candidates():
            inside = rows[0].bit_count() + rows[1].bit_count()
            if 0 < inside < sum(self._all) and len(text) <= LONGEST:
                yield Condition(self.name, text, bits, *rows, edge)

    def _candidates(self) -> Iterator[tuple[str, float, tuple[int, int], str]]:
        if self.name in (HOST, WORKER):
            return self._sets(self._sides[0].texts, self._sides[1].texts)
        return itertools.chain(
            self._kinds(), self._values(), self._numbers(), self._lengths(), self._times(), self._traits()
        )

    # -- what kind of value it is ---------------------------------------------------------------

    def _kinds(self) -> Iterator[tuple[str, float, tuple[int, int], str]]:
        names = sorted(set(self._sides[0].kinds) | set(self._sides[1].kinds))
        if len(names) < 2:
            return
        masks = {name: self._masks(operator.attrgetter("kinds"), name) for name in names}
        bits = self.bits + 2 + math.log2(len(names))
        system, both = self.name.startswith("sys."), {ABSENT, "null"} <= set(names)
        for name, rows in masks.items():
            rest = self._full[0] & ~rows[0], self._full[1] & ~rows[1]
            if name == ABSENT and not system:
                yield f"NOT EXISTS({self.name})", bits, rows, ""
                if len(names) == 2:
                    yield f"EXISTS({self.name})", bits, rest, ""
            elif name == ABSENT or (name == "null" and not both):
                yield f"{self.name} IS NULL", bits, rows, ""
                if len(names) == 2:
                    yield f"{self.name} IS NOT NULL", bits, rest, ""
            else:
                yield f"TYPE({self.name}) = '{name}'", bits, rows, ""
        if both and not system:
            rows = masks[ABSENT][0] | masks["null"][0], masks[ABSENT][1] | masks["null"][1]
            rest = self._full[0] & ~rows[0], self._full[1] & ~rows[1]
            yield f"{self.name} IS NULL", bits + 1, rows, ""
            yield f"{self.name} IS NOT NULL", bits + 1, rest, ""

    # -- which value it is ----------------------------------------------------------------------

    def _values(self) -> Iterator[tuple[str, float, tuple[int, int], str]]:
        for flag in (True, False):
            rows = self._masks(operator.attrgetter("flags"), flag)
            yield f"{self.name} = {print_value(flag)}", self.bits + 3, rows, ""
        yield from self._sets(self._sides[0].texts, self._sides[1].texts)
        yield from self._sets(self._sides[0].numbers, self._sides[1].numbers)

    def _sets(
        self, failing: Mapping[Any, list[int]], good: Mapping[Any, list[int]]
    ) -> Iterator[tuple[str, float, tuple[int, int], str]]:
        least = max(2, _LEAST_SHARE * self._all[0])
        often = {value: len(rows) for value, rows in failing.items() if len(rows) >= least}
        if not often:
            return
        # The best set of values is a prefix of all values ordered by failure rate (Fisher 1958, Breiman
        # 1984).
        share = {value: a / (a + len(good.get(value, ()))) for value, a in often.items()}
        order = sorted(often, key=lambda value: (-share[value], -often[value], str(value)))
        distinct = len(failing.keys() | good.keys())
        bits = self.bits + 2 + (math.log2(distinct) if distinct > 1 else 0)
        a = b = length = 0
        best, at_best = math.inf, 1
        for number, value in enumerate(order, 1):
            a, b = a + often[value], b + len(good.get(value, ()))
            length += len(print_value(value)) + 2
            if length + len(self.name) > LONGEST - 8:
                break
            total = cost(a, b, *self._all) + bits + choice(distinct, number)
            if total < best:
                best, at_best = total, number
        chosen = [order[:at_best]]
        chosen += [[value] for value in sorted(often, key=lambda value: (-often[value], str(value)))[:3]]
        chosen.append(order[:1])
        for values in {tuple(sorted(values, key=str)): values for values in chosen}.values():
            rows = (
                mask_of(itertools.chain.from_iterable(failing[value] for value in values)),
                mask_of(itertools.chain.from_iterable(good.get(value, ()) for value in values)),
            )
            shown = [print_value(value) for value in sorted(values)]
            text = f"{self.name} = {shown[0]}" if len(shown) == 1 else f"{self.name} IN ({', '.join(shown)})"
            yield text, bits + choice(distinct, len(values)), rows, ""

    # -- in which range it is -------------------------------------------------------------------

    def _numbers(self) -> Iterator[tuple[str, float, tuple[int, int], str]]:
        failing, good = self._sides[0].numbers, self._sides[1].numbers
        if len(failing.keys() | good.keys()) > 2:
            yield from self._cuts(self.name, self.bits + 3, failing, good, _number_between)

    def _lengths(self) -> Iterator[tuple[str, float, tuple[int, int], str]]:
        failing, good = self._sides[0].lengths, self._sides[1].lengths
        arrays = any("array" in side.kinds for side in self._sides)
        # Lengths of texts often differ by chance, and rarely cause a failure.
        bits = self.bits + (3 if arrays else 12)
        yield from self._cuts(f"LENGTH({self.name})", bits, failing, good, _number_between)

    def _times(self) -> Iterator[tuple[str, float, tuple[int, int], str]]:
        failing, good = self._sides[0].texts, self._sides[1].texts
        texts = failing.keys() | good.keys()
        if len(texts) > 2 and sum(_ISO.match(text) is None for text in texts) <= 0.01 * len(texts):
            # Times in text form sort correctly as text.
            yield from self._cuts(self.name, self.bits + 3, failing, good, _text_between)

    def _cuts(
        self,
        name: str,
        bits: float,
        failing: Mapping[_K, list[int]],
        good: Mapping[_K, list[int]],
        between: Callable[[_K, _K], str],
    ) -> Iterator[tuple[str, float, tuple[int, int], str]]:
        """Yield the best one-sided range in each direction."""
        values: list[Any] = sorted(failing.keys() | good.keys())
        if len(values) < 2:
            return
        bits += math.log2(min(len(values), 64) * 2)
        below = list(
            itertools.accumulate(
                ((len(failing.get(v, ())), len(good.get(v, ()))) for v in values),
                lambda x, y: (x[0] + y[0], x[1] + y[1]),
            )
        )
        total = below[-1]
        # The best cut never lies between two values with only good or only failed messages.
        edges = [i for i in range(len(values) - 1) if not _alike(failing, good, values[i], values[i + 1])]
        for edge in ("low", "high"):
            best, at = math.inf, -1
            for i in edges:
                a, b = below[i] if edge == "high" else (total[0] - below[i][0], total[1] - below[i][1])
                bits_here = cost(a, b, *self._all)
                if a * self._all[1] > b * self._all[0] and bits_here < best:
                    best, at = bits_here, i
            if at >= 0:
                inside = values[: at + 1] if edge == "high" else values[at + 1 :]
                rows = (
                    mask_of(itertools.chain.from_iterable(failing.get(v, ()) for v in inside)),
                    mask_of(itertools.chain.from_iterable(good.get(v, ()) for v in inside)),
                )
                sign = "<" if edge == "high" else ">="
                yield f"{name} {sign} {between(values[at], values[at + 1])}", bits, rows, edge

    # -- what a text is like --------------------------------------------------------------------

    def _traits(self) -> Iterator[tuple[str, float, tuple[int, int], str]]:
        if not any(side.texts or side.long for side in self._sides):
            return
        for text, test in _TRAITS:
            rows = self._sides[0].like(text, test), self._sides[1].like(text, test)
            yield text.format(self.name), self.bits + 4, rows, ""

    def _masks(self, part: Callable[[Column], Mapping[Any, list[int]]], key: Any) -> tuple[int, int]:
        return mask_of(part(self._sides[0]).get(key, ())), mask_of(part(self._sides[1]).get(key, ()))


def _alike(failing: Collection[Any], good: Collection[Any], left: Any, right: Any) -> bool:
    """Return whether two neighbouring values have only failed, or only good, messages."""
    return (left in failing, left in good) == (right in failing, right in good) != (True, True)


def _text_between(low: str, high: str) -> str:
    """Return the shortest start of a text that sorts above the lower and not above the higher, quoted."""
    at = bisect.bisect_left(range(4, len(high)), True, key=lambda size: low < high[:size])
    return print_value(high[: at + 4])


def _number_between(low: float, high: float) -> str:
    """Return the shortest number that is above the lower and at most the higher."""
    size = max(abs(low), abs(high))
    for digits in range(1, 17):
        step = 10.0 ** (math.floor(math.log10(size)) - digits + 1) if size else 1.0
        if step == 0 or not math.isfinite(high / step):
            break
        at = math.floor(high / step) * step
        text = str(int(at)) if at.is_integer() and abs(at) < 1e15 else f"{at:.{digits}g}"
        if low < float(text) <= high:
            return text
    return print_value(high)


def entropy(part: int, whole: int) -> float:
    """Return the bits needed to encode which `part` of `whole` items are selected, given their share."""
    rest = whole - part
    if part <= 0 or rest <= 0:
        return 0.0
    return whole * math.log2(whole) - part * math.log2(part) - rest * math.log2(rest)


def cost(failing: int, good: int, all_failing: int, all_good: int) -> float:
    """Return the bits needed to encode which messages failed, given a split of both sides.

    Each side also costs half a logarithm, to encode its failure rate.
    """
    inside = failing + good
    outside = all_failing + all_good - inside
    return (
        entropy(failing, inside)
        + entropy(all_failing - failing, outside)
        + 0.5 * math.log2(max(2, inside))
        + 0.5 * math.log2(max(2, outside))
    )


def choice(number: int, chosen: int) -> float:
    """Return the bits needed to encode a choice of several items from a number of them."""
    return (math.lgamma(number + 1) - math.lgamma(chosen + 1) - math.lgamma(number - chosen + 1)) / math.log(
        2
    )
