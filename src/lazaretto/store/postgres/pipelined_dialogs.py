"""Receives from dialogs on PostgreSQL: the next group and its messages in one round trip."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from lazaretto.store.postgres.pipelined_context import PgContext
from lazaretto.store.records.dialogs import NextGroup, OpenStream
from lazaretto.store.sql.dialog_tables import DialogTables, in_order

#: Where the message begins in what next_group finds, behind its stream.
_FIRST_OF_MESSAGE = 8


class PgDialogTables(DialogTables):
    """The part of a PostgreSQL transaction for dialogs."""

    def __init__(self, context: PgContext) -> None:
        super().__init__(context)
        self._connection = context.connection

    def next_group(
        self, queue_id: int, ranges: Sequence[tuple[str, str]], token: int = 0, limit: int = 0
    ) -> Callable[[], NextGroup | None]:
        if not self._connection.sends_ahead:
            return super().next_group(queue_id, ranges, token, limit)
        # All in one question. Most often the first range has one; the others are asked about if it has not.
        values = {
            "queue_id": queue_id,
            "now": self._context.now,
            "token": token,
            "handle": None,
            "limit": limit,
        }
        asked = (self._context.run("next_group", {**values, "after": a, "end": e}) for a, e in ranges)
        sent = list(itertools.islice(asked, 1))

        def look() -> NextGroup | None:
            rows = next(
                (some for some in (one.fetchall() for one in itertools.chain(sent, asked)) if some), None
            )
            if rows is None:
                return None
            found_by, *stream = rows[0][:_FIRST_OF_MESSAGE]
            messages = (row[_FIRST_OF_MESSAGE:] for row in rows if row[_FIRST_OF_MESSAGE] is not None)
            return NextGroup(found_by, OpenStream(*stream), in_order(messages))

        return look
