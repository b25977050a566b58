"""Pages of dead letters: found in slices of the queue, within a budget of time, and continued by cursors."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from lazaretto.engine.messages.peek import ROOM, TooLittleRoom, fitting
from lazaretto.engine.outcome.dead_letter_operations import (
    DeadLetterFilter,
    fields_of,
    holder,
    letter_of,
    messages_of,
)
from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.clock import check
from lazaretto.model.entities import EntityPath
from lazaretto.model.keys import dead_key
from lazaretto.model.messages import DeadLetter
from lazaretto.model.policy import Counters
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.records.overview import Position, Preview
from lazaretto.store.records.repairs import DeadLetterCriteria, DeadLetterRecord
from lazaretto.store.sql.transaction import Transaction

#: The orders of a page: by sequence number or by the time of dead-lettering, ascending or descending.
ORDERS = {order: order for order in ("number", "-number", "time", "-time")}
#: Bytes of a body that a preview shows.
PREVIEW = 200
#: Sequence numbers of the first slice that is searched, and into how many slices time is divided at first.
_FIRST_SLICE, _TIME_SLICES = 2_000, 500
#: Seconds: a slice that takes less than the first is followed by a larger one, more than the second, smaller.
_QUICK, _SLOW = 0.01, 0.05
#: Dead letters whose messages are read at once for a condition on them, and keys that are looked up at once.
_MESSAGES, _KEYS = 200, 500


@dataclasses.dataclass(frozen=True, slots=True)
class DeadLetterPreview:
    """A pending dead letter without its message.

    `preview`: the first 200 bytes of the body; `size`: all its bytes.
    """

    queue: str
    sequence_number: int
    message_id: str
    reason: str | None
    description: str | None
    error_type: str | None
    error_message: str | None
    dead_lettered: datetime
    enqueued: datetime
    deliveries: int
    generation: int
    fingerprint: str | None
    size: int
    preview: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters in order.

    `next` and `previous`: cursors of the pages after and before; None: there is none. A search ends after its
    budget of time: the page may then be short, or empty, and `next` continues the search. `progress`: how
    much of the queue was searched so far in this direction, from 0 to 1.
    """

    letters: tuple[DeadLetterPreview, ...]
    next: str | None
    previous: str | None
    progress: float


class _Cursor(msgspec.Struct, array_like=True):
    """The start of a page. `what`: a hash of what is listed, so that no other listing takes the cursor."""

    what: str
    back: bool
    position: Position


#: The first and the last place of an order at which a dead letter stands.
Ends = tuple[int, int]


class Slice(msgspec.Struct, frozen=True):
    """Letters found before a budget was spent, and where to continue; None: nothing is left.

    `ends`: between which the search goes; whoever continues it may pass them on, and saves a question.
    """

    records: list[DeadLetterRecord]
    position: Position | None
    progress: float
    ends: Ends | None


_Read = Callable[[Position, Position, int], list[DeadLetterRecord]]


class _Rest(msgspec.Struct, frozen=True):
    """The rest of a search: all between two positions, in one direction."""

    low: Position
    high: Position
    down: bool

    @property
    def is_empty(self) -> bool:
        return self.low >= self.high

    @property
    def start(self) -> Position:
        return self.high if self.down else self.low

    def first_part(self, width: int | None) -> tuple[Position, Position]:
        """Return the bounds of the part that is searched next; None: of all of it."""
        if width is None:
            return self.low, self.high
        if self.down:
            return max(self.low, (self.high[0] - width, 0)), self.high
        return self.low, min(self.high, (self.low[0] + width, 0))

    def behind(self, reached: Position) -> _Rest:
        """Return what is left after a position."""
        return _Rest(self.low, reached, True) if self.down else _Rest(reached, self.high, False)


class _Source(msgspec.Struct, frozen=True):
    """Dead letters in an order.

    `read` returns those between two positions; `at` returns a record's position. `width`: how
    much of the order the first slice takes; None: all of it, since an index finds the rows.
    """

    ends: Ends | None
    read: _Read
    at: Callable[[DeadLetterRecord], Position]
    width: int | None


def find_slice(
    tx: Transaction,
    queue: QueueRecord,
    path: EntityPath,
    which: DeadLetterFilter,
    limit: int,
    *,
    start: Position | None = None,
    ends: Ends | None = None,
    by_time: bool = False,
    down: bool = False,
    budget: float = 0.25,
) -> Slice:
    """Return the first dead letters that a filter selects behind a position.

    `ends`: those of the slice that is continued; None: they are looked up. `budget`: seconds after which
    the search ends; at least one slice of the queue is searched.
    """
    source = _source(
        tx, which, which.criteria(tx, queue, path.subqueue), ends=ends, by_time=by_time, down=down
    )
    if source.ends is None:
        return Slice([], None, 1.0, None)
    low, high = (source.ends[0], 0), (source.ends[1] + 1, 0)
    rest = _Rest(low, start or high, True) if down else _Rest(start or low, high, False)
    records: list[DeadLetterRecord] = []
    clock, width = time.monotonic, source.width
    now = clock()
    end = now + budget
    while not rest.is_empty:
        check()
        began, (first, last) = now, rest.first_part(width)
        # One more than is wanted tells whether anything is left.
        room = limit + 1 - len(records) if which.where is None else _MESSAGES
        rows = source.read(first, last, room)
        records += which.passing(tx, path.subqueue, rows)
        if len(records) > limit:
            del records[limit:]
            rest = rest.behind(source.at(records[-1]))
        elif len(rows) == room:
            rest = rest.behind(source.at(rows[-1]))
        else:
            rest = rest.behind(first if down else last)
        now = clock()
        if len(records) == limit or now >= end:
            break
        if width is not None:
            width = _next_width(width, now - began)
    if rest.is_empty:
        return Slice(records, None, 1.0, source.ends)
    searched = high[0] - rest.start[0] if down else rest.start[0] - low[0]
    progress = searched / max(1, high[0] - low[0])
    return Slice(records, rest.start, min(1.0, max(0.0, progress)), source.ends)


def _next_width(width: int, seconds: float) -> int:
    """Return the width of the slice after one that took some seconds."""
    if seconds < _QUICK:
        return width * 4
    return max(1, width // 2) if seconds > _SLOW else width


def _source(
    tx: Transaction,
    which: DeadLetterFilter,
    criteria: DeadLetterCriteria,
    *,
    ends: Ends | None,
    by_time: bool,
    down: bool,
) -> _Source:
    """Return where a filter's dead letters are found with the least reading."""
    scans = which.scans
    if by_time:
        ends = ends or tx.listings.ends_by_time(criteria)
        if ends is not None:
            ends = (
                ends[0] if criteria.since is None else max(ends[0], criteria.since),
                ends[1] if criteria.until is None else min(ends[1], criteria.until - 1),
            )
        narrow = scans or criteria.fingerprints is not None or criteria.keys is not None
        width = max(1, (ends[1] - ends[0]) // _TIME_SLICES) if narrow and ends is not None else None
        return _Source(
            ends=ends,
            read=lambda after, before, limit: tx.listings.by_time(criteria, after, before, limit, down=down),
            at=lambda record: (record.dead_lettered, record.key),
            width=width,
        )

    def at(record: DeadLetterRecord) -> Position:
        return record.key, record.key

    if criteria.keys is not None:
        keys = sorted(set(criteria.keys))
        return _Source(
            ends=(keys[0], keys[-1]) if keys else None,
            read=lambda after, before, limit: _those(tx, criteria, keys, after, before, limit, down=down),
            at=at,
            width=None,
        )
    ends = ends or tx.listings.ends_by_number(criteria)
    timed = criteria.since is not None or criteria.until is not None
    if criteria.fingerprints is not None and not scans and not timed:
        return _Source(
            ends=ends,
            read=lambda after, before, limit: tx.listings.alike(criteria, after, before, limit, down=down),
            at=at,
            width=None,
        )
    narrow = scans or timed or criteria.fingerprints is not None
    return _Source(
        ends=ends,
        read=lambda after, before, limit: tx.listings.by_number(criteria, after, before, limit, down=down),
        at=at,
        width=_FIRST_SLICE if narrow else None,
    )


def _those(
    tx: Transaction,
    criteria: DeadLetterCriteria,
    keys: Sequence[int],
    after: Position,
    before: Position,
    limit: int,
    *,
    down: bool,
) -> list[DeadLetterRecord]:
    """Return dead letters of some keys between two positions."""
    low = (bisect_right if after[1] else bisect_left)(keys, after[0])
    some = keys[low : bisect_left(keys, before[0])]
    if down:
        some = some[::-1]
    records: list[DeadLetterRecord] = []
    for start in range(0, len(some), _KEYS):
        if len(records) >= limit:
            break
        chunk = some[start : start + _KEYS]
        chosen = msgspec.structs.replace(criteria, first=min(chunk) - 1, last=max(chunk), keys=chunk)
        rows = tx.history.dead_letters(chosen, -1)
        records += rows[::-1] if down else rows
    return records[:limit]


def some_letters(
    tx: Transaction,
    path: EntityPath,
    which: DeadLetterFilter,
    limit: int,
    *,
    after: Slice | None = None,
    messages: bool = True,
    by_time: bool = False,
    down: bool = False,
) -> tuple[list[DeadLetter], Slice]:
    """Return dead letters behind a slice, or the first ones, and the slice in which they were found.

    With their messages they are at least one, and else as many as have room.
    """
    room = ROOM
    while True:
        part = letters_part(
            tx, path, which, limit, after=after, messages=messages, by_time=by_time, down=down, room=room
        )
        if not isinstance(part, TooLittleRoom):
            return part
        room = part.size


def letters_part(
    tx: Transaction,
    path: EntityPath,
    which: DeadLetterFilter,
    limit: int,
    *,
    after: Slice | None,
    messages: bool,
    by_time: bool = False,
    down: bool = False,
    room: int,
) -> tuple[list[DeadLetter], Slice] | TooLittleRoom:
    """Return the same, with as many messages as there is room for in bytes."""
    queue = holder(tx, path)
    start, ends = (None, None) if after is None else (after.position, after.ends)
    slice_ = find_slice(tx, queue, path, which, limit, start=start, ends=ends, by_time=by_time, down=down)
    if messages and slice_.records:
        keys = {dead_key(one.key, path.subqueue): one for one in slice_.records}
        sizes = tx.sizes_of(list(keys))
        some = fitting([(key, sizes.get(key, 0)) for key in keys], room)
        if isinstance(some, TooLittleRoom):
            return some
        if len(some) < len(keys):
            last = keys[some[-1]]
            position = (last.dead_lettered if by_time else last.key), last.key
            slice_ = Slice(slice_.records[: len(some)], position, slice_.progress, slice_.ends)
    bodies = messages_of(tx, slice_.records) if messages else {}
    return [letter_of(tx, queue, record, bodies.get(record.key)) for record in slice_.records], slice_


# -- pages ---------------------------------------------------------------------------------------


def read_page(
    tx: Transaction,
    path: EntityPath,
    which: DeadLetterFilter,
    *,
    limit: int,
    cursor: str | None,
    order: str,
    budget: float,
) -> DeadLetterPage:
    """Return one page of a queue's pending dead letters.

    Raises InvalidOption for a cursor of another listing.
    """
    queue = holder(tx, path)
    what = _hash_of(queue, path, which, order)
    place = None if cursor is None else _decoded(cursor, what)
    back = place is not None and place.back
    down = order.startswith("-") != back
    slice_ = find_slice(
        tx,
        queue,
        path,
        which,
        limit,
        start=None if place is None else place.position,
        by_time=order.endswith("time"),
        down=down,
        budget=budget,
    )
    records = slice_.records[::-1] if back else slice_.records
    ahead = None if slice_.position is None else _encoded(_Cursor(what, back, slice_.position))
    behind = None
    if place is not None:
        # From the first one on this page, or, if there is none, from the last one on the page before.
        position = (
            _position(slice_.records[0], order)
            if slice_.records
            else _including(place.position, by_time=order.endswith("time"), down=not down)
        )
        behind = _encoded(_Cursor(what, not back, position))
    previews = (
        tx.listings.previews([dead_key(r.key, path.subqueue) for r in records], PREVIEW) if records else {}
    )
    letters = tuple(
        _previewed(tx, queue, record, previews.get(dead_key(record.key, path.subqueue))) for record in records
    )
    forward, backward = (behind, ahead) if back else (ahead, behind)
    return DeadLetterPage(letters, forward, backward, slice_.progress)


def _position(record: DeadLetterRecord, order: str) -> Position:
    """Return the position of a record, as where another page begins."""
    return (record.dead_lettered if order.endswith("time") else record.key), record.key


def _including(position: Position, *, by_time: bool, down: bool) -> Position:
    """Return a position moved so that the record there is behind it."""
    at, key = position
    if not key:
        return position
    if by_time:
        return at, key + 1 if down else key - 1
    return at + down, 0


def _previewed(
    tx: Transaction, queue: QueueRecord, record: DeadLetterRecord, preview: Preview | None
) -> DeadLetterPreview:
    return DeadLetterPreview(
        **fields_of(tx, queue, record),
        deliveries=msgspec.json.decode(record.counters, type=Counters).deliveries,
        size=0 if preview is None else preview.size,
        preview=b"" if preview is None else preview.start,
    )


def _hash_of(queue: QueueRecord, path: EntityPath, which: DeadLetterFilter, order: str) -> str:
    description = repr((queue.queue_id, path.subqueue, which, order))
    return hashlib.blake2b(description.encode(), digest_size=6).hexdigest()


def _encoded(cursor: _Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(cursor)).decode().rstrip("=")


def _decoded(cursor: str, what: str) -> _Cursor:
    try:
        packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        decoded = msgspec.msgpack.decode(packed, type=_Cursor)
    except (ValueError, binascii.Error, msgspec.MsgspecError, UnicodeError):
        raise InvalidOption(f"expected the cursor of a page, got {shown(cursor)}") from None
    if decoded.what != what:
        raise InvalidOption("expected a cursor of this queue, filter and order, got one of another listing")
    return decoded
