"""A schema that nearly all JSON bodies of a sample have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from lazaretto.errors import InvalidOption

#: The part of values that must be of one type for a field to have it.
_MOST = 0.9
_decode = msgspec.json.Decoder().decode


def inferred(bodies: Sequence[bytes]) -> pa.StructType:
    """Return the schema that nearly all bodies of a sample have. Raises InvalidOption: there is none.

    A field has the type of 90 % of its values at least: the others are those that do not fit.
    """
    values = []
    for body in bodies:
        try:
            values.append(_decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    objects = [value for value in values if isinstance(value, dict)]
    if len(objects) < _MOST * len(bodies) or not objects:
        raise InvalidOption(
            f"no schema can be inferred: {len(objects):,} of {len(bodies):,} bodies of the sample are JSON "
            "objects; give body_schema"
        )
    found = _kind_of(objects, "$")
    if found is None:
        raise InvalidOption(
            "no schema can be inferred: the objects of the sample are empty; give body_schema"
        )
    return found


def _kind_of(values: Sequence[Any], path: str) -> pa.DataType | None:
    """Return the type that nearly all values have, None if nothing tells it."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    numbers = [value for value in found if type(value) in (int, float)]
    floats = any(type(value) is float for value in numbers)
    alike: dict[str, list[Any]] = {"numbers": [], "numbers beyond 64 bits": []}
    for value in numbers:
        fits = floats or -(1 << 63) <= value < 1 << 63
        alike["numbers" if fits else "numbers beyond 64 bits"].append(value)
    for name, class_ in (("texts", str), ("booleans", bool), ("arrays", list), ("objects", dict)):
        alike[name] = [value for value in found if type(value) is class_]
    name = max(alike, key=lambda one: len(alike[one]))
    if len(alike[name]) < _MOST * len(found) or name == "numbers beyond 64 bits":
        counts = ", ".join(f"{len(some):,} {one}" for one, some in alike.items() if some)
        raise InvalidOption(f"no schema can be inferred: {path} has {counts}; give body_schema")
    if name == "arrays":
        kind = _kind_of([one for value in alike[name] for one in value], f"{path}[]")
        return None if kind is None else pa.list_(kind)
    if name == "objects":
        names = dict.fromkeys(key for value in alike[name] for key in value)
        kinds = {key: _kind_of([value.get(key) for value in alike[name]], f"{path}.{key}") for key in names}
        fields = [(key, kind) for key, kind in kinds.items() if kind is not None]
        return pa.struct(fields) if fields else None
    if name == "numbers":
        return pa.float64() if floats else pa.int64()
    return pa.string() if name == "texts" else pa.bool_()
