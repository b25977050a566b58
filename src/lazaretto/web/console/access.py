"""Access: what whoever looks may do; and for administrators who else may do what."""

from __future__ import annotations

from typing import Any

from lazaretto.model.grants import ROLES, may
from lazaretto.model.permissions import Permission
from lazaretto.web.console.visit import Page, Visit


async def show(visit: Visit) -> Page:
    """Show who may do what."""
    # A server that changes nothing still shows it.
    allowed = may(visit.who.grants, Permission.ADMINISTER, None)
    values: dict[str, Any] = {"roles": ROLES, "permissions": list(Permission), "allowed": allowed}
    if allowed:
        broker = visit.broker
        values |= {
            "people": await broker.people(), "tokens": await broker.tokens(),
            "sessions": await broker.browser_sessions(), "four_eyes": await broker.four_eyes(),
            "wish": await broker.four_eyes_wish(),
        }  # fmt: skip
    return Page("access.html", "access", "Access", values)
