"""Memory shared by a sandbox's processes: it survives their deaths and cannot be truncated."""

from __future__ import annotations

import contextlib
import itertools
import marshal
import mmap
import operator
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lazaretto.isolation.columns import Blobs, Columns, Nullable, Repeated

#: Fields of the control page, 8 bytes each.
#: CURSOR: the item at work, -1 between rounds. END: where the records end.
#: NEXT: the first item that a round which is over did not come to.
#: STOP: not 0 when no further item may be started.
#: OVER: the number of the latest round that is over. LEAVES: not 0 when its runner leaves with it.
#: Of a round whose items run at the same time: AT_ONCE is not 0, NEXT counts what was started, CURSOR is
#: the item whose step runs, STEPS counts the steps, THREADS is not 0 when other threads ran then.
CURSOR, END, NEXT, STOP, OVER, LEAVES, AT_ONCE, STEPS, THREADS = range(9)
PAGE = 4096
#: Bytes of items, or of records, that are exchanged at once.
ROUND = 67_108_864

#: How an item ended that did not just return None: item, kind (see child), payload. Made for each of very
#: many items, so it has no names.
Record = tuple[int, int, bytes]
_RECORD = struct.Struct("<qBI")
#: Where the items begin that marshal has written: behind what stands in columns of bytes.
_START = struct.Struct("<q")
_pack = _RECORD.pack
_NAME = "lazaretto-sandbox"
#: The highest number that a standard stream has.
_LAST_STREAM = 2
#: The kernel's numbers, which Python does not name everywhere.
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_WRITE = 1, 2, 4, 8


class Corrupt(Exception):
    """The other side's data is invalid: an item has overwritten it."""


def above_streams(fd: int) -> int:
    """Return a descriptor, or another one of its file if it has the number of a standard stream.

    In a process without such a stream it may have: a child's own stream would take its place.
    """
    if fd > _LAST_STREAM:
        return fd
    import fcntl

    other = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LAST_STREAM + 1)
    os.close(fd)
    return other


def create_file() -> int:
    """Return the descriptor of a new file in memory."""
    if hasattr(os, "memfd_create"):
        return above_streams(os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    fd, path = tempfile.mkstemp(prefix=f"{_NAME}-")
    os.unlink(path)  # noqa: PTH108 - named only for a moment
    return above_streams(fd)


def create_constant(data: bytes) -> int:
    """Return the descriptor of a new file in memory that nobody can change."""
    fd = create_file()
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(data)
    except BaseException:
        os.close(fd)
        raise
    _seal(fd, _SEAL_SHRINK | _SEAL_GROW | _SEAL_WRITE)
    return fd


def _seal(fd: int, seals: int) -> None:
    import fcntl

    # A system without files in memory cannot do it.
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | _SEAL_SEAL)


class Segment:
    """A shared file in memory, by its descriptor.

    Nobody can shrink it: a process that touches a removed page would be killed.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        status = os.fstat(fd)
        self._identity = status.st_dev, status.st_ino
        self.map = mmap.mmap(fd, size)

    @classmethod
    def create(cls, size: int, *, grows: bool = False) -> Segment:
        """Return a new segment. Pages that are never written take no memory."""
        fd = create_file()
        try:
            os.ftruncate(fd, size)
            _seal(fd, _SEAL_SHRINK if grows else _SEAL_SHRINK | _SEAL_GROW)
            return cls(fd, size)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def adopt(cls, fd: int) -> Segment:
        """Return a segment that cannot grow, with no descriptor that could write to it.

        No other thread may open a file during the call.
        """
        size = os.fstat(fd).st_size
        # The map has a descriptor of its own: the lowest that is free.
        own = os.dup(fd)
        os.close(own)
        segment = cls(fd, size)
        os.close(own)
        os.close(fd)
        return segment

    def reach(self, size: int) -> bool:
        """Map at least `size` bytes, which another process may have added; return whether it grew."""
        if size <= len(self.map):
            return False
        status = os.fstat(self.fd)
        if (status.st_dev, status.st_ino) != self._identity:
            raise Corrupt(f"descriptor {self.fd} now belongs to another file")
        if status.st_size < size:
            os.ftruncate(self.fd, size)
        old, self.map = self.map, mmap.mmap(self.fd, size)
        old.close()
        return True

    def put(self, offset: int, data: bytes | memoryview) -> int:
        """Write data, growing as needed; return the offset behind it."""
        end = offset + len(data)
        if end > len(self.map):
            self.reach(max(end, 2 * len(self.map)))
        self.map[offset:end] = data
        return end

    def get(self, start: int, end: int) -> bytes:
        """Return data at an offset."""
        return self.map[start:end]

    def numbers(self) -> memoryview:
        """Return the first page as 8-byte numbers."""
        return memoryview(self.map)[:PAGE].cast("q")

    def free(self, start: int) -> None:
        """Return the memory behind `start`, a multiple of the page size, to the system."""
        if len(self.map) > start and hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError):
                self.map.madvise(mmap.MADV_REMOVE, start, len(self.map) - start)

    def close(self) -> None:
        """Unmap the segment and close its descriptor."""
        os.close(self.fd)


#: What the first of the values says that stand for a column among the items: how to read it.
_NUMBERS, _BLOBS, _REPEATED, _NULLABLE = range(4)


def put_items(segment: Segment, items: Sequence[Any]) -> int:
    """Write items, bytes or Columns; return their size in bytes."""
    written, end = items, _START.size
    if isinstance(items, Columns):
        columns = []
        for column in items.columns:
            one, end = _put_column(segment, end, column)
            columns.append(one)
        written = tuple(columns)
    else:
        written = list(items)
    segment.put(0, _START.pack(end))
    # Both sides are this very interpreter, and nothing else reads a list of them as fast. The older
    # format, because the newer one looks for what is the same object.
    return segment.put(end, marshal.dumps(written, 2))


def _put_column(segment: Segment, end: int, column: Sequence[Any]) -> tuple[Any, int]:
    """Write what of a column is bytes; return what stands for it among the items, and the offset behind it.

    A list stands for itself, a tuple for all else.
    """
    if isinstance(column, Repeated):
        return (_REPEATED, column.value, column.length), end
    if isinstance(column, Nullable):
        values, end = _put_column(segment, end, column.values)
        valid, end = _put_column(segment, end, column.valid)
        return (_NULLABLE, values, valid), end
    if not len(column):
        return [], end
    if isinstance(column, memoryview):
        start, end = end, segment.put(end, column.cast("B"))
        return (_NUMBERS, column.format, start, end), end
    if isinstance(column, Blobs):
        first, shift = column.offsets[0], end - column.offsets[0]
        end = segment.put(end, column.data[first : column.offsets[-1]])
        offsets, end = _put_column(segment, end, column.offsets)
        return (_BLOBS, offsets, shift, column.is_text), end
    return list(column), end


def get_items(
    segment: Segment, size: int, join: Callable[[Sequence[Sequence[Any]]], Iterable[Any]] | None = None
) -> list[Any]:
    """Return the items, bytes or tuples. `join`: makes items of Columns, by default tuples.

    It gets lists, and what is Repeated as it is.
    """
    data = segment.map
    (start,) = _START.unpack_from(data)
    with memoryview(data) as whole, whole[start:size] as written:
        items: list[Any] | tuple[Any, ...] = marshal.loads(written)  # noqa: S302 - from the other side
    if isinstance(items, list):
        return items
    columns = [_column(data, column) for column in items]
    return list(zip(*columns, strict=True) if join is None else join(columns))


def _column(data: mmap.mmap, written: Any) -> Sequence[Any]:
    """Return a column by what stands for it among the items."""
    if type(written) is list:
        return written
    kind, *parts = written
    if kind == _REPEATED:
        return Repeated(*parts)
    if kind == _NULLABLE:
        values, valid = (_column(data, part) for part in parts)
        return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]
    if kind == _NUMBERS:
        code, start, end = parts
        with memoryview(data) as whole, whole[start:end] as part, part.cast(code) as numbers:
            return numbers.tolist()
    offsets, shift, is_text = parts
    places = _column(data, offsets)
    # Read one behind the other: nothing of Python's runs for each of them.
    data.seek(places[0] + shift)
    if is_text:
        return _texts(data.read(places[-1] - places[0]), places)
    return list(map(data.read, map(operator.sub, places[1:], places)))


def _texts(encoded: bytes, places: Sequence[int]) -> list[str]:
    """Return texts that stand one behind the other. `places`: where, counted from anywhere."""
    first, text = places[0], encoded.decode()
    pairs = itertools.pairwise([place - first for place in places])
    if len(text) == len(encoded):
        return [text[begin:end] for begin, end in pairs]
    return [encoded[begin:end].decode() for begin, end in pairs]


def put_record(segment: Segment, offset: int, record: Record) -> int:
    """Write a record; return the offset behind it. Tell the reader only after that."""
    item, kind, payload = record
    return segment.put(offset, _pack(item, kind, len(payload)) + payload)


def get_records(segment: Segment, end: int, count: int, *, in_order: bool = True) -> Iterator[Record]:
    """Yield the records up to `end`, of a round of `count` items. Raises Corrupt for an invalid record."""
    start, last = 0, -1
    seen: set[int] = set()
    data, unpack, header = segment.map, _RECORD.unpack_from, _RECORD.size
    if not 0 <= end <= len(data):
        raise Corrupt("the records end outside the shared memory")
    while start < end:
        payload = start + header
        if payload > end:
            raise Corrupt("a record is cut short")
        item, kind, size = unpack(data, start)
        start = payload + size
        if not last < item < count or item in seen or start > end:
            raise Corrupt("a record belongs to no item, or is longer than all items")
        if in_order:
            last = item
        else:
            seen.add(item)
        yield item, kind, data[payload:start]
