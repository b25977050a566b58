"""Sessions of a queue: their messages, who holds them, their state, and what holds them back."""

from __future__ import annotations

from typing import NamedTuple

from lazaretto.errors import MessageNotFound
from lazaretto.model.descriptions import SessionDescription
from lazaretto.model.permissions import Permission
from lazaretto.web.console.bodies import ShownBody, show_body
from lazaretto.web.console.visit import Page, Visit
from lazaretto.web.viewed import hides

_SESSIONS = 50


class ListedSession(NamedTuple):
    """A session with its state, if whoever asks may read it."""

    session: SessionDescription
    state: ShownBody | None


async def show(visit: Visit) -> Page:
    """Show the sessions of a queue by name."""
    queue, after = visit.queue(), visit.text("after")
    visit.require(Permission.SEE, queue)
    names = await visit.broker.sessions(queue, limit=_SESSIONS, after=after)
    reads = visit.may(Permission.READ_BODIES, queue) and not await hides(visit.broker, queue)
    listed: list[ListedSession] = []
    for name in names:
        try:
            session = await visit.broker.session(queue, name)
        except MessageNotFound:
            # Its last message was completed a moment ago.
            continue
        state = await visit.visits.session_state(queue, name) if reads and session.has_state else None
        listed.append(ListedSession(session, None if state is None else show_body(state)))
    values = {
        "queue": queue, "sessions": listed, "reads": reads,
        "following": names[-1] if len(names) == _SESSIONS else None,
    }  # fmt: skip
    return Page("sessions.html", "queues", f"Sessions of {queue}", values)
