"""Bodies in SQL that are too large for their message's row, or that several messages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lazaretto.store.sql.statements import Statements


class BodyTables(Statements):
    """What a transaction does with bodies."""

    def take_body_id(self) -> int:
        last = self._memory.last_body
        if last is None:
            (last,) = self._run("select_last_body").fetchone()
        self._memory.last_body = last + 1
        return last + 1

    def insert_body(self, body: bytes) -> int:
        body_id = self.take_body_id()
        self.insert_bodies({body_id: body})
        return body_id

    def insert_bodies(self, bodies: Mapping[int, bytes]) -> None:
        values: list[Any] = []
        for pair in bodies.items():
            values += pair
        self._insert("insert_bodies", values, len(bodies))

    def add_uses(self, uses: Mapping[int, int]) -> None:
        values: list[Any] = []
        for body_id, more in uses.items():
            # One that is not shared yet is used once.
            values += (body_id, 1 + more)
        self._insert("add_uses", values, len(uses))

    def delete_bodies(self, body_ids: Sequence[int]) -> None:
        if not body_ids:
            return
        gone = self._ids(body_ids)
        if self._run("count_down_uses", (gone,)).rowcount:
            self._run("delete_unused_bodies", (gone,))
            self._run("delete_uses", (gone,))
        else:
            self._run("delete_bodies", (gone,))
