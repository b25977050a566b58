"""The words of all queries: columns of messages, a message's states, and the arithmetic of keys."""

from __future__ import annotations

import operator
import typing
from collections.abc import Iterable, Mapping
from typing import Final

from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import (
    LAST_QUEUE,
    PARTITION_SEQUENCE_BITS,
    QUEUE_BITS,
    QUEUE_ID_BITS,
    SEQUENCE_BITS,
    SET_ASIDE,
    SUBQUEUE_BITS,
    place_of,
)
from lazaretto.model.messages import SENT_COLUMNS, PeekedMessage
from lazaretto.store.records.claims import MOST_SHARDS
from lazaretto.store.records.messages import (
    DEFERRED,
    DELAYED,
    FRESH,
    LOCKED,
    READY,
    SCHEDULED,
    SUSPECT,
    MessageRow,
)
from lazaretto.store.sql.query_files import Words

#: What is read of a message: all but its body.
_ROW: Final = MessageRow.__struct_fields__
#: What a lock says. A new standing has none.
_LOCK: Final = ("lock_token", "locked_at", "locked_by")
#: What is written of a message that has a past, but for its body and where that is.
WITH_PAST: Final = tuple(name for name in _ROW if name not in (*_LOCK, "body_id"))
#: What changes of a message that is there.
STANDING: Final = tuple(name for name in WITH_PAST if name not in ("key", "message_id"))

_TYPES: Final = {int: "bigint", str: "text", bytes: "bytea"}


def _type_of(column: str) -> str:
    hint = typing.get_type_hints(MessageRow)[column]
    return next(_TYPES[part] for part in typing.get_args(hint) or (hint,) if part in _TYPES)


#: What is written of a new message behind its key and the time, and the type of each.
NEW: Final[Mapping[str, str]] = {
    "state": "bigint", "due": "bigint", "expires": "bigint", "message_id": "text", "session_id": "text",
    "headers": "bytea", "body_id": "bigint", "body": "bytea",
    **{name: _type_of(name) for name in SENT_COLUMNS},
}  # fmt: skip

#: What of a peeked message stands elsewhere, or under another name.
_ELSEWHERE: Final = {
    "body": "[body]",
    "encoded_headers": "m.headers",
    "recorded_reason": "d.reason",
    "recorded_description": "d.description",
}
#: What locks say of it, behind all else that is read of it.
_LOCKED: Final = ("deliveries", "state", "locked_until_micros")
_SHOWN: Final = tuple(
    name for name in PeekedMessage.__struct_fields__ if name not in ("decoded", "error", *_LOCKED)
)
PEEKED: Final = (*_SHOWN, *_LOCKED)

#: Those values of a row.
with_past = operator.attrgetter(*WITH_PAST)
standing = operator.attrgetter(*STANDING)

_CONSTANTS = {
    "FRESH": FRESH,
    "READY": READY,
    "LOCKED": LOCKED,
    "DEFERRED": DEFERRED,
    "SCHEDULED": SCHEDULED,
    "DELAYED": DELAYED,
    "SUSPECT": SUSPECT,
    "DEAD_LETTER": place_of(Subqueue.DEAD_LETTER),
    "TRANSFER_DEAD_LETTER": place_of(Subqueue.TRANSFER_DEAD_LETTER),
    "SET_ASIDE": SET_ASIDE,
    "MOST_SHARDS": MOST_SHARDS,
}
_SUBQUEUE_MASK = (1 << SUBQUEUE_BITS) - 1

#: What SQL says where Python says the functions of the module keys. An index is on `queue_of`.
_KEYS = {
    "first_lane": f"({{0}}::bigint << {QUEUE_ID_BITS})",
    "queue_of_lane": f"{{0}} & {LAST_QUEUE}",
    "queue_of": f"{{0}} >> {QUEUE_BITS}",
    "place_of": f"({{0}} >> {SEQUENCE_BITS} & {_SUBQUEUE_MASK})",
    "main_key": f"{{0}} & ~(CAST({_SUBQUEUE_MASK} AS BIGINT) << {SEQUENCE_BITS})",
    "dead_key": f"{{0}} | ({{1}} << {SEQUENCE_BITS})",
    "lower_bound": f"({{0}} << {QUEUE_BITS})",
    "partition_bound": f"(({{0}} << {QUEUE_BITS}) + (CAST({{1}} AS BIGINT) << {PARTITION_SEQUENCE_BITS}))",
    "place_in": f"({{0}} << {SUBQUEUE_BITS} | {{1}})",
    "subqueue_bound": f"(({{0}} << {SUBQUEUE_BITS} | {{1}}) << {SEQUENCE_BITS})",
}


def _listed(template: str, columns: Iterable[str]) -> str:
    return ", ".join(template.format(name=name) for name in columns)


#: What of a row a lock on a range around it, `r`, says otherwise.
_BY_RANGE: Final = {
    "state": "CASE WHEN r.until IS NULL THEN m.state ELSE {LOCKED} END",
    "due": "CASE WHEN r.until IS NULL THEN m.due ELSE r.until END",
    "lock_token": "coalesce(r.token, m.lock_token)",
    "locked_at": "coalesce(r.locked_at, m.locked_at)",
    "locked_by": "coalesce(r.locked_by, m.locked_by)",
    "deliveries": "m.deliveries + (r.until IS NOT NULL)::int",
}

#: Parts of queries.
PARTS: Final = {
    "row_columns": _listed("{name}", _ROW),
    "locked_columns": ", ".join(f"{_BY_RANGE.get(name, f'm.{name}')} AS {name}" for name in _ROW),
    "past_columns": _listed("{name}", WITH_PAST),
    "past_values": _listed(":{name}", WITH_PAST),
    "standing_columns": _listed("{name}", STANDING),
    "standing_values": ", ".join(f"[as_type {name}, {_type_of(name)}]" for name in STANDING),
    "set_standing": _listed("{name} = :{name}", STANDING),
    "set_new_standing": _listed("{name} = n.{name}", STANDING),
    "no_lock": _listed("{name} = NULL", _LOCK),
    "new_columns": _listed("{name}", NEW),
    "new_values": _listed(":{name}", NEW),
    "new_typed": ", ".join(f":{name}::{kind}" for name, kind in NEW.items()),
    "new_arrays": ", ".join(f":{name}::{kind}[]" for name, kind in NEW.items()),
    "peeked_columns": ", ".join(_ELSEWHERE.get(name, f"m.{name}") for name in _SHOWN),
}


def words(of_database: Mapping[str, str]) -> Words:
    """Return the words of a database's queries: its own, and those of all."""
    return Words({**_KEYS, **of_database}, _CONSTANTS, PARTS)
