"""The features of a group of messages by field: which messages have which type and value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lazaretto.model.filters.values import type_name
from lazaretto.model.triage.features import Features, LongText, Other

#: Maximum number of fields to examine: the most common ones.
MOST_FIELDS = 200

MISSING = "missing"


def mask_of(rows: Iterable[int]) -> int:
    """Return a set of rows as a bit mask."""
    numbers = list(rows)
    if not numbers:
        return 0
    bits = bytearray((max(numbers) >> 3) + 1)
    for row in numbers:
        bits[row >> 3] |= 1 << (row & 7)
    return int.from_bytes(bits, "little")


def rows_of(mask: int, count: int) -> list[int]:
    """Return the rows in a bit mask, out of `count` rows."""
    bits = mask.to_bytes((count >> 3) + 1, "little")
    return [row for row in range(count) if bits[row >> 3] >> (row & 7) & 1]


class Column:
    """The contents of one field in the messages of a group, by row.

    `kinds`: rows by the name of the type, or MISSING. `texts`, `numbers`, `flags`: rows by value.
    `lengths`: rows by length, of texts and of arrays.
    """

    __slots__ = ("_like", "flags", "kinds", "lengths", "long", "numbers", "texts")

    def __init__(self) -> None:
        self.kinds: dict[str, list[int]] = {}
        self.texts: dict[str, list[int]] = {}
        self.numbers: dict[float, list[int]] = {}
        self.flags: dict[bool, list[int]] = {}
        self.lengths: dict[int, list[int]] = {}
        self.long: dict[LongText, list[int]] = {}
        self._like: dict[str, int] = {}

    def like(self, name: str, test: Callable[[str | LongText], bool]) -> int:
        """Return the rows whose text passes a test, as a bit mask; cached under the test's name."""
        mask = self._like.get(name)
        if mask is None:
            rows = [row for text, rows in self.texts.items() if test(text) for row in rows]
            rows += [row for text, rows in self.long.items() if test(text) for row in rows]
            mask = self._like[name] = mask_of(rows)
        return mask

    def add(self, row: int, value: Any) -> None:
        kind = type(value)
        name = type_name(value)
        if kind is str:
            self.texts.setdefault(value, []).append(row)
            self.lengths.setdefault(len(value), []).append(row)
        elif kind is int or kind is float:
            self.numbers.setdefault(value, []).append(row)
        elif kind is bool:
            self.flags.setdefault(value, []).append(row)
        elif kind is LongText:
            name = "string"
            self.long.setdefault(value, []).append(row)
            self.lengths.setdefault(value.length, []).append(row)
        elif kind is Other:
            name = value.type
            if value.length is not None:
                self.lengths.setdefault(value.length, []).append(row)
        self.kinds.setdefault(name, []).append(row)


class Group:
    """The messages of one side of a comparison: failed ones or good ones."""

    def __init__(self, rows: Sequence[Features]) -> None:
        self.rows = rows
        self.count = len(rows)
        self.seen = Counter(name for row in rows for name in row)
        self._columns: dict[str, Column] = {}

    def column(self, field: str) -> Column:
        """Return the contents of a field; built once."""
        column = self._columns.get(field)
        if column is None:
            column = self._columns[field] = Column()
            add = column.add
            absent = []
            for number, row in enumerate(self.rows):
                if field in row:
                    add(number, row[field])
                else:
                    absent.append(number)
            if absent:
                column.kinds[MISSING] = absent
        return column


def fields_of(failing: Group, good: Group) -> list[str]:
    """Return the fields to examine, the most common first, up to a limit."""
    seen = failing.seen + good.seen
    # Equally common fields are ordered by name, so that the answer depends only on the messages.
    return sorted(seen, key=lambda name: (-seen[name], name))[:MOST_FIELDS]
