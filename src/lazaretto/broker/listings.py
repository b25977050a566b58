"""Lists what is in a store a page at a time, however much there is."""

from __future__ import annotations

from contextlib import suppress

from lazaretto.broker.dead_letters import checked_filter
from lazaretto.engine.entities.overview import Status, read_rates, read_status
from lazaretto.engine.maintenance import look
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import ORDERS, DeadLetterPage, read_page
from lazaretto.errors import LazarettoError
from lazaretto.model.checks import GivenDuration, member, seconds, text, whole
from lazaretto.model.entities import LONGEST_PATH, EntityPath, dead_letter_path
from lazaretto.model.rates import KEPT, SPANS, Rate
from lazaretto.store.sql.store import Store

#: The most dead letters of a page.
_MOST_OF_PAGE = 1_000
#: The most characters of a cursor.
_LONGEST_CURSOR = 200


class ListingDesk:
    """Lists dead letters by pages, and how queues stand."""

    _store: Store

    def status(self, *, limit: int | None = 50, name_contains: str | None = None) -> Status:
        """Return how queues and subscriptions stand, those in trouble first, without counting messages.

        `limit`: at most so many; None: all. `name_contains`: those with this text in their path, without
        case.
        """
        most = None if limit is None else whole("limit", limit, 1, 1 << 30)
        part = "" if name_contains is None else text("name_contains", name_contains, LONGEST_PATH).lower()
        return look(self._store, lambda tx: read_status(tx, most, part))

    def rates(self, path: str | None = None, *, span: str = "minute", limit: int = 60) -> list[Rate]:
        """Return what happened to a queue's messages in the latest minutes or hours, oldest first.

        The last one is not over yet. `path`: None for all queues together, also those deleted since. `span`:
        "minute" (kept for a day) or "hour" (kept for 30 days). `limit`: how many. What other processes did
        in the last second or two may be missing. Raises EntityNotFound.
        """
        minutes = member("span", span, SPANS)
        most = whole("limit", limit, 1, KEPT[span])
        parsed = None if path is None else EntityPath.parse(path)
        with suppress(LazarettoError):
            # What cannot be written is missing; what was written is shown.
            self._store.write_rates()
        return look(self._store, lambda tx: read_rates(tx, parsed, minutes, most))

    def dead_letter_page(
        self,
        path: str,
        which: DeadLetterFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: str = "-number",
        budget: GivenDuration = 0.25,
    ) -> DeadLetterPage:
        """Return a page of a queue's pending dead letters, with the first 200 bytes of each body.

        `limit`: at most 1,000. `order`: "number" or "time" (of dead-lettering), ascending, or "-number",
        "-time", descending. `cursor`: the `next` or `previous` of another page with the same queue, filter
        and order. A filter by text, reason, error type or condition searches the queue for `budget` seconds;
        the page may then have less than `limit`, and its `next` continues the search.
        """
        parsed, filter_ = dead_letter_path(EntityPath.parse(path)), checked_filter(which)
        whole("limit", limit, 1, _MOST_OF_PAGE)
        if cursor is not None:
            text("cursor", cursor, _LONGEST_CURSOR)
        order_ = member("order", order, ORDERS)
        longest = seconds("budget", budget)
        return look(
            self._store,
            lambda tx: read_page(
                tx, parsed, filter_, limit=limit, cursor=cursor, order=order_, budget=longest
            ),
        )
