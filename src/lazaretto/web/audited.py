"""The audit log as somebody may see it, entry by entry, also those of one repair alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from lazaretto.aio import AsyncBroker
from lazaretto.engine.log import AuditEntry
from lazaretto.model.checks import moment

#: Entries that are read at once.
_PAGE: Final = 500


async def audit_entries(
    broker: AsyncBroker, *, repair: str | None = None, before: int | None = None, **which: Any
) -> AsyncIterator[AuditEntry]:
    """Yield entries, the latest first. `repair`: only its own. `before`, `which`: as for `Broker.audit`.

    Raises RepairNotFound, and what `Broker.audit` raises.
    """
    if repair is not None:
        # All that was done with it was done on its queue, since it was planned.
        status = await (await broker.repair(repair)).status()
        since = which.get("since")
        moment("since", since)
        which |= {
            "queue": status.queue,
            "since": max(since or status.created, status.created),
            "repair": repair,
        }
    while True:
        found = await broker.audit(limit=_PAGE, before=before, **which)
        for entry in found:
            yield entry
        if len(found) < _PAGE:
            return
        before = found[-1].position
