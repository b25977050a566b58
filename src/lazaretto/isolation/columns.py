"""Items as columns: most time of many small tuples goes into writing and reading each of them.

A column is a list; or numbers of one size, as a memoryview; or one of the classes below.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, overload

#: The attribute of a sandbox's function that makes items of columns, of all those of a round at once.
JOIN = "join"


class Blobs(Sequence[Any]):
    """Bytes that stand one behind the other: all of them are copied at once.

    `offsets`: where each begins in `data`, and where the last one ends. `is_text`: they are UTF-8, of texts.
    """

    __slots__ = ("data", "is_text", "offsets")

    def __init__(self, data: memoryview, offsets: memoryview, *, is_text: bool = False) -> None:
        self.data, self.offsets, self.is_text = data, offsets, is_text

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> Blobs: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            first, end, _ = at.indices(len(self))
            return Blobs(self.data, self.offsets[first : max(first, end) + 1], is_text=self.is_text)
        place = range(len(self))[at]
        return self._value(self.offsets[place], self.offsets[place + 1])

    def __iter__(self) -> Iterator[Any]:
        return itertools.starmap(self._value, itertools.pairwise(self.offsets))

    def _value(self, start: int, end: int) -> bytes | str:
        value = bytes(self.data[start:end])
        return value.decode() if self.is_text else value


class Repeated(Sequence[Any]):
    """One value, for each of `length` items."""

    __slots__ = ("length", "value")

    def __init__(self, value: Any, length: int) -> None:
        self.value, self.length = value, length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> Repeated: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return Repeated(self.value, len(range(self.length)[at]))
        range(self.length)[at]
        return self.value

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(self.value, self.length)


class Nullable(Sequence[Any]):
    """A column's values where `valid` is not 0, and None elsewhere."""

    __slots__ = ("valid", "values")

    def __init__(self, values: Sequence[Any], valid: memoryview) -> None:
        self.values, self.valid = values, valid

    def __len__(self) -> int:
        return len(self.valid)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> Nullable: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return Nullable(self.values[at], self.valid[at])
        return self.values[at] if self.valid[at] else None

    def __iter__(self) -> Iterator[Any]:
        return (value if valid else None for value, valid in zip(self.values, self.valid, strict=True))


class Columns(Sequence[tuple[Any, ...]]):
    """Items, tuples of what marshal can write, by columns. `sizes`: about how many bytes each item has."""

    __slots__ = ("columns", "sizes")

    def __init__(self, columns: Sequence[Sequence[Any]], sizes: Sequence[int]) -> None:
        self.columns, self.sizes = columns, sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, at: int) -> tuple[Any, ...]: ...
    @overload
    def __getitem__(self, at: slice) -> Columns: ...
    def __getitem__(self, at: int | slice) -> tuple[Any, ...] | Columns:
        if isinstance(at, slice):
            return Columns([column[at] for column in self.columns], self.sizes[at])
        return tuple([column[at] for column in self.columns])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.columns, strict=True)

    def take(self, places: Sequence[int]) -> Columns:
        """Return the items at some places."""
        columns = [
            Repeated(column.value, len(places))
            if isinstance(column, Repeated)
            else [column[place] for place in places]
            for column in self.columns
        ]
        return Columns(columns, [self.sizes[place] for place in places])
