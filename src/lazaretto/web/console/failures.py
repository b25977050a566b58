"""Failures by cause, the repairs that send their letters back, and letters that were set aside."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from lazaretto.aio import AsyncRepair
from lazaretto.engine.outcome.causes import MOST_MARKS, Cause, marks_of
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.errors import InvalidOption, LazarettoError, MessageNotFound
from lazaretto.model.causes import MARK, TimeMark, mark_before
from lazaretto.model.grants import Permission
from lazaretto.model.messages import Attempt, DeadLetter
from lazaretto.model.repairs import Phase, RepairedLetter, RepairStatus
from lazaretto.web.console.render import address, shown_text
from lazaretto.web.console.visit import Page, Visit, moved_to

#: Seconds to find out what the messages of causes share, once somebody asks.
_EXPLAINING = 5.0
#: Queues whose causes are told together, and how many places in the code are told.
_QUEUES, _PLACES = 20, 50
#: Messages on the page of a cause.
_LETTERS_OF_CAUSE = 20

#: Letters whose fate is looked at before a repair begins, and of which a page tells.
_LOOKED_AT, _LETTERS_OF_REPAIR = 200, 20

_LETTERS_SET_ASIDE = 25


class FailingPlace(NamedTuple):
    """A place in the code, or a text of errors, with the causes of queues that fail there."""

    name: str
    text: str
    site: str | None
    letters: int
    causes: tuple[tuple[str, Cause], ...]


class FailedAgain(NamedTuple):
    """A letter that failed again: with the error that it had, and as the letter that it is now."""

    before: DeadLetter
    after: DeadLetter | None
    queue: str


async def list_causes(visit: Visit) -> Page:
    """Show the causes of a queue's dead letters, or the queues that have some."""
    queue = visit.text("queue")
    if queue is None:
        visit.require(Permission.SEE, None)
        status = await visit.broker.status(limit=200)
        queues = [one for one in status.queues if one.dead_letters]
        queues.sort(key=lambda one: -one.dead_letters)
        causes = [
            (one.path, cause)
            for one in queues[:_QUEUES]
            for cause in (await visit.broker.triage(one.path)).causes
        ]
        values = {"queues": queues, "status": status, "places": _places_of(causes)}
        return Page("failing_queues.html", "failures", "Failures", values)
    visit.require(Permission.SEE, queue)
    over = visit.text("over") is not None
    if visit.text("explain") is not None:
        visit.require(Permission.READ_BODIES, queue)
        # What is found is kept, so the page itself need not look again.
        await visit.broker.triage(queue, explain_for=_EXPLAINING)
        return moved_to(address(visit.base, "/failures", queue=queue))
    triage = await visit.broker.triage(queue, over=over)
    marks = await _marks(visit)
    values = {
        "queue": queue, "triage": triage, "over": over,
        "after": {cause.number: mark_before(marks, cause.first) for cause in triage.causes},
    }  # fmt: skip
    return Page("failures.html", "failures", f"Failures of {queue}", values)


def _places_of(causes: Sequence[tuple[str, Cause]]) -> list[FailingPlace]:
    """Return the causes of several queues by the place in the code, the one with most letters first."""
    places: dict[tuple[str | None, ...], list[tuple[str, Cause]]] = {}
    for queue, cause in causes:
        # Without a place in the code, only the same text is the same failure.
        key = cause.error_type, cause.reason, cause.site, None if cause.site else cause.template
        places.setdefault(key, []).append((queue, cause))
    listed = []
    for group in places.values():
        _, first = max(group, key=lambda one: one[1].letters)
        name = first.error_type or first.reason or "no error"
        letters = sum(cause.letters for _, cause in group)
        listed.append(FailingPlace(name, shown_text(first), first.site, letters, tuple(group)))
    return sorted(listed, key=lambda one: -one.letters)[:_PLACES]


async def _marks(visit: Visit) -> list[TimeMark]:
    """Return the last moments that somebody has marked."""
    return marks_of(await visit.broker.audit(action=MARK, limit=MOST_MARKS))


async def show_cause(visit: Visit) -> Page:
    """Show one cause: how bad, why, an example, and what to do."""
    queue, number = visit.queue(), visit.number()
    visit.require(Permission.READ_BODIES, queue)
    broker = visit.broker
    cause = await broker.cause(queue, number)
    if cause.to_explain:
        await broker.explain(queue, DeadLetterFilter(cause=number))
        cause = await broker.cause(queue, number)
    letters = await broker.dead_letter_page(
        queue, DeadLetterFilter(cause=number), limit=_LETTERS_OF_CAUSE, cursor=visit.text("cursor")
    )
    triage, marks = await broker.triage(queue), await _marks(visit)
    values = {
        "queue": queue, "cause": cause, "letters": letters, "triage": triage,
        "entity": await broker.queue(queue), "breaker": await broker.breaker(queue),
        "attempt": await _example(visit, queue, cause.example), "marks": marks,
        "days": await visit.visits.cause_days(queue, number), "after": mark_before(marks, cause.first),
    }  # fmt: skip
    what = cause.error_type or cause.reason or f"cause {number}"
    return Page("cause.html", "failures", f"{what} in {queue}", values)


async def _example(visit: Visit, queue: str, number: int | None) -> Attempt | None:
    """Return the last failed attempt of an example, with its stack."""
    if number is None:
        return None
    try:
        await visit.hold(queue, number)
        letter = await visit.broker.dead_letter(queue, number)
    except LazarettoError:
        # It was resolved a moment ago.
        return None
    return next((one for one in reversed(letter.attempts) if one.error_type), None)


async def list_repairs(visit: Visit) -> Page:
    """Show repairs, the newest first."""
    queue = visit.text("queue")
    visit.require(Permission.SEE, queue)
    repairs = await visit.broker.repairs(queue, limit=100)
    return Page("repairs.html", "repairs", "Repairs", {"repairs": repairs, "queue": queue})


async def _failed_again(visit: Visit, repair: AsyncRepair, status: RepairStatus) -> list[FailedAgain]:
    """Return the first letters that failed again, of those that whoever asks may see."""
    letters: list[FailedAgain] = []
    if not status.counts.failed or not visit.may(Permission.READ_BODIES, status.queue):
        return letters
    async for one in repair.letters(failed=True):
        before = await _without_message(visit, status.queue, one.sequence_number)
        after, queue = None, one.queue or status.queue
        if one.sent_as is not None and visit.may(Permission.READ_BODIES, queue):
            with contextlib.suppress(MessageNotFound):
                after = await _without_message(visit, queue, one.sent_as)
        letters.append(FailedAgain(before, after, queue))
        if len(letters) == _LETTERS_OF_REPAIR:
            break
    return letters


async def _without_message(visit: Visit, queue: str, number: int) -> DeadLetter:
    """Return a dead letter without its message, which can be large."""
    await visit.hold(queue, number)
    return dataclasses.replace(await visit.broker.dead_letter(queue, number), message=None)


async def show_repair(visit: Visit) -> Page:
    """Show how a repair stands, and what can be done with it now."""
    repair = await visit.broker.repair(visit.request.path_params["name"])
    status = await repair.status()
    visit.require(Permission.SEE, status.queue)
    preview = None
    if status.phase is Phase.PLANNED and visit.may(Permission.READ_BODIES, status.queue):
        preview = await repair.preview(letters=_LOOKED_AT)
    skipped: list[RepairedLetter] = []
    if status.counts.skipped:
        async for letter in repair.letters(skipped=True):
            skipped.append(letter)
            if len(skipped) == _LETTERS_OF_REPAIR:
                break
    values = {
        "repair": status, "preview": preview, "skipped": skipped,
        "failed": await _failed_again(visit, repair, status),
    }  # fmt: skip
    return Page("repair.html", "repairs", f"Repair {status.name}", values)


async def show_set_aside(visit: Visit) -> Page:
    """Show what was set aside of a queue, the lowest number first."""
    queue, after = visit.queue(), visit.text("after") or "0"
    visit.require(Permission.READ_BODIES, queue)
    if not (after.isascii() and after.isdigit() and len(after) < 14):
        raise InvalidOption("expected after to be a sequence number")
    numbers = await visit.broker.purged(queue)
    coming = [number for number in numbers if number > int(after)]
    letters: list[DeadLetter] = []
    for number in coming[:_LETTERS_SET_ASIDE]:
        await visit.hold(queue, number)
        try:
            letter = await visit.broker.dead_letter(queue, number)
        except MessageNotFound:
            # Its week was over a moment ago.
            continue
        letters.append(dataclasses.replace(letter, message=None))
    values = {
        "queue": queue, "letters": letters, "count": len(numbers),
        "following": coming[_LETTERS_SET_ASIDE - 1] if len(coming) > _LETTERS_SET_ASIDE else None,
    }  # fmt: skip
    return Page("set_aside.html", "failures", f"Set aside of {queue}", values)
