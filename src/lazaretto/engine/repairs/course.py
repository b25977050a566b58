"""A repair within one commit: its plan, its pace, and how it goes from one phase to the next."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import zlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lazaretto.engine.log import audit, tell_event
from lazaretto.errors import RepairError, RepairNotFound
from lazaretto.model.checks import shown
from lazaretto.model.keys import dead_key, subqueue_at
from lazaretto.model.repairs import ENDED, Pace, Phase, Plan, RepairEvent, after, next_verbs
from lazaretto.store.records.messages import NewEvent, QueueRecord
from lazaretto.store.records.repairs import RepairRecord
from lazaretto.store.sql.transaction import Transaction

_plans = msgspec.json.Decoder(Plan)
_paces = msgspec.json.Decoder(Pace)
_replace = msgspec.structs.replace
#: What people should look at.
_WARNED = {RepairEvent.STOP, RepairEvent.CANARY_FAILS, RepairEvent.CANARY_WAITS}

#: The number of keys of a part.
PART = 10_000


def plan_of(record: RepairRecord) -> Plan:
    """Return what a repair does."""
    return _plans.decode(record.plan)


def pace_of(record: RepairRecord) -> Pace:
    """Return how fast a repair goes."""
    return _paces.decode(record.pace)


def next_headers(tx: Transaction, record: RepairRecord, most: int) -> list[bytes | None]:
    """Return the headers of the letters that a repair deals with next, in their order, without bodies."""
    course = Course.of(tx, record)
    keys = course.members(record.position, min(record.position + most, record.letters))
    subqueue = subqueue_at(record.subqueue)
    headers = tx.repairs.headers([dead_key(key, subqueue) for key in keys])
    return [headers.get(dead_key(key, subqueue)) for key in keys]


def find_repair(tx: Transaction, name: str) -> RepairRecord:
    """Return a repair by its name. Raises RepairNotFound."""
    repair = tx.repairs.named(name)
    if repair is None:
        raise RepairNotFound(f"no repair {shown(name)}; `lazaretto repair list` lists them")
    return repair


@dataclasses.dataclass(slots=True)
class Course:
    """A repair that a commit changes. `save` stores it.

    `watch`: of how many more letters the outcome may be watched; None: of all.
    """

    tx: Transaction
    record: RepairRecord
    plan: Plan
    pace: Pace
    watch: int | None = None

    @classmethod
    def of(cls, tx: Transaction, record: RepairRecord) -> Course:
        """Return the course of a stored repair."""
        return cls(tx, record, plan_of(record), pace_of(record))

    @property
    def phase(self) -> Phase:
        """The phase it is in."""
        return Phase(self.record.phase)

    @property
    def queue(self) -> QueueRecord | None:
        """The queue of its letters; None if it was deleted."""
        return self.tx.queues.by_id(self.record.queue_id)

    def members(self, first: int, last: int) -> list[int]:
        """Return the keys of members, by their places."""
        repair = self.record.repair
        return members(lambda part: self.tx.repairs.part(repair, part), first, last) if first < last else []

    def change(self, **changes: Any) -> None:
        """Note changes of the record."""
        self.record = _replace(self.record, **changes)

    def go(self, event: RepairEvent, actor: str, why: str | None = None, **detail: Any) -> None:
        """Go on to the phase that follows, and write it to both logs. Raises RepairError if none does."""
        following = after(self.phase, event)
        if following is None:
            raise RepairError(
                f"expected a repair that can go on by {event.value!r}, got {self.record.name!r}, which is "
                f"{self.phase.value}; what can be done now: {', '.join(next_verbs(self.phase)) or 'nothing'}"
            )
        self.change(
            phase=following.value,
            why=why,
            changed=self.tx.now,
            ended=self.tx.now if following in ENDED else None,
            taken_back=self.record.position if following is Phase.UNDOING else self.record.taken_back,
        )
        if following is Phase.APPLYING:
            self.pace = _replace(self.pace, start=self.record.position)
        self._log(event, actor, why, detail)

    def _log(self, event: RepairEvent, actor: str, why: str | None, detail: dict[str, Any]) -> None:
        record = self.record
        details = {"repair": record.name, "phase": record.phase, **({} if why is None else {"why": why})}
        counts = {
            "letters": record.letters, "numbers": f"{self.plan.first}-{self.plan.last}", "sent": record.sent,
            "skipped": record.skipped, "undone": record.undone,
        }  # fmt: skip
        event_detail = msgspec.json.encode({**details, **counts}).decode()
        self.tx.history.insert_events("repair_changed", [NewEvent(record.path, None, event_detail)])
        tell_event(self.tx, "repair_changed", record.path, None, details | counts, warn=event in _WARNED)
        audit(self.tx, actor, f"repair: {event.value}", record.path, **details, **counts, **detail)

    def save(self) -> None:
        """Store how it stands."""
        self.tx.repairs.save(_replace(self.record, pace=msgspec.json.encode(self.pace).decode()))


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
