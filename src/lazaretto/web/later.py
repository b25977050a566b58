"""Reads what was done after an action, which may have taken it back."""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.aio import AsyncBroker
from lazaretto.commands.opposites import LATER
from lazaretto.engine.log import AuditEntry


async def later_than(broker: AsyncBroker, entries: Sequence[AuditEntry]) -> list[AuditEntry]:
    """Return the newest actions since the first of some entries, as `opposites` needs them."""
    return await broker.audit(since=entries[0].time, limit=LATER) if entries else []
