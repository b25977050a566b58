"""What a batch read shows: views of a store as it stands, in columns. Reading changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from lazaretto.clock import to_micros
from lazaretto.entities import EntityPath, Subqueue
from lazaretto.errors import InvalidOption
from lazaretto.keys import first_key, last_key
from lazaretto.options import shown
from lazaretto.store.queries import load_queries
from lazaretto.store.records import STATE_NAMES

SQL = load_queries("lazaretto.store.sqlite", "columns.sql")

_TIME = pa.timestamp("us", tz="UTC")
_NUMBER = "m.key & 4398046511103"
_BODY = "coalesce(m.body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id))"
_STATE = "CASE m.state " + " ".join(f"WHEN {n} THEN '{name}'" for n, name in enumerate(STATE_NAMES)) + " END"


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """A query with its columns: each its type, in Arrow's and in Spark's words, and its SQL.

    `ends`: the query of the lowest and the highest key, by which a read is divided.
    """

    sql: str
    columns: Mapping[str, tuple[pa.DataType, str, str]]
    ends: str

    @property
    def ddl(self) -> str:
        """The columns in Spark's words."""
        return ", ".join(f"{name} {kind}" for name, (_, kind, _) in self.columns.items())

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """Return these columns in Arrow's words."""
        return pa.schema([(name, self.columns[name][0]) for name in names])


def _long(sql: str) -> tuple[pa.DataType, str, str]:
    return pa.int64(), "bigint", sql


def _text(sql: str) -> tuple[pa.DataType, str, str]:
    return pa.string(), "string", sql


def _bytes(sql: str) -> tuple[pa.DataType, str, str]:
    # What users made may be no text, whatever the store calls it.
    return pa.binary(), "binary", f"CAST({sql} AS BLOB)"


def _time(sql: str) -> tuple[pa.DataType, str, str]:
    return _TIME, "timestamp", sql


_OF_MESSAGE = {
    "sequence_number": _long(_NUMBER),
    "message_id": _text("m.message_id"),
    "session_id": _text("m.session_id"),
    "state": _text(_STATE),
    "enqueued_time": _time("m.enqueued"),
    "expires_at": _time("m.expires"),
    "deliveries": _long("m.deliveries"),
    "delivery_count": _long("m.delivery_count"),
    "cycle": _long("m.cycle"),
    "generation": _long("m.generation"),
    "headers": _bytes("m.headers"),
    "body": _bytes(_BODY),
}

VIEWS = {
    "messages": View(SQL["messages_view"], _OF_MESSAGE, SQL["messages_ends"]),
    "dead_letters": View(
        SQL["dead_letters_view"],
        {
            **_OF_MESSAGE,
            "reason": _text("d.reason"),
            "description": _bytes("d.description"),
            "error_type": _text("d.error_type"),
            "error_message": _bytes("d.error_message"),
            "dead_lettered_time": _time("d.dead_lettered"),
        },
        SQL["messages_ends"],
    ),
    "attempts": View(
        SQL["attempts_view"],
        {
            "sequence_number": _long(_NUMBER),
            "number": _long("m.number"),
            "started": _time("m.started"),
            "ended": _time("m.ended"),
            "worker": _text("m.worker"),
            "outcome": _text("m.outcome"),
            "error_type": _text("m.error_type"),
            "error_message": _bytes("m.error_message"),
            "stack": _bytes("m.stack"),
        },
        SQL["attempts_ends"],
    ),
    "events": View(
        SQL["events_view"],
        {
            "position": _long("m.position"),
            "time": _time("m.time"),
            "kind": _text("m.kind"),
            "queue": _text("m.queue"),
            "sequence_number": _long("m.sequence_number"),
            "detail": _bytes("m.detail"),
        },
        SQL["events_ends"],
    ),
}


def bounds(view: str, queue_id: int, path: EntityPath) -> tuple[int, int]:
    """Return the keys between which a view's rows of a queue lie."""
    if view == "events":
        return 0, (1 << 63) - 1
    if path.subqueue not in (Subqueue.MAIN, Subqueue.DEAD_LETTER):
        raise InvalidOption(f"expected a queue or its dead-letter subqueue, got {shown(str(path))}")
    dead = view == "dead_letters" or (view == "messages" and path.subqueue is Subqueue.DEAD_LETTER)
    subqueue = Subqueue.DEAD_LETTER if dead else Subqueue.MAIN
    return first_key(queue_id, subqueue), last_key(queue_id, subqueue)


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A filter in SQL, on a column's expression, with its parameters."""

    sql: str
    parameters: tuple[Any, ...]


_OPERATORS = {
    "EqualTo": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip


def condition(view: View, found: Any) -> Condition | None:
    """Return one of Spark's filters in SQL, None if it is for Spark to apply."""
    kind = type(found).__name__
    name = ".".join(getattr(found, "attribute", ()))
    if name not in view.columns or pa.types.is_binary(view.columns[name][0]):
        return None
    sql = view.columns[name][2]
    if kind in ("IsNull", "IsNotNull"):
        return Condition(f"({sql}) IS {'NOT ' if kind == 'IsNotNull' else ''}NULL", ())
    try:
        if kind == "In":
            values = tuple(_value(one) for one in found.value)
            return Condition(f"({sql}) IN ({', '.join('?' * len(values))})", values) if values else None
        if kind in _OPERATORS:
            return Condition(f"({sql}) {_OPERATORS[kind]} ?", (_value(found.value),))
    except TypeError:
        return None
    return None


def _value(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str | datetime):
        raise TypeError
    if isinstance(value, datetime):
        return to_micros(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
    return value
