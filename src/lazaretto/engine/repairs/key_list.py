"""The frozen set of a repair as it is stored: compressed keys in their order, in parts."""

from __future__ import annotations

import functools
import hashlib
import zlib
from array import array
from collections.abc import Callable, Sequence

#: The number of keys of a part.
PART = 10_000


class KeyList:
    """Packs keys as they come; holds one part of them unpacked. `parts`: what is to be stored."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self._rest = array("q")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, keys: Sequence[int]) -> None:
        """Add keys at the end."""
        self._rest.extend(keys)
        self._count += len(keys)
        while len(self._rest) >= PART:
            self._pack(self._rest[:PART])
            del self._rest[:PART]

    def _pack(self, keys: array[int]) -> None:
        raw = keys.tobytes()
        self._hash.update(raw)
        self.parts.append(zlib.compress(raw, 1))

    def finish(self) -> str:
        """Pack what is left; return a hash of all keys in their order."""
        if self._rest:
            self._pack(self._rest)
            self._rest = array("q")
        return self._hash.hexdigest()


@functools.lru_cache(maxsize=4)
def unpack(part: bytes) -> array[int]:
    """Return the keys of a stored part, which many commits read one after the other: not to be changed."""
    keys = array("q")
    keys.frombytes(zlib.decompress(part))
    return keys


def members(read: Callable[[int], bytes], first: int, last: int) -> list[int]:
    """Return the members from the place `first` to the one before `last`. `read`: gives a stored part."""
    keys: list[int] = []
    for number in range(first // PART, (last - 1) // PART + 1):
        start = number * PART
        keys += unpack(read(number))[max(0, first - start) : last - start]
    return keys
