"""The features of messages: the content of each field, of one message and of a group of them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from lazaretto.model.filters.body import MISSING
from lazaretto.model.filters.values import is_numeral, print_name, type_name
from lazaretto.model.filters.view import MessageView

#: Tracing headers, which say nothing about the message.
LEFT_OUT = frozenset({"traceparent", "tracestate", "diagnostic-id"})

#: Limits for one message: fields, levels of nesting, characters of a name and of a text.
MOST_FIELDS = 200
DEEPEST = 4
LONGEST_NAME = 100
LONGEST_TEXT = 200

# The message id is left out: it is unique, and many good messages have none.
_SYSTEM = {
    "sys.Label": "subject", "sys.ContentType": "content_type", "sys.CorrelationId": "correlation_id",
    "sys.To": "to", "sys.ReplyTo": "reply_to", "sys.SessionId": "session_id",
    "sys.ReplyToSessionId": "reply_to_session_id", "sys.PartitionKey": "partition_key",
    "sys.TimeToLive": "time_to_live", "sys.Size": "size",
}  # fmt: skip

ABSENT = "missing"


class LongText(NamedTuple):
    """A text that is too long to be a value: only its length and kind are kept."""

    length: int
    is_ascii: bool
    is_trimmed: bool
    is_numeral: bool


class Other(NamedTuple):
    """A value without constants in filters: an array (with its length), an object, bytes, a time."""

    type: str
    length: int | None = None


class Features(dict[str, Any]):
    """The content of each field: a text, number, boolean or None as it is; else a LongText or Other.

    `worker`: who tried the message last; `when`: when that ended, in microseconds. None: unknown. They are no
    fields, since they can only be compared among messages of the same time.
    """

    __slots__ = ("when", "worker")

    def __init__(self, *fields: Any, worker: str | None = None, when: int | None = None) -> None:
        super().__init__(*fields)
        self.worker = worker
        self.when = when


def features_of(view: MessageView, leave_out: Collection[str] = (), *, when: int | None = None) -> Features:
    """Return the features of a message. `leave_out`: names of fields to skip, with everything below them."""
    features = Features(worker=view.worker, when=when)
    skipped = frozenset(map(str.lower, leave_out))
    for name, field in _SYSTEM.items():
        value = view.system(field)
        if value is not None and name.lower() not in skipped:
            features[name] = _feature(value)
    for name, value in view.headers.properties.items():
        text = _named("user", name)
        if text is not None and name.lower() not in LEFT_OUT and text.lower() not in skipped:
            features[text] = _feature(value)
    body = view.body.value()
    if body is not MISSING and "body" not in skipped:
        _flatten(body, "body", 0, features, skipped)
    return features


@functools.lru_cache(10_000)
def _named(where: str, name: str) -> str | None:
    return f"{where}.{print_name(name)}" if 0 < len(name) <= LONGEST_NAME else None


def _flatten(value: Any, path: str, depth: int, features: Features, skipped: frozenset[str]) -> None:
    """Add a part of the body and everything below it; of an array, its first element."""
    inner: list[tuple[str | None, Any]] = []
    if depth < DEEPEST:
        if type(value) is dict:
            inner = [(_named(path, key), part) for key, part in value.items()]
        elif type(value) is list and value and depth:
            inner = [(f"{path}[0]", value[0])]
    for name, part in inner:
        if len(features) >= MOST_FIELDS:
            return
        if name is None or (skipped and name.lower() in skipped):
            continue
        features[name] = _feature(part)
        if type(part) in (dict, list):
            _flatten(part, name, depth + 1, features, skipped)


def _feature(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        if len(value) <= LONGEST_TEXT:
            return value
        return LongText(len(value), value.isascii(), value == value.strip(), is_numeral(value))
    if kind in (bool, float, type(None)):
        return value
    if kind is int:
        # Filters treat integers above 64 bits as floats, and their text is no constant.
        return value if -(1 << 63) <= value < 1 << 63 else Other("number")
    return Other(type_name(value), len(value) if kind is list else None)


def mask_of(rows: Iterable[int]) -> int:
    """Return a set of rows as a bit mask."""
    numbers = list(rows)
    if not numbers:
        return 0
    bits = bytearray((max(numbers) >> 3) + 1)
    for row in numbers:
        bits[row >> 3] |= 1 << (row & 7)
    return int.from_bytes(bits, "little")


def rows_of(mask: int, count: int) -> list[int]:
    """Return the rows in a bit mask, out of `count` rows."""
    bits = mask.to_bytes((count >> 3) + 1, "little")
    return [row for row in range(count) if bits[row >> 3] >> (row & 7) & 1]


class Column:
    """The contents of one field in the messages of a group, by row.

    `kinds`: rows by the name of the type, or MISSING. `texts`, `numbers`, `flags`: rows by value.
    `lengths`: rows by length, of texts and of arrays.
    """

    __slots__ = ("_like", "flags", "kinds", "lengths", "long", "numbers", "texts")

    def __init__(self) -> None:
        self.kinds: dict[str, list[int]] = {}
        self.texts: dict[str, list[int]] = {}
        self.numbers: dict[float, list[int]] = {}
        self.flags: dict[bool, list[int]] = {}
        self.lengths: dict[int, list[int]] = {}
        self.long: dict[LongText, list[int]] = {}
        self._like: dict[str, int] = {}

    def like(self, name: str, test: Callable[[str | LongText], bool]) -> int:
        """Return the rows whose text passes a test, as a bit mask; cached under the test's name."""
        mask = self._like.get(name)
        if mask is None:
            rows = [row for text, rows in self.texts.items() if test(text) for row in rows]
            rows += [row for text, rows in self.long.items() if test(text) for row in rows]
            mask = self._like[name] = mask_of(rows)
        return mask

    def add(self, row: int, value: Any) -> None:
        kind = type(value)
        name = type_name(value)
        if kind is str:
            self.texts.setdefault(value, []).append(row)
            self.lengths.setdefault(len(value), []).append(row)
        elif kind is int or kind is float:
            self.numbers.setdefault(value, []).append(row)
        elif kind is bool:
            self.flags.setdefault(value, []).append(row)
        elif kind is LongText:
            name = "string"
            self.long.setdefault(value, []).append(row)
            self.lengths.setdefault(value.length, []).append(row)
        elif kind is Other:
            name = value.type
            if value.length is not None:
                self.lengths.setdefault(value.length, []).append(row)
        self.kinds.setdefault(name, []).append(row)


class Group:
    """The messages of one side of a comparison: failed ones or good ones."""

    def __init__(self, rows: Sequence[Features]) -> None:
        self.rows = rows
        self.count = len(rows)
        self.seen = Counter(name for row in rows for name in row)
        self._columns: dict[str, Column] = {}

    def column(self, field: str) -> Column:
        """Return the contents of a field; built once."""
        column = self._columns.get(field)
        if column is None:
            column = self._columns[field] = Column()
            add = column.add
            absent = []
            for number, row in enumerate(self.rows):
                if field in row:
                    add(number, row[field])
                else:
                    absent.append(number)
            if absent:
                column.kinds[ABSENT] = absent
        return column


def fields_of(failing: Group, good: Group) -> list[str]:
    """Return the fields to examine, the most common first, up to a limit."""
    seen = failing.seen + good.seen
    # Equally common fields are ordered by name, so that the answer depends only on the messages.
    return sorted(seen, key=lambda name: (-seen[name], name))[:MOST_FIELDS]
