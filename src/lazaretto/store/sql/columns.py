"""The columns of messages, as queries name them: those of a message's row, each of which is declared once."""

from __future__ import annotations

import operator
import typing
from typing import Final

from lazaretto.store.records.messages import MessageRow

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


def _listed(template: str, columns: tuple[str, ...]) -> str:
    return ", ".join(template.format(name=name) for name in columns)


#: Parts of queries.
PARTS: Final = {
    "row_columns": _listed("{name}", _ROW),
    "past_columns": _listed("{name}", WITH_PAST),
    "past_values": _listed(":{name}", WITH_PAST),
    "standing_columns": _listed("{name}", STANDING),
    "standing_values": ", ".join(f"[as_type {name}, {_type_of(name)}]" for name in STANDING),
    "set_standing": _listed("{name} = :{name}", STANDING),
    "set_new_standing": _listed("{name} = n.{name}", STANDING),
    "no_lock": _listed("{name} = NULL", _LOCK),
}

#: Those values of a row.
with_past = operator.attrgetter(*WITH_PAST)
standing = operator.attrgetter(*STANDING)
