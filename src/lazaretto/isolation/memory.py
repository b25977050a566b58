"""Memory that a sandbox's processes share: grows as needed, survives the death of each of them."""

from __future__ import annotations

import marshal
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

#: Fields of the control page, 8 bytes each.
#: CURSOR: the item at work, -1 between rounds. END: where the records end.
#: NEXT: the first item that a round which is over did not come to.
#: STOP: not 0 when no further item may be started.
CURSOR, END, NEXT, STOP = range(4)
PAGE = 4096
#: Bytes of items, or of records, that are exchanged at once.
ROUND = 67_108_864

_RECORD = struct.Struct("<qBI")


class Record(NamedTuple):
    """How an item ended that did not just return None: item, kind (see child), payload."""

    item: int
    kind: int
    payload: bytes


class Segment:
    """A shared file in memory, by its descriptor."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.map = mmap.mmap(fd, size)

    @classmethod
    def create(cls, size: int) -> Segment:
        """Return a new one."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("lazaretto-sandbox")
        else:
            fd, path = tempfile.mkstemp(prefix="lazaretto-sandbox-")
            os.unlink(path)  # noqa: PTH108 - named only for a moment
        try:
            os.ftruncate(fd, size)
            return cls(fd, size)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def create_all(cls, sizes: Sequence[int]) -> list[Segment]:
        """Return new ones, or none if there is no room for all."""
        made: list[Segment] = []
        try:
            # One by one, so that those before a failure are known.
            made.extend(cls.create(size) for size in sizes)
        except BaseException:
            for segment in made:
                segment.close()
            raise
        return made

    def reach(self, size: int) -> bool:
        """See at least `size` bytes, which another process may have added; return whether that is news."""
        if size <= len(self.map):
            return False
        self.map.resize(max(size, os.fstat(self.fd).st_size))
        return True

    def put(self, offset: int, data: bytes) -> int:
        """Write, growing as needed; return the offset behind it."""
        end = offset + len(data)
        if end > len(self.map):
            self.map.resize(max(end, 2 * len(self.map)))
        self.map[offset:end] = data
        return end

    def get(self, start: int, end: int) -> bytes:
        """Read."""
        return self.map[start:end]

    def numbers(self) -> memoryview:
        """Return the first page as 8-byte numbers."""
        return memoryview(self.map)[:PAGE].cast("q")

    def shrink(self, size: int) -> None:
        """Give back what an unusually large round has taken."""
        if len(self.map) > size:
            self.map.resize(size)

    def close(self) -> None:
        """Give it up."""
        os.close(self.fd)


def put_items(segment: Segment, items: Sequence[bytes]) -> int:
    """Write items; return how many bytes that takes."""
    # Both sides are this very interpreter, and nothing else reads a list of bytes as fast. The older
    # format, because the newer one looks for items that are the same object.
    return segment.put(0, marshal.dumps(list(items), 2))


def get_items(segment: Segment, size: int) -> list[bytes]:
    """Return the items."""
    found: list[bytes] = marshal.loads(segment.map[:size])  # noqa: S302 - from the other side
    return found


def put_record(segment: Segment, offset: int, record: Record) -> int:
    """Write a record; return the offset behind it. The reader must be told only then."""
    return segment.put(offset, _RECORD.pack(record.item, record.kind, len(record.payload)) + record.payload)


def get_records(segment: Segment, start: int, end: int) -> Iterator[Record]:
    """Yield the records between two offsets."""
    segment.reach(end)
    while start < end:
        item, kind, size = _RECORD.unpack(segment.get(start, start + _RECORD.size))
        start += _RECORD.size
        yield Record(item, kind, segment.get(start, start + size))
        start += size
