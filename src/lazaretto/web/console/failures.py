"""Failures by cause: the causes of a queue, and one of them."""

from __future__ import annotations

from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.errors import LazarettoError
from lazaretto.model.messages import Attempt
from lazaretto.model.permissions import Permission
from lazaretto.web.console.render import address
from lazaretto.web.console.visit import Page, Visit, moved_to

#: Seconds to find out what the messages of causes share, once somebody asks.
_EXPLAINING = 5.0
#: Messages on the page of a cause.
_LETTERS = 20


async def list_causes(visit: Visit) -> Page:
    """Show the causes of a queue's dead letters, or the queues that have some."""
    queue = visit.text("queue")
    if queue is None:
        visit.require(Permission.SEE, None)
        status = await visit.broker.status(limit=200)
        found = [one for one in status.queues if one.dead_letters]
        found.sort(key=lambda one: -one.dead_letters)
        return Page("failing_queues.html", "failures", "Failures", {"queues": found, "status": status})
    visit.require(Permission.SEE, queue)
    over = visit.text("over") is not None
    if visit.text("explain") is not None:
        visit.require(Permission.READ_BODIES, queue)
        # What is found is kept, so the page itself need not look again.
        await visit.broker.triage(queue, explain_for=_EXPLAINING)
        return moved_to(address(visit.base, "/failures", queue=queue))
    triage = await visit.broker.triage(queue, over=over)
    return Page(
        "failures.html", "failures", f"Failures of {queue}", {"queue": queue, "triage": triage, "over": over}
    )


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
        queue, DeadLetterFilter(cause=number), limit=_LETTERS, cursor=visit.text("cursor")
    )
    triage = await broker.triage(queue)
    values = {
        "queue": queue, "cause": cause, "letters": letters, "triage": triage,
        "entity": await broker.queue(queue), "breaker": await broker.breaker(queue),
        "attempt": await _example(visit, queue, cause.example),
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
