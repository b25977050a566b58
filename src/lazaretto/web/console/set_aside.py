"""Dead letters that were set aside, until they are restored or deleted."""

from __future__ import annotations

import dataclasses

from lazaretto.errors import InvalidOption, MessageNotFound
from lazaretto.model.messages import DeadLetter
from lazaretto.model.permissions import Permission
from lazaretto.web.console.visit import Page, Visit

_LETTERS = 25


async def show(visit: Visit) -> Page:
    """Show what was set aside of a queue, the lowest number first."""
    queue, after = visit.queue(), visit.text("after") or "0"
    visit.require(Permission.READ_BODIES, queue)
    if not (after.isascii() and after.isdigit() and len(after) < 14):
        raise InvalidOption("expected after to be a sequence number")
    numbers = await visit.broker.purged(queue)
    coming = [number for number in numbers if number > int(after)]
    letters: list[DeadLetter] = []
    for number in coming[:_LETTERS]:
        await visit.hold(queue, number)
        try:
            letter = await visit.broker.dead_letter(queue, number)
        except MessageNotFound:
            # Its week was over a moment ago.
            continue
        letters.append(dataclasses.replace(letter, message=None))
    values = {
        "queue": queue, "letters": letters, "count": len(numbers),
        "following": coming[_LETTERS - 1] if len(coming) > _LETTERS else None,
    }  # fmt: skip
    return Page("set_aside.html", "failures", f"Set aside of {queue}", values)
