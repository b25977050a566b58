"""Bodies in SQL: those that are too large to stand with their message, or that several messages have."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lazaretto.store.sqlite.rows import SQL, Inserts, Memory, ids

_BODIES = Inserts("insert_bodies")
_USES = Inserts("add_uses")


class BodyTables:
    """What a transaction does with bodies."""

    _x: Callable[..., sqlite3.Cursor]
    _memory: Memory

    def take_body_id(self) -> int:
        last = self._memory.last_body
        if last is None:
            (last,) = self._x(SQL["select_last_body"]).fetchone()
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
        _BODIES.run(self._x, values, len(bodies))

    def add_uses(self, uses: Mapping[int, int]) -> None:
        values: list[Any] = []
        for body_id, more in uses.items():
            # One that is not shared yet is used once.
            values += (body_id, 1 + more)
        _USES.run(self._x, values, len(uses))

    def delete_bodies(self, body_ids: Sequence[int]) -> None:
        if not body_ids:
            return
        gone = ids(body_ids)
        if self._x(SQL["count_down_uses"], (gone,)).rowcount:
            self._x(SQL["delete_unused_bodies"], (gone,))
            self._x(SQL["delete_uses"], (gone,))
        else:
            self._x(SQL["delete_bodies"], (gone,))
