"""A column for each property asked for: what the option says, and how a property fits its column."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.headers import PropertyValue

_TYPES: Mapping[str, tuple[pa.DataType, tuple[type, ...]]] = {
    "string": (pa.string(), ()),
    "boolean": (pa.bool_(), (bool,)),
    "int": (pa.int32(), (int,)),
    "bigint": (pa.int64(), (int,)),
    "double": (pa.float64(), (int, float)),
    "binary": (pa.binary(), (bytes,)),
    "timestamp": (pa.timestamp("us", tz="UTC"), (datetime,)),
}
_CLASSES = dict(_TYPES.values())
_ONE = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s,:`]+))[\s:]+(\w+)\s*(?:,|$)")


def property_columns(text: str, taken: Collection[str] = ()) -> dict[str, pa.DataType]:
    """Return the columns that `region string, tenant bigint` asks for. Raises InvalidOption."""
    columns: dict[str, pa.DataType] = {}
    place = 0
    while place < len(text):
        one = _ONE.match(text, place)
        if one is None or one[3].lower() not in _TYPES:
            raise InvalidOption(
                f"expected properties to be names with types, as in 'region string, tenant bigint' (types: "
                f"{', '.join(_TYPES)}), got {shown(text)}"
            )
        name = one[1].replace("``", "`") if one[1] else one[2]
        if name in taken or name in columns:
            raise InvalidOption(f"a property cannot be a column {name!r}: there is one already")
        columns[name] = _TYPES[one[3].lower()][0]
        place = one.end()
    return columns


def fitting(kind: pa.DataType) -> Callable[[PropertyValue], Any]:
    """Return a function that gives a property as a column has it; None where it does not fit."""
    if pa.types.is_string(kind):
        return _text
    classes = _CLASSES[kind]
    end = 1 << (kind.bit_width - 1) if pa.types.is_integer(kind) else 0

    def fit(value: PropertyValue) -> Any:
        if type(value) not in classes:
            return None
        return None if end and isinstance(value, int) and not -end <= value < end else value

    return fit


def _text(value: PropertyValue) -> str | None:
    """Return any property as text; bytes have none."""
    if value is None or isinstance(value, bytes):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime) else str(value)
