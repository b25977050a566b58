"""Takes letters out of a repair: those that it has not sent stay, those that failed again count no more."""

from __future__ import annotations

from lazaretto.engine.command import Numbers, check_numbers
from lazaretto.engine.log import audit
from lazaretto.engine.outcome.dead_letter_operations import name_numbers
from lazaretto.engine.repairs.course import Course, find_repair
from lazaretto.engine.repairs.letters import FAILED, SKIPPED
from lazaretto.engine.repairs.operators import OfRepair
from lazaretto.errors import RepairError
from lazaretto.model.keys import lower_bound, sequence_of
from lazaretto.model.repair_phases import ENDED, Phase, RepairEvent
from lazaretto.store.records.repairs import RepairItem, RepairRecord
from lazaretto.store.sql.transaction import Transaction

#: Members that are looked through at once.
_AT_ONCE = 10_000


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
