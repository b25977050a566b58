"""A handler's results as plain values of Python: the same inline and from a sandbox, named by names.

Imports no Spark, Arrow or numpy: it runs in the sandbox. What comes from a library is there only if the
handler has imported it.
"""

from __future__ import annotations

import array
import dataclasses
import datetime
import decimal
import operator
import sys
from collections.abc import Iterable, Mapping
from typing import Any

#: Types that stay as they are. Times are looked at for their zone.
_PLAIN = {
    type(None), bool, int, float, str, bytes, decimal.Decimal, datetime.date, datetime.time,
    datetime.timedelta,
}  # fmt: skip
_NAMES = {str}
_TIME, _UTC = datetime.datetime, datetime.UTC
#: Kinds of numpy's arrays whose items are plain as numpy gives them: bool, int, unsigned, text, bytes.
_GIVEN_PLAIN = "biuUS"
#: A number of 8 bytes is Python's own; numpy's longer ones stay numpy's.
_LONGEST_FLOAT = 8


@dataclasses.dataclass(frozen=True, slots=True)
class UnfitValue:
    """Stands for what a handler returned that is no plain value. `text`: why, with the path."""

    text: str


def plain(value: Any, path: str = "$") -> Any:
    """Return a value without types of libraries, subclasses or zones. Raises TypeError or ValueError.

    A mapping, a Row of Spark's and a namedtuple become a dict by their names, sequences a list, times with a
    zone times in UTC.
    """
    kind = type(value)
    if kind in _PLAIN or kind is UnfitValue:
        return value
    if kind is _TIME:
        return _moment(value, path)
    if kind is dict:
        if _PLAIN.issuperset(map(type, value.values())) and _NAMES.issuperset(map(type, value)):
            return value
        # Paths are made only where they may be needed: that takes longer than looking at a value.
        return {
            name if type(name) is str else plain(name, path): one
            if type(one) in _PLAIN
            else plain(one, f"{path}.{name}")
            for name, one in value.items()
        }
    if kind is list or kind is tuple:
        if _PLAIN.issuperset(map(type, value)):
            return list(value)
        return [plain(one, f"{path}[{place}]") for place, one in enumerate(value)]
    return _converted(value, path)


def _converted(value: Any, path: str) -> Any:
    """Return what is not plain by its type alone."""
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    if pandas is not None and (value is pandas.NaT or value is pandas.NA):
        return None
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _items(value, path)
    if numpy is not None and isinstance(value, numpy.generic):
        return _of_numpy(numpy, value, path)
    if isinstance(value, _TIME):
        _refuse_nanoseconds(getattr(value, "nanosecond", 0), path)
        moment = _TIME(
            value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond,
            tzinfo=value.tzinfo, fold=value.fold,
        )  # fmt: skip
        return _moment(moment, path)
    if isinstance(value, datetime.date):
        return datetime.date(value.year, value.month, value.day)
    if isinstance(value, datetime.timedelta):
        _refuse_nanoseconds(getattr(value, "nanoseconds", 0), path)
        return datetime.timedelta(value.days, value.seconds, value.microseconds)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, int):
        return operator.index(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, decimal.Decimal):
        return decimal.Decimal(value)
    if isinstance(value, Mapping):
        return plain(dict(value), path)
    names = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return _by_name(names, value, path)
    if isinstance(value, array.array):
        return value.tolist()
    if pandas is not None and isinstance(
        value, pandas.Series | pandas.Index | pandas.api.extensions.ExtensionArray
    ):
        return _items(value, path)
    raise TypeError(f"a {_named(value)} cannot be a part of results - at `{path}`")


def _by_name(names: Iterable[str], values: tuple[Any, ...], path: str) -> dict[str, Any]:
    listed = list(names)
    if len(set(listed)) < len(listed) or len(listed) != len(values):
        raise ValueError(f"{len(values)} values have the names {', '.join(listed)} - at `{path}`")
    return {name: plain(one, f"{path}.{name}") for name, one in zip(listed, values, strict=True)}


def _items(values: Any, path: str) -> Any:
    """Return the items of an array of numpy or pandas."""
    kind = getattr(values, "dtype", None)
    code = getattr(kind, "kind", "O")
    if getattr(values, "ndim", 1) == 0:
        return plain(values[()], path)
    is_float = code == "f" and getattr(kind, "itemsize", 0) <= _LONGEST_FLOAT
    if type(values).__module__ == "numpy" and (code in _GIVEN_PLAIN or is_float):
        return values.tolist()
    return [plain(one, f"{path}[{place}]") for place, one in enumerate(values)]


def _of_numpy(numpy: Any, value: Any, path: str) -> Any:
    """Return a scalar of numpy's as Python's own."""
    if value.dtype.kind in "mM":
        if numpy.isnat(value):
            return None
        unit, _ = numpy.datetime_data(value.dtype)
        days = value.dtype.kind == "M" and unit in ("Y", "M", "W", "D")
        exact = value.astype(f"{value.dtype.kind}8[{'D' if days else 'us'}]")
        plain = exact.item()
        if exact != value or not isinstance(plain, datetime.date | datetime.timedelta):
            raise ValueError(f"a {_named(value)} that no time in microseconds equals - at `{path}`")
        return plain
    plain = value.item()
    if type(plain) not in _PLAIN:
        raise TypeError(f"a {_named(value)} cannot be a part of results - at `{path}`")
    return plain


def _moment(value: datetime.datetime, path: str) -> datetime.datetime:
    """Return a time of Python's own in UTC, if it has a zone."""
    if value.utcoffset() is None:
        return value.replace(tzinfo=None, fold=0) if value.tzinfo is not None or value.fold else value
    try:
        return value.astimezone(_UTC)
    except OverflowError:
        raise ValueError(f"a time before the year 1 or after 9999 - at `{path}`") from None


def _refuse_nanoseconds(nanoseconds: int, path: str) -> None:
    if nanoseconds:
        raise ValueError(f"a time with nanoseconds, where results have microseconds - at `{path}`")


def _named(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
