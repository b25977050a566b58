"""Operators' work on repairs: plan, direct, change the pace, and look how they stand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from lazaretto.engine.command import Command, CommandOf, Detail, Numbers, check_numbers
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.four_eyes import count_letters, identities, letters_left
from lazaretto.engine.log import audit
from lazaretto.engine.outcome.dead_letter_operations import name_numbers
from lazaretto.engine.outcome.rerouting import check_target
from lazaretto.engine.repairs.course import Course, find_repair, pace_of, plan_of
from lazaretto.engine.repairs.freeze import Frozen
from lazaretto.engine.repairs.letters import FAILED, PROCESSED, SKIPPED, UNDONE
from lazaretto.errors import InvalidOption, RepairError, SecondPersonNeeded
from lazaretto.model.actors import behind
from lazaretto.model.checks import shown, whole
from lazaretto.model.clock import MICROSECONDS, to_datetime
from lazaretto.model.entities import EntityPath
from lazaretto.model.fingerprint import shown_plain
from lazaretto.model.grants import Permission
from lazaretto.model.keys import lower_bound, place_of, queue_of, sequence_of, subqueue_at
from lazaretto.model.repairs import (
    ENDED,
    Pace,
    Phase,
    Plan,
    RepairCounts,
    RepairedLetter,
    RepairEvent,
    RepairStatus,
    next_verbs,
)
from lazaretto.store.records.repairs import ItemStanding, NewRepair, RepairItem, RepairRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

MOST_IN_FLIGHT: Final = 1_000_000
_FASTEST: Final = 1_000_000.0

#: The most letters in flight, and a second; None: any number; UNSET: as it is.
Limits = tuple[int | UnsetType | None, float | UnsetType | None]

#: Members that are looked through at once.
_AT_ONCE = 10_000


@dataclasses.dataclass(slots=True)
class SaveRepair(Operation[RepairRecord]):
    """Store a repair and its frozen set. `name`: None gives it one."""

    path: EntityPath
    name: str | None
    plan: Plan
    frozen: Frozen
    pace: Pace
    actor: str

    def run(self, tx: Transaction) -> RepairRecord:
        queue = require_queue(tx, self.path)
        if self.plan.to is not None:
            check_target(tx, self.path, EntityPath.parse(self.plan.to))
        name = self.name or f"repair-{tx.repairs.last() + 1}"
        if tx.repairs.named(name) is not None:
            raise RepairError(f"expected a name that is not in use, got {shown(name)}")
        plan = msgspec.structs.replace(self.plan, planners=tuple(sorted(behind(self.actor))))
        record = tx.repairs.insert(
            NewRepair(
                name=name,
                queue_id=queue.queue_id,
                subqueue=place_of(self.path.subqueue),
                path=queue.path,
                phase=Phase.PLANNED.value,
                plan=msgspec.json.encode(plan).decode(),
                pace=msgspec.json.encode(self.pace).decode(),
                letters=len(self.frozen.keys),
                actor=str(self.actor),
            ),
            self.frozen.keys.parts,
        )
        details: dict[str, Any] = {
            "repair": name, "letters": record.letters, "numbers": f"{self.plan.first}-{self.plan.last}",
            "filter": self.plan.which, "digest": self.plan.digest,
        }  # fmt: skip
        details |= {"to": self.plan.to} if self.plan.to else {}
        details |= {"edit": self.plan.edit_digest} if self.plan.edit_digest else {}
        audit(tx, self.actor, "repair: plan", queue.path, **details)
        return record


def check_in_flight(value: object) -> int | None:
    """Return the most letters in flight, None for any number. Raises InvalidOption."""
    return None if value is None else whole("in_flight", value, 1, MOST_IN_FLIGHT)


def check_rate(value: object) -> float | None:
    """Return the most letters a second, None for any number. Raises InvalidOption."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _FASTEST:
        raise InvalidOption(f"expected rate to be letters a second, above 0, or None, got {shown(value)}")
    return float(value)


def _changed(pace: Pace, limits: Limits) -> Pace:
    """Return a pace with limits, where they are given."""
    in_flight, rate = limits
    return pace.changed(
        pace.in_flight if isinstance(in_flight, UnsetType) else check_in_flight(in_flight),
        pace.rate if isinstance(rate, UnsetType) else check_rate(rate),
    )


def direct_repair(
    tx: Transaction, name: str, event: RepairEvent, actor: str, limits: Limits = (UNSET, UNSET)
) -> RepairRecord:
    """Let a repair go on to another phase at an operator's request, at another pace if one is given."""
    course = Course.of(tx, find_repair(tx, name))
    if event is RepairEvent.TRY_FEW and not course.plan.canary:
        raise RepairError(f"the repair {name!r} was planned without a canary")
    if course.phase is Phase.STOPPED and event is RepairEvent.RESUME:
        course.pace = course.pace.afresh()
    _require_second_person(tx, course, event, actor)
    if not all(isinstance(limit, UnsetType) for limit in limits):
        course.pace = _changed(course.pace, limits)
    course.go(event, actor)
    if course.phase is Phase.UNDOING or course.phase in ENDED or course.phase is Phase.PAUSED:
        # Whoever is at work on it finds out, and nobody need wait for its lease to end.
        course.change(runner=None, token=None, lease_until=None)
    course.save()
    return course.record


def _require_second_person(tx: Transaction, course: Course, event: RepairEvent, actor: str) -> None:
    """Raise SecondPersonNeeded if whoever planned a repair lets it send more than one person may.

    One person can have several names: whoever made a token for another name has seen it.
    """
    planner = course.record.actor
    shared = identities(behind(actor)) & identities([planner, *course.plan.planners])
    rest = course.record.letters - course.record.position
    count = {RepairEvent.APPLY: rest, RepairEvent.TRY_FEW: min(rest, course.plan.canary)}.get(event, 0)
    most = letters_left(tx, actor) if shared and count else None
    if most is not None and count > most:
        why = "who planned it"
        if str(actor) != planner:
            why = f"since {sorted(shared)[0]!r} can be behind it and behind {planner!r}, who planned it"
        raise SecondPersonNeeded(
            f"expected somebody other than {str(actor)!r}, {why}: {event.value} sends {count} letters, "
            f"and one person may send {most} more in this hour. "
            f"Ask somebody else: lazaretto repair {event.value} {course.record.name}"
        )
    if shared:
        count_letters(tx, actor, count, event.value)


class OfRepair(CommandOf[RepairRecord], frozen=True, kw_only=True):
    """A change of a repair."""

    permission = Permission.OPERATE
    holder = "repair"
    noun = "_repair"
    touched = ("repair", "{repair}")
    name: str

    def told(self, answer: Any) -> Any:
        return standing(answer)


def standing(answer: Any) -> dict[str, Any]:
    """Return what a command answers of a repair, from its record as JSON."""
    return {name: answer[name] for name in ("name", "path", "phase", "letters")}


class PaceRepair(OfRepair, frozen=True, kw_only=True):
    """Change how fast a repair goes; null means no limit, and what is left out stays as it is."""

    action = "repair: pace"
    method = "set_pace"
    in_flight: int | UnsetType | None = UNSET
    rate: float | UnsetType | None = UNSET

    def run(self, tx: Transaction, actor: str) -> RepairRecord:
        course = Course.of(tx, find_repair(tx, self.name))
        before = {"in_flight": course.pace.in_flight, "rate": course.pace.rate}
        course.pace = _changed(course.pace, (self.in_flight, self.rate))
        course.save()
        now = {"in_flight": course.pace.in_flight, "rate": course.pace.rate}
        changed = {"repair": self.name, **now, "before": before}
        audit(tx, actor, self.action, course.record.path, **changed)
        return course.record

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        before = detail.get("before")
        return None if before is None else cls(name=detail["repair"], **before)


# -- how it stands -------------------------------------------------------------------------------
def repair_status(tx: Transaction, record: RepairRecord) -> RepairStatus:
    """Return how a repair stands."""
    plan, pace, phase = plan_of(record), pace_of(record), Phase(record.phase)
    return RepairStatus(
        name=record.name,
        queue=record.path,
        phase=phase,
        why=record.why,
        letters=record.letters,
        counts=_counts(tx, record),
        which=plan.which,
        digest=plan.digest,
        fingerprints={
            print_ and shown_plain(print_, tx.access.fingerprint_key()): letters
            for print_, letters in plan.fingerprints.items()
        },
        first=plan.first,
        last=plan.last,
        frozen_at=to_datetime(plan.frozen_at),
        order=plan.order,
        sessions=plan.sessions,
        to=plan.to,
        edit=plan.edit,
        canary=plan.canary,
        in_flight=pace.in_flight,
        window=None if pace.in_flight is None else pace.window,
        rate=pace.rate,
        actor=record.actor,
        created=to_datetime(record.created),
        changed=to_datetime(record.changed),
        ended=None if record.ended is None else to_datetime(record.ended),
        runner=record.runner,
        next_verbs=next_verbs(phase),
        subqueue=subqueue_at(record.subqueue).value,
        estimate=_estimate(record, pace, tx.now),
    )


def _estimate(record: RepairRecord, pace: Pace, now: int) -> float | None:
    """Return in how many seconds all letters will be sent, at the speed so far."""
    rest, count = record.letters - record.position, record.position - pace.start
    if record.phase != Phase.APPLYING.value or count <= 0 or now <= record.changed:
        return None
    return rest * (now - record.changed) / MICROSECONDS / count


def _counts(tx: Transaction, record: RepairRecord) -> RepairCounts:
    counts = {"waiting": 0, "processed": 0, "failed": 0, "undone": 0}
    for outcome, died, state, number in tx.repairs.count(record.repair):
        counts[_outcome(outcome, died, state)] += number
    return RepairCounts(left=record.letters - record.position, skipped=record.skipped, **counts)


def _outcome(outcome: str | None, died: bool, state: int | None) -> str:
    """Return how a letter that was sent stands."""
    if outcome == UNDONE:
        return "undone"
    if outcome in (PROCESSED, FAILED):
        return outcome
    if died:
        return "failed"
    return "processed" if state is None else "waiting"


def repaired_letters(
    tx: Transaction, repair: int, after: int, limit: int, *, skipped: bool, failed: bool = False
) -> tuple[list[RepairedLetter], int]:
    """Return what became of letters behind a key, and the last key.

    `skipped`: only those not sent. `failed`: only those that failed again.
    """
    if skipped:
        items: Iterable[ItemStanding] = (
            ItemStanding(item, False, None) for item in tx.repairs.skipped(repair, after, limit)
        )
    else:
        items = tx.repairs.standings(repair, after, limit, failed=failed)
    letters = []
    paths: dict[int, str | None] = {}
    for standing in items:
        item = standing.item
        after = item.key
        target = None
        if item.new_key is not None:
            number = queue_of(item.new_key)
            if number not in paths:
                queue = tx.queues.by_id(number)
                paths[number] = None if queue is None else queue.path
            target = paths[number]
        letters.append(
            RepairedLetter(
                sequence_number=sequence_of(item.key),
                outcome=SKIPPED if item.why else _outcome(item.outcome, standing.died, standing.state),
                why=item.why,
                sent_as=None if item.new_key is None else sequence_of(item.new_key),
                queue=target,
            )
        )
    return letters, after


class ExcludeLetters(OfRepair, frozen=True, kw_only=True):
    """Take letters out of a repair.

    They are those that it has not sent, or that failed again. A canary that failed for these alone goes on.
    """

    action = "repair: exclude"
    method = "exclude"
    sequence_numbers: Numbers

    def run(self, tx: Transaction, actor: str) -> RepairRecord:
        course = Course.of(tx, find_repair(tx, self.name))
        record = course.record
        if course.phase in ENDED or course.phase is Phase.UNDOING:
            raise RepairError(
                f"expected a repair that goes on, got {self.name!r}, which is {course.phase.value}"
            )
        keys = {lower_bound(record.queue_id) + number for number in check_numbers(self.sequence_numbers)}
        items = {item.key: item for item in tx.repairs.items(record.repair, list(keys))}
        for item in items.values():
            if item.outcome != FAILED:
                state = "taken out already" if item.why else "sent, and has not failed"
                raise RepairError(f"letter {sequence_of(item.key)} of {self.name!r} was {state}")
        ahead = keys - items.keys()
        missing = ahead - _members_among(course, ahead)
        if missing:
            raise RepairError(f"letter {sequence_of(min(missing))} is not in the repair {self.name!r}")
        why = f"taken out by {actor}"
        added = [RepairItem(key, None, 0, None, why, SKIPPED) for key in sorted(ahead)]
        if added:
            tx.repairs.add_items(record.repair, added)
        if items:
            tx.repairs.skip_items(record.repair, list(items), why)
            course.change(failed=record.failed - len(items), skipped=record.skipped + len(items))
            # What they failed with does not stop the others.
            course.pace = course.pace.afresh()
        numbers = name_numbers(map(sequence_of, keys))
        audit(tx, actor, self.action, record.path, repair=self.name, **numbers)
        if course.phase is Phase.FAILED and course.record.failed <= course.plan.canary_failures:
            course.go(RepairEvent.EXCLUDE, actor)
        course.save()
        return course.record


def _members_among(course: Course, keys: set[int]) -> set[int]:
    """Return those of some keys that a repair has not dealt with yet."""
    position, end = course.record.position, course.record.letters
    members: set[int] = set()
    while position < end and len(members) < len(keys):
        members |= keys.intersection(course.members(position, min(position + _AT_ONCE, end)))
        position += _AT_ONCE
    return members
