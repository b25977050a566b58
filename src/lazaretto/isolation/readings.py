"""Reads what a round has written into the memory: the verdicts on its items, and how far it came."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from lazaretto.isolation import child
from lazaretto.isolation.child import RESULT
from lazaretto.isolation.memory import CURSOR, END, NEXT, Corrupt, Segment, get_records
from lazaretto.isolation.verdict import DONE, Status, Verdict

_STATUSES = {child.ERROR: Status.ERROR, child.MEMORY: Status.MEMORY, child.TIMEOUT: Status.TIMEOUT}


class Reading(NamedTuple):
    """A round whose items ran in order. What it says of items at or behind `done` is not known."""

    verdicts: list[Verdict]
    #: The item at work, -1 if none is. Read once: what an item has left running may still write there.
    at: int
    #: How many items were begun and ended.
    done: int
    #: The last item that has a record, -1 if none has.
    recorded: int
    #: Whether an item has overwritten the memory: then only what is recorded counts.
    corrupt: bool


def read_in_order(numbers: memoryview, records: Segment, count: int, *, died: bool) -> Reading:
    """Read a round of `count` items that ran one after the other."""
    at = numbers[CURSOR]
    position = numbers[NEXT] if at == -1 else at
    verdicts, recorded = [DONE] * count, -1
    corrupt = not (0 <= position <= count and (at < count if died else at == -1))
    try:
        for item, kind, payload in get_records(records, numbers[END], count):
            # What nearly all records are.
            verdicts[item] = Verdict(Status.DONE, payload) if kind == RESULT else _verdict(kind, payload)
            recorded = item
    except Corrupt:
        corrupt = True
    return Reading(verdicts, at, position, recorded, corrupt)


def read_ended(numbers: memoryview, records: Segment, count: int) -> dict[int, Verdict]:
    """Return the verdicts on those of `count` items at the same time that have ended. Raises Corrupt."""
    verdicts = get_records(records, numbers[END], count, in_order=False)
    return {item: _verdict(kind, payload) for item, kind, payload in verdicts}


def _verdict(kind: int, payload: bytes) -> Verdict:
    if kind in (RESULT, child.FAILED_RESULT):
        return Verdict(Status.DONE, payload, failed=kind != RESULT)
    if kind == child.NOTHING:
        return DONE
    if kind not in _STATUSES:
        raise Corrupt(f"unknown kind of record {kind}")
    try:
        failure = msgspec.msgpack.decode(payload, type=child.ItemFailure)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a failure cannot be read: {error}") from error
    return Verdict(
        _STATUSES[kind],
        None,
        failure.type,
        failure.message,
        failure.stack,
        site=failure.site,
        ended=failure.ended,
    )
