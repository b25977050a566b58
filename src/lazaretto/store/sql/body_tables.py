"""Bodies in SQL that are too large for their message's row, or that several messages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lazaretto.store.sql.commit_context import Part


class BodyTables(Part):
    """Operations on bodies within one commit."""

    def take_id(self) -> int:
        """Return a new id for a separately stored body."""
        last = self._context.memory.last_body
        if last is None:
            (last,) = self._context.run("select_last_body").fetchone()
        self._context.memory.last_body = last + 1
        return last + 1

    def insert_one(self, body: bytes) -> int:
        body_id = self.take_id()
        self.insert({body_id: body})
        return body_id

    def insert(self, bodies: Mapping[int, bytes]) -> None:
        """Store bodies separately, under their ids."""
        values: list[Any] = []
        for pair in bodies.items():
            values += pair
        self._context.insert("insert_bodies", values, len(bodies))

    def find(self, body_id: int) -> bytes | None:
        """Return a separately stored body, or None."""
        row = self._context.run("select_body_by_id", (body_id,)).fetchone()
        return None if row is None else bytes(row[0])

    def add_uses(self, uses: Mapping[int, int]) -> None:
        """Add to the number of further messages that share each body, by its id."""
        values: list[Any] = []
        for body_id, more in uses.items():
            # One that is not shared yet is used once.
            values += (body_id, 1 + more)
        self._context.insert("add_uses", values, len(uses))

    def delete(self, body_ids: Sequence[int]) -> None:
        """Remove separately stored bodies."""
        if not body_ids:
            return
        gone = self._context.ids(body_ids)
        if self._context.run("count_down_uses", (gone,)).rowcount:
            self._context.run("delete_unused_bodies", (gone,))
            self._context.run("delete_uses", (gone,))
        else:
            self._context.run("delete_bodies", (gone,))
