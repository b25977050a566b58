"""Takes a repair a step further: looks at outcomes, sends some letters, or takes some back, in one commit."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Final

from lazaretto.engine.outcome.breakers import breaker_of
from lazaretto.engine.outcome.rerouting import check_target
from lazaretto.engine.outcome.send_back import MOST_IN_UNIT, sessions_of, takes_units
from lazaretto.engine.repairs.course import Course
from lazaretto.engine.repairs.letters import FAILED, PROCESSED, Edited, send_letters, take_back
from lazaretto.errors import LazarettoError
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.clock import MICROSECONDS
from lazaretto.model.entities import EntityPath
from lazaretto.model.keys import dead_key, subqueue_at
from lazaretto.model.repairs import BY_SESSION, RUNNING, WATCHED, Phase, RepairEvent, why_stop
from lazaretto.store.records.messages import NewMessage, QueueRecord
from lazaretto.store.records.repairs import RepairRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: How long a runner may be silent before another one takes its repair, in seconds.
LEASE = 5.0
#: The most letters of one session that are sent in one commit because they belong together, if it is no unit;
#: and how many are looked at at once.
_MOST_TOGETHER = 1_000
#: Stands for the session of a letter that is not where it was.
GONE: Final = "\0"
#: The most outcomes that are looked at in one commit.
_OUTCOMES = 5_000


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """The result of a step of a repair. `lost`: another runner has it.

    `letters`: those dealt with. `finished`: outcomes that came. `seconds`: of the writer's time.
    """

    phase: Phase
    lost: bool = False
    letters: int = 0
    finished: int = 0
    seconds: float = 0.0

    @property
    def runs(self) -> bool:
        """Whether there is more to do."""
        return not self.lost and self.phase in RUNNING


@dataclasses.dataclass(slots=True)
class TakeRepair(Operation[tuple[int, int] | None]):
    """Take a repair on which nobody is at work; return its number and the token of the lease.

    `only`: the number of the repair, if no other will do.
    """

    only: int | None = None

    def run(self, tx: Transaction) -> tuple[int, int] | None:
        for record in tx.repairs.running():
            if self.only not in (None, record.repair) or not is_free(tx, record.runner, record.lease_until):
                continue
            # Once it is known as a worker, others on its machine see that it is gone.
            tx.workers.register()
            course, token = Course.of(tx, record), tx.random_token()
            course.change(runner=tx.worker, token=token, lease_until=tx.now + round(LEASE * MICROSECONDS))
            course.save()
            return record.repair, token
        return None


def is_free(tx: Transaction, runner: str | None, until: int | None) -> bool:
    """Return whether nobody is at work on a repair."""
    if runner is None or until is None or until <= tx.now or tx.workers.is_dead(runner):
        return True
    # Nobody takes a lease for so long: the clock was put back.
    return until > tx.now + round(2 * LEASE * MICROSECONDS)


@dataclasses.dataclass(slots=True)
class GiveUpRepair(Operation[None]):
    """Give a repair up, so that another runner can take it at once."""

    repair: int
    token: int

    def run(self, tx: Transaction) -> None:
        record = tx.repairs.find(self.repair)
        if record is not None and record.token == self.token:
            course = Course.of(tx, record)
            course.change(runner=None, token=None, lease_until=None)
            course.save()


@dataclasses.dataclass(slots=True)
class Advance(Operation[Step]):
    """Take a repair a step further, as the runner that has the lease with this token.

    `limit`: the most letters to send or take back. `edits`: what the edit makes of the next letters, by key;
    letters that are not among them are not sent. None: there is no edit. `looks`: whether it looks at
    outcomes. `trouble`: why nothing can be sent.
    """

    repair: int
    token: int
    limit: int
    edits: Mapping[int, Edited] | None = None
    looks: bool = True
    trouble: str | None = None

    def run(self, tx: Transaction) -> Step:
        began = time.perf_counter()
        record = tx.repairs.find(self.repair)
        if record is None or record.token != self.token:
            return Step(Phase.CANCELLED if record is None else Phase(record.phase), lost=True)
        course = Course.of(tx, record)
        if course.phase not in RUNNING:
            return Step(course.phase)
        finished = self._look_at_outcomes(course) if self.looks else 0
        letters = 0
        if course.phase is Phase.UNDOING:
            letters = self._take_back(course)
        elif (why := self.trouble or obstacle(course)) is not None:
            course.go(RepairEvent.STOP, tx.worker, why)
        elif course.phase is Phase.CANARY:
            letters = self._canary(course)
        else:
            letters = self._apply(course)
        if course.phase in RUNNING:
            course.change(lease_until=tx.now + round(LEASE * MICROSECONDS))
        else:
            course.change(runner=None, token=None, lease_until=None)
        course.save()
        return Step(course.phase, False, letters, finished, time.perf_counter() - began)

    def _look_at_outcomes(self, course: Course) -> int:
        outcomes = course.tx.repairs.finished(self.repair, _OUTCOMES)
        if outcomes:
            processed, failed = [k for k, died in outcomes if not died], [k for k, died in outcomes if died]
            course.tx.repairs.set_outcomes(self.repair, {PROCESSED: processed, FAILED: failed})
            course.pace = course.pace.after(not died for _, died in outcomes)
            record = course.record
            course.change(processed=record.processed + len(processed), failed=record.failed + len(failed))
        return len(outcomes)

    def _canary(self, course: Course) -> int:
        record, plan, tx = course.record, course.plan, course.tx
        if _is_from_the_future(course):
            # The clock was put back: the wait begins anew, or it would last until the clock is there again.
            course.change(changed=tx.now)
        sent = 0
        if record.position < plan.canary:
            sent = self._send(course, plan.canary - record.position, plan.canary)
            if course.phase is not Phase.CANARY:
                return sent
        failed, open_ = course.record.failed, tx.repairs.open(self.repair)
        if failed > plan.canary_failures:
            course.go(RepairEvent.CANARY_FAILS, tx.worker, f"{failed} of {course.record.sent} failed again")
        elif course.record.position >= plan.canary and not open_:
            course.go(RepairEvent.CANARY_PASSES, tx.worker)
        elif _is_late(course):
            course.go(RepairEvent.CANARY_WAITS, tx.worker, f"{open_} were not processed in time")
        return sent

    def _apply(self, course: Course) -> int:
        record, tx = course.record, course.tx
        why = why_stop(course.pace)
        if why is not None:
            course.go(RepairEvent.STOP, tx.worker, why)
            return 0
        open_ = tx.repairs.open(self.repair) if self.looks else 0
        if course.pace.in_flight is None:
            # Some are enough to tell whether the repair helps.
            course.watch = max(0, WATCHED - open_) if self.looks else 0
        room = course.pace.room(open_)
        sent = self._send(course, min(self.limit, room), record.letters)
        if course.phase is Phase.APPLYING and course.record.position >= record.letters:
            course.go(RepairEvent.FINISH, tx.worker)
        return sent

    def _send(self, course: Course, number: int, end: int) -> int:
        """Send the next letters, up to the place `end`; return how many were dealt with."""
        position, queue = course.record.position, course.queue
        assert queue is not None
        keys = next_letters(course, number, end, self.edits)
        if self.edits is not None:
            # What was not edited yet is left to the next step.
            edited = [key in self.edits for key in keys]
            if False in edited:
                keys = [] if divides_units(course) else keys[: edited.index(False)]
        if keys:
            full = send_letters(course, queue, keys, self.edits)
            if full is not None:
                course.go(RepairEvent.STOP, course.tx.worker, full)
        return course.record.position - position

    def _take_back(self, course: Course) -> int:
        top = course.record.taken_back or 0
        bottom = max(0, top - self.limit)
        if bottom and divides_units(course):
            bottom = _first_of_unit(course, bottom, top)
        # Newest first, so that what is left in the queue is what came before.
        keys = course.members(bottom, top)
        count = take_back(course, keys) if keys else 0
        course.change(taken_back=bottom)
        if bottom == 0:
            course.go(RepairEvent.TAKEN_BACK, course.tx.worker)
        return count


def _is_late(course: Course) -> bool:
    """Return whether the canary was not processed in time."""
    waited = course.tx.now - course.record.changed
    return course.phase is Phase.CANARY and waited > course.plan.canary_wait * MICROSECONDS


def _is_from_the_future(course: Course) -> bool:
    return course.phase is Phase.CANARY and course.record.changed > course.tx.now


def would_advance(tx: Transaction, record: RepairRecord, limit: int) -> bool:
    """Return whether a step would do more than to renew the lease. It only reads."""
    course = Course.of(tx, record)
    if course.phase is Phase.UNDOING or record.position >= record.letters:
        return True
    if course.phase is Phase.APPLYING and course.pace.in_flight is None and limit:
        return True
    if _is_late(course) or _is_from_the_future(course):
        return True
    if tx.repairs.finished(record.repair, 1) or obstacle(course) is not None:
        return True
    open_ = tx.repairs.open(record.repair)
    if course.phase is Phase.CANARY:
        return limit > 0 if record.position < course.plan.canary else not open_
    return min(limit, course.pace.room(open_ if course.pace.in_flight is not None else 0)) > 0


def divides_units(course: Course) -> bool:
    """Return whether a step must ask where it may end: sessions are units where the letters go."""
    target = course.queue
    if course.plan.to is not None:
        target = course.tx.queues.by_path(EntityPath.parse(course.plan.to).key)
    return target is not None and takes_units(course.tx, target)


def next_letters(
    course: Course, number: int, end: int, edits: Mapping[int, Edited] | None = None
) -> list[int]:
    """Return the next letters, so many and the rest of a session that belongs together, up to a place.

    `edits`: what is made of letters, for they are of the session that they are sent in. Of what is not edited
    yet nobody knows the session: some of it is among them, so that it will be.
    """
    position = course.record.position
    keys = course.members(position, min(position + number, end))
    if not keys or course.plan.order != BY_SESSION:
        return keys
    most = MOST_IN_UNIT if divides_units(course) else _MOST_TOGETHER
    sessions = [session_id for _, session_id in _sessions(course, keys, edits) if session_id is not GONE]
    last = sessions[-1] if sessions else None
    behind = position + len(keys)
    while last is not None and behind < min(end, position + number + most):
        following = course.members(behind, min(behind + max(_MOST_TOGETHER, len(keys)), end))
        for key, session_id in _sessions(course, following, edits):
            if edits is not None and key not in edits:
                return [*keys, *following[following.index(key) :]]
            if session_id not in (last, GONE):
                return keys
            keys.append(key)
        behind += len(following)
    return keys


def _sessions(
    course: Course, keys: list[int], edits: Mapping[int, Edited] | None
) -> Iterator[tuple[int, str | None]]:
    """Yield letters with the sessions that they are sent in, GONE for those that are no letters any more."""
    places = {key: dead_key(key, subqueue_at(course.record.subqueue)) for key in keys}
    sessions = sessions_of(course.tx, places.values())
    for key, place in places.items():
        new = None if edits is None else edits.get(key)
        moved = isinstance(new, NewMessage) and place in sessions
        yield key, new.session_id if isinstance(new, NewMessage) and moved else sessions.get(place, GONE)


def _first_of_unit(course: Course, bottom: int, top: int) -> int:
    """Return the place of the first letter that was sent as one unit with those between two places."""
    unit: str | None = None
    for start in range(bottom, top, _MOST_TOGETHER):
        for _, session_id in _sent_sessions(course, start, min(start + _MOST_TOGETHER, top)):
            if unit is None and session_id is not GONE:
                unit = session_id
                break
        if unit is not None:
            break
    first = bottom
    while unit is not None and first:
        start = max(0, first - _MOST_TOGETHER)
        for place, session_id in reversed(_sent_sessions(course, start, first)):
            if session_id not in (unit, GONE):
                return bottom
            bottom = place
        first = start
    return bottom


def _sent_sessions(course: Course, first: int, last: int) -> list[tuple[int, str | None]]:
    """Return the places of letters with the sessions that they were sent in, GONE for those that left."""
    keys, tx = course.members(first, last), course.tx
    sent = {item.key: item.new_key for item in tx.repairs.items(course.record.repair, keys)}
    sessions = sessions_of(tx, [key for key in sent.values() if key is not None])
    return [
        (place, GONE if (new_key := sent.get(key)) is None else sessions.get(new_key, GONE))
        for place, key in enumerate(keys, first)
    ]


def obstacle(course: Course) -> str | None:
    """Return why nothing can be sent at present, whatever the letter is."""
    tx, queue = course.tx, course.queue
    if queue is None:
        return f"the queue {course.record.path!r} was deleted"
    subqueue = subqueue_at(course.record.subqueue)
    target: QueueRecord = queue
    if course.plan.to is not None:
        try:
            target = check_target(tx, EntityPath(queue.path, subqueue), EntityPath.parse(course.plan.to))
        except LazarettoError as error:
            return str(error)
    if course.plan.order != BY_SESSION and takes_units(tx, target):
        return f"sessions of {target.path!r} are units since it was planned: cancel it, and plan it anew"
    if not target.status.takes:
        return f"{target.path!r} is {target.status.value}"
    if target.halted_by is not None:
        return f"{target.path!r} is halted by a poison message"
    breaker = breaker_of(target)
    if breaker is not None and breaker.status in (BreakerStatus.OPEN, BreakerStatus.HELD_OPEN):
        return f"the breaker of {target.path!r} is open: {breaker.error or 'an operator has opened it'}"
    return None
