"""Items as columns: most time of many small tuples goes into writing and reading each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, overload

#: The attribute of a sandbox's function that makes items of columns, of all those of a round at once.
JOIN = "join"


class Blobs(Sequence[bytes]):
    """Bytes that stand one behind the other: all of them are copied at once.

    `offsets`: where each begins in `data`, and where the last one ends.
    """

    __slots__ = ("data", "offsets")

    def __init__(self, data: memoryview, offsets: Sequence[int]) -> None:
        self.data, self.offsets = data, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(at, slice):
            first, end, _ = at.indices(len(self))
            return Blobs(self.data, self.offsets[first : max(first, end) + 1])
        place = range(len(self))[at]
        return bytes(self.data[self.offsets[place] : self.offsets[place + 1]])

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        return (bytes(data[start:end]) for start, end in itertools.pairwise(self.offsets))


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
        columns = [[column[place] for place in places] for column in self.columns]
        return Columns(columns, [self.sizes[place] for place in places])
