"""Values as columns of results: what fits a type exactly is taken, what would change is refused."""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from lazaretto.model.checks import suggestion
from lazaretto.spark.bodies import is_beyond
from lazaretto.spark.plain_values import UnfitValue, plain

#: What Arrow raises for a value that does not fit a type.
_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError)
_NULL, _ROW = type(None), {dict}


def column_of(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    """Return plain values as a column of a type. Raises ValueError, with the path, for what would change."""
    exact = _exact(kind)
    if exact is None or not exact.issuperset(map(type, values)):
        values = [_fit(one, kind, path) for one in values]
    try:
        return pa.array(values, kind)
    except _MISFITS as error:
        raise ValueError(f"{error} - at `{path}`") from None


def rows_of(rows: Sequence[Any], kind: pa.StructType) -> pa.StructArray:
    """Return plain rows, dicts by names of columns, as a column. Raises ValueError, with the path."""
    names = [field.name for field in kind]
    known = set(names)
    if not _ROW.issuperset(map(type, rows)):
        row = next(row for row in rows if type(row) is not dict)
        if type(row) is UnfitValue:
            raise ValueError(row.text)
        raise ValueError(f"expected a dict by the names of columns, got {_named(row)} - at `$`")
    # Nearly all rows have the same names.
    for keys in set(map(tuple, rows)):
        if not known.issuperset(keys):
            _refuse_unknown(dict.fromkeys(keys), names, "$")
    columns = [
        column_of([row.get(field.name) for row in rows], field.type, f"$.{field.name}") for field in kind
    ]
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def cast_column(column: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Return a column of Arrow's as one of another type. Raises ValueError, with the path."""
    old = column.type
    if old == kind:
        cast = column
    elif _widens(old, kind):
        try:
            cast = column.cast(kind)
        except pa.ArrowException as error:
            raise ValueError(f"{error} - at `{path}`") from None
    else:
        try:
            values = [plain(one, path) for one in column.to_pylist()]
        except (ValueError, OverflowError) as error:
            # A time that Python does not have.
            raise ValueError(f"{error} - at `{path}`") from None
        return column_of(values, kind, path)
    if is_beyond(cast):
        raise ValueError(f"a time before the year 1 or after 9999 - at `{path}`")
    return cast


def _widens(old: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether Arrow's own cast refuses all that would change."""
    if pa.types.is_integer(old) and pa.types.is_integer(kind):
        return True
    if pa.types.is_floating(old) and pa.types.is_floating(kind):
        return bool(old.bit_width <= kind.bit_width)
    # A text is read as what it says.
    return _is_text(old) and not pa.types.is_nested(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _exact(kind: pa.DataType) -> set[type] | None:
    """Return the types of which a column takes each value as it is, or says that it does not; or None."""
    for is_kind, types in _EXACT:
        if is_kind(kind):
            return types
    return None


_EXACT: list[tuple[Any, set[type]]] = [
    (pa.types.is_integer, {int, _NULL}),
    (pa.types.is_float64, {float, _NULL}),
    (pa.types.is_string, {str, _NULL}),
    (pa.types.is_boolean, {bool, _NULL}),
    (pa.types.is_binary, {bytes, _NULL}),
    (pa.types.is_date, {datetime.date, _NULL}),
    (pa.types.is_decimal, {decimal.Decimal, int, _NULL}),
    (pa.types.is_time, {datetime.time, _NULL}),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, {datetime.datetime, _NULL}),
    (pa.types.is_duration, {datetime.timedelta, _NULL}),
]


def _fit(value: Any, kind: pa.DataType, path: str) -> Any:
    """Return a value as Arrow takes it for a type. Raises ValueError, with the path."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return _fit_struct(value, kind, path)
    if pa.types.is_map(kind):
        return _fit_map(value, kind, path)
    if pa.types.is_list(kind):
        if type(value) is not list:
            raise ValueError(f"expected a list, got {_named(value)} - at `{path}`")
        return [_fit(one, kind.value_type, f"{path}[{place}]") for place, one in enumerate(value)]
    exact = _exact(kind)
    if exact is not None and type(value) in exact:
        return value
    for is_kind, fit in _CONVERSIONS:
        if is_kind(kind):
            try:
                fitted = fit(value, kind)
            except (ValueError, OverflowError, ArithmeticError) as error:
                raise ValueError(f"{error} - at `{path}`") from None
            if fitted is not None:
                return fitted
    raise ValueError(f"expected a value that fits {kind} exactly, got {_named(value)} - at `{path}`")


def _fit_struct(value: Any, kind: pa.StructType, path: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError(f"expected a dict by the names of fields, got {_named(value)} - at `{path}`")
    names = [field.name for field in kind]
    _refuse_unknown(value, names, path)
    return {field.name: _fit(value.get(field.name), field.type, f"{path}.{field.name}") for field in kind}


def _fit_map(value: Any, kind: pa.MapType, path: str) -> list[tuple[Any, Any]]:
    if type(value) is dict:
        pairs = list(value.items())
    elif type(value) is list and all(
        type(one) is list and len(one) == len(("key", "value")) for one in value
    ):
        pairs = [(key, one) for key, one in value]
    else:
        raise ValueError(f"expected a dict, got {_named(value)} - at `{path}`")
    entries = [
        (_fit(key, kind.key_type, f"{path}{{}}"), _fit(one, kind.item_type, f"{path}.{key}"))
        for key, one in pairs
    ]
    keys = [repr(key) for key, _ in entries]
    if any(key is None for key, _ in entries) or len(set(keys)) < len(keys):
        raise ValueError(f"a key that is null, or there twice - at `{path}`")
    return entries


def _refuse_unknown(row: Mapping[Any, Any], names: Sequence[str], path: str) -> None:
    for name in row:
        if name not in names:
            near = suggestion(name, list(names)) if isinstance(name, str) else ""
            raise ValueError(f"the schema has no field {name!r}{near} - at `{path}`")


# -- conversions: each returns None if a type never fits, and raises ValueError for a value that does not ---


def _integer(value: Any, kind: pa.DataType) -> int | None:
    if type(value) not in (float, decimal.Decimal):
        return None
    number = int(value)
    if number != value:
        raise ValueError(f"expected a whole number for {kind}, got {value}")
    return number


def _double(value: Any, kind: pa.DataType) -> float | None:
    if type(value) not in (int, float, decimal.Decimal):
        return None
    number = float(value)
    same = decimal.Decimal(repr(number)) == value if type(value) is decimal.Decimal else number == value
    # What is no number equals nothing.
    if not same and value == value:
        raise ValueError(f"expected a number that {kind} can hold, got {value}")
    return number


def _single(value: Any, kind: pa.DataType) -> float | None:
    number = _double(value, kind)
    if number is None:
        return None
    (kept,) = struct.unpack("<f", struct.pack("<f", number))
    if (kept == 0.0 and number != 0.0) or (type(value) is int and kept != value):
        raise ValueError(f"expected a number that {kind} can hold, got {value}")
    return number


def _text(value: Any, kind: pa.DataType) -> str | None:
    return value.decode() if type(value) is bytes else None


def _binary(value: Any, kind: pa.DataType) -> bytes | None:
    return value.encode() if type(value) is str else None


def _date(value: Any, kind: pa.DataType) -> datetime.date | None:
    if type(value) is not datetime.datetime:
        return None
    if value.time() != datetime.time():
        raise ValueError(f"expected a day, got the time {value}")
    return value.date()


def _timestamp(value: Any, kind: pa.DataType) -> datetime.datetime | None:
    if type(value) is not datetime.datetime:
        return None
    if kind.tz is None and value.tzinfo is not None:
        raise ValueError(f"expected a time without a zone, got {value}")
    return value


def _decimal(value: Any, kind: pa.DataType) -> decimal.Decimal | None:
    return decimal.Decimal(repr(value)) if type(value) is float else None


_CONVERSIONS: list[tuple[Any, Any]] = [
    (pa.types.is_integer, _integer),
    (pa.types.is_float32, _single),
    (pa.types.is_float64, _double),
    (pa.types.is_string, _text),
    (pa.types.is_binary, _binary),
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_decimal, _decimal),
]


def _named(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
