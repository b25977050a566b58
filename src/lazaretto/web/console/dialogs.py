"""Dialogs: conversations with why they wait, and both ends of one."""

from __future__ import annotations

from lazaretto.model.permissions import Permission
from lazaretto.web.console.visit import Page, Visit

_CONVERSATIONS, _ENTRIES = 50, 200


async def list_conversations(visit: Visit) -> Page:
    """Show conversations: those that a poison message holds first."""
    visit.require(Permission.SEE, None)
    dialogs, queue, after = visit.broker.dialogs, visit.text("queue"), visit.text("after") or ""
    state = visit.text("state")
    every = dialogs.conversations(queue=queue, state=state, after=after, limit=_CONVERSATIONS)
    page = [one async for one in every]
    waiting = []
    if not after:
        stopped = dialogs.conversations(queue=queue, state=state, held=True, limit=_CONVERSATIONS)
        waiting = [one async for one in stopped]
    values = {
        "conversations": page, "held": waiting, "queue": queue, "state": state,
        "following": page[-1].conversation if len(page) == _CONVERSATIONS else None,
    }  # fmt: skip
    return Page("dialogs.html", "queues", "Dialogs", values)


async def show(visit: Visit) -> Page:
    """Show a dialog: its ends beside each other, what happened in it, and what can be done."""
    visit.require(Permission.SEE, None)
    dialog = visit.request.path_params["dialog"]
    ends = await visit.broker.dialogs.dialog(dialog)
    entries = await visit.broker.dialogs.timeline(dialog)
    values = {
        "dialog": ends[0].dialog, "ends": ends, "entries": entries[-_ENTRIES:],
        "hidden": max(0, len(entries) - _ENTRIES),
    }  # fmt: skip
    return Page("dialog.html", "queues", f"Dialog {ends[0].dialog[:8]}", values)
