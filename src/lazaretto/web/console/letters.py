"""One dead letter: what it is, what was tried, and what becomes of it; and its edit."""

from __future__ import annotations

from lazaretto.edits.difference import differences
from lazaretto.edits.edit import Changed, Refused
from lazaretto.engine.messages.prepare import prepare
from lazaretto.errors import LazarettoError
from lazaretto.model.permissions import Permission
from lazaretto.web.allowed import refuse_functions
from lazaretto.web.console.bodies import show_body
from lazaretto.web.console.render import address
from lazaretto.web.console.visit import Page, Visit, moved_to
from lazaretto.web.viewed import check_edit

#: Moments of a message's life that a page shows, the last ones.
_MOMENTS = 100
#: Lines of a difference.
_LINES = 60


async def show(visit: Visit) -> Page:
    """Show a dead letter with its history, even after its resolution."""
    queue, number = visit.queue(), visit.number()
    visit.require(Permission.READ_BODIES, queue)
    letter = await visit.broker.dead_letter(queue, number)
    history = await visit.broker.message_history(queue, number)
    moments = history.moments()
    body = None if letter.message is None else show_body(letter.message.body)
    values = {
        "queue": queue, "letter": letter, "body": body, "history": history, "moments": moments[-_MOMENTS:],
        "hidden": max(0, len(moments) - _MOMENTS),
    }  # fmt: skip
    return Page("letter.html", "failures", f"Dead letter {number:,} of {queue}", values)


async def show_message(visit: Visit) -> Page:
    """Show any message: as it stands in its queue, and its life."""
    queue, number = visit.queue(), visit.number()
    visit.require(Permission.READ_BODIES, queue)
    history = await visit.broker.message_history(queue, number)
    if history.asked.state == "dead_lettered" and not history.asked.subqueue.startswith("$T"):
        return moved_to(address(visit.base, f"/dead-letters/{number}", queue=queue))
    moments, message = history.moments(), history.message
    values = {
        "queue": queue, "number": number, "history": history, "message": message,
        "body": None if message is None else show_body(message.body),
        "moments": moments[-_MOMENTS:], "hidden": max(0, len(moments) - _MOMENTS),
    }  # fmt: skip
    return Page("message.html", "queues", f"Message {number:,} of {queue}", values)


async def edit(visit: Visit) -> Page:
    """Show what an edit would change of a dead letter, and plan a repair of it."""
    queue, number = visit.queue(), visit.number()
    visit.require(Permission.READ_BODIES, queue)
    letter = await visit.broker.dead_letter(queue, number)
    text, lines, wrong = visit.text("edit"), list[str](), None
    if text is not None and letter.message is not None:
        try:
            given = refuse_functions(text)
            await check_edit(visit.broker, queue, text)
            found = given.apply(letter.message)
            if isinstance(found, Refused):
                wrong = f"the edit refuses it: {found.why}"
            elif isinstance(found, Changed):
                prepare(found.message)
                lines = differences(letter.message, found.message, _LINES)
        except LazarettoError as error:
            wrong = str(error)
    body = None if letter.message is None else show_body(letter.message.body)
    values = {
        "queue": queue, "letter": letter, "body": body, "edit": text, "lines": lines, "wrong": wrong
    }  # fmt: skip
    return Page("edit.html", "failures", f"Edit {number:,} of {queue}", values)
