"""Views of a store for batch reads, in columns. Reading changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.clock import to_micros
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.keys import lower_bound, upper_bound
from lazaretto.model.policy import Outcome
from lazaretto.spark.columns import BYTES, LONG, MESSAGE, NUMBER, TEXT, TIME, Column
from lazaretto.store.records.messages import LOCKED, STATES

#: Whether a claim locks a message by a range, and whether any range on a server locks it.
_CLAIMED = (
    "((m.state = 0 AND m.due IS NULL AND (SELECT c.first FROM lazaretto_claimed_ranges c "
    "WHERE c.last >= m.key ORDER BY c.last LIMIT 1) <= m.key) IS TRUE)"
)
_RANGED = (
    f"({_CLAIMED} OR m.state = 0 AND ("  # noqa: S608 - made of constants
    "SELECT r.first <= m.key AND (m.expires IS NULL OR m.expires > r.locked_at) "
    "FROM lazaretto_range_locks r WHERE r.last >= m.key ORDER BY r.last LIMIT 1) IS TRUE)"
)
_STATE = "CASE m.state " + " ".join(f"WHEN {n} THEN '{s.value}'" for n, s in enumerate(STATES)) + " END"
#: An attempt's outcome by its name.
_EXPIRED = Outcome.LOCK_EXPIRED
_OUTCOME = f"CASE m.outcome WHEN '{_EXPIRED.stored}' THEN '{_EXPIRED.value}' ELSE m.outcome END"


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """A query, with its columns. `ends`: the one of the lowest and the highest key, which divide a read."""

    query: str
    columns: Mapping[str, Column]
    ends: str


def _blob(sql: str, served: str | None = None) -> Column:
    # What users made may be no text, whatever a file calls it.
    return Column(BYTES, f"CAST({sql} AS BLOB)", served or f"convert_to({sql}, 'UTF8')")


def _state(is_locked: str) -> str:
    return f"CASE WHEN {is_locked} THEN '{STATES[LOCKED].value}' ELSE {_STATE} END"


_OF_MESSAGE = {
    "sequence_number": MESSAGE["sequence_number"],
    "message_id": Column(TEXT, "m.message_id"),
    "session_id": MESSAGE["session_id"],
    "state": Column(TEXT, _state(_CLAIMED), _state(_RANGED)),
    "enqueued_time": MESSAGE["enqueued_time"],
    "expires_at": MESSAGE["expires_at"],
    "deliveries": Column(LONG, f"m.deliveries + {_CLAIMED}", f"m.deliveries + {_RANGED}::int"),
    "delivery_count": Column(LONG, "m.delivery_count"),
    "cycle": Column(LONG, "m.cycle"),
    "generation": Column(LONG, "m.generation"),
    "headers": _blob(MESSAGE["headers"].sql, MESSAGE["headers"].sql),
    "body": _blob(MESSAGE["body"].sql, MESSAGE["body"].sql),
}

VIEWS = {
    "messages": View("messages_view", _OF_MESSAGE, "messages_ends"),
    "dead_letters": View(
        "dead_letters_view",
        {
            **_OF_MESSAGE,
            "reason": Column(TEXT, "d.reason"),
            "description": _blob("d.description"),
            "error_type": Column(TEXT, "d.error_type"),
            "error_message": _blob("d.error_message"),
            "dead_lettered_time": Column(TIME, "d.dead_lettered"),
        },
        "messages_ends",
    ),
    "attempts": View(
        "attempts_view",
        {
            "sequence_number": Column(LONG, NUMBER),
            "number": Column(LONG, "m.number"),
            "started": Column(TIME, "m.started"),
            "ended": Column(TIME, "m.ended"),
            "worker": Column(TEXT, "m.worker"),
            "outcome": Column(TEXT, _OUTCOME),
            "error_type": Column(TEXT, "m.error_type"),
            "error_message": _blob("m.error_message"),
            "stack": _blob("m.stack"),
        },
        "attempts_ends",
    ),
    "events": View(
        "events_view",
        {
            "position": Column(LONG, "m.position"),
            "time": Column(TIME, "m.time"),
            "kind": Column(TEXT, "m.kind"),
            "queue": Column(TEXT, "m.queue"),
            "sequence_number": Column(LONG, "m.sequence_number"),
            "detail": _blob("m.detail"),
        },
        "events_ends",
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
    return lower_bound(queue_id, subqueue), upper_bound(queue_id, subqueue)


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A filter in SQL, on a column's expression, with its parameters."""

    sql: str
    parameters: tuple[Any, ...]


_OPERATORS = {
    "EqualTo": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip


def condition(view: View, filter_: Any, url: str) -> Condition | None:
    """Return one of Spark's filters in SQL for the store at a URL, None if it is for Spark to apply."""
    kind = type(filter_).__name__
    name = ".".join(getattr(filter_, "attribute", ()))
    if name not in view.columns or pa.types.is_binary(view.columns[name].kind):
        return None
    sql = view.columns[name].at(url)
    if kind in ("IsNull", "IsNotNull"):
        return Condition(f"({sql}) IS {'NOT ' if kind == 'IsNotNull' else ''}NULL", ())
    try:
        if kind == "In":
            values = tuple(_value(one) for one in filter_.value)
            return Condition(f"({sql}) IN ({', '.join('?' * len(values))})", values) if values else None
        if kind in _OPERATORS:
            return Condition(f"({sql}) {_OPERATORS[kind]} ?", (_value(filter_.value),))
    except TypeError:
        return None
    return None


def _value(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str | datetime):
        raise TypeError
    if isinstance(value, datetime):
        return to_micros(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
    return value
