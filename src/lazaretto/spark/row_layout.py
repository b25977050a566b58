"""How rows of a source become messages, and messages become the same rows again: types and nulls included."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from lazaretto.errors import InvalidOption
from lazaretto.model.headers import LONGEST_ID, decode_headers
from lazaretto.spark.bodies import MISFITS, BodyFormat
from lazaretto.spark.json_bodies import json_decoder
from lazaretto.spark.message_items import sent_column
from lazaretto.spark.new_letters import NULL_BODY, ORIGIN, kept
from lazaretto.spark.plain_values import plain
from lazaretto.spark.result_values import rows_of
from lazaretto.spark.source_rows import beyond_text
from lazaretto.store.records.messages import NewMessage

#: The property with a row's columns besides its body, as a stream of Arrow's.
COLUMNS = "lazaretto.columns"
#: The place of a row in a batch of one, and how a stream of Arrow's ends.
_FIRST, _END = pa.array([0]), b"\xff\xff\xff\xff" + bytes(4)
#: Values that are properties, too, so that people see and search them, and their longest text.
_SIMPLE, _LONGEST = (bool, int, float, str, datetime.datetime), 1024


@dataclasses.dataclass(frozen=True)
class RowOrigin:
    """The place that a row came from, by columns and as text.

    `place`: its id; `content`: that of the place and of what the row was. `others`: what stands beside its
    body, as a stream of Arrow's.
    """

    columns: Mapping[str, Any]
    text: str
    place: str
    content: str
    others: bytes

    @property
    def number(self) -> int:
        """Return a number for the row, below those of messages."""
        return -1 - int(self.content[-15:], 16)


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """The columns of a source. `body`: the one that is a message's body; None: all of them, as JSON.

    `origin`: the columns that say where a row came from; of files their path and more. `encoded`: the schema.
    `format`: how the body is written that a handler gets the value of; None: it gets the body. `session`: the
    column that says whose order a row keeps; None: of nobody's. `keeps_origin`: results say theirs.
    """

    encoded: bytes
    body: str | None
    origin: tuple[str, ...]
    format: BodyFormat | None = None
    session: str | None = None
    keeps_origin: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # A decoder, which is made once in each process, cannot be sent.
        return RowLayout, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """Return the schema of the source's own columns."""
        return pa.ipc.read_schema(pa.py_buffer(self.encoded))

    @functools.cached_property
    def is_plain(self) -> bool:
        """Return whether marshal takes all values of a row as a handler is given it, but for its times."""
        timed = set(self._timed)
        kinds = [
            kind
            for at, kind in enumerate(self.schema.types)
            if at not in timed and (self.format is None or self.schema.names[at] != self.body)
        ]
        return all(map(is_plain, [*kinds, *([] if self.format is None else [self.format.kind])]))

    @functools.cached_property
    def _timed(self) -> list[int]:
        kinds = enumerate(self.schema.types)
        return [at for at, kind in kinds if pa.types.is_timestamp(kind) and kind.unit == "us"]

    @property
    def times(self) -> list[tuple[int, datetime.tzinfo | None]]:
        """Return the places of times that a handler is sent as numbers, which takes a tenth of the time.

        With their zones, as Arrow gives them to Python.
        """
        zones = [(at, self.schema.types[at].tz) for at in self._timed] if self.is_plain else []
        return [(at, None if zone is None else pa.lib.string_to_tzinfo(zone)) for at, zone in zones]

    def values_of(self, frame: pa.RecordBatch) -> tuple[list[Sequence[Any]], dict[int, str]]:
        """Return rows as a handler is sent them: by columns, times as numbers; or one column, pickled.

        And what is wrong with those that have a value which Python has not, by their place.
        """
        problems: dict[int, str] = {}
        columns: list[Sequence[Any]] = []
        for name, column in zip(frame.schema.names, frame.columns, strict=True):
            if self.is_plain:
                with contextlib.suppress(ValueError, OverflowError):
                    columns.append(sent_column(column))
                    continue
            columns.append(values_in(column, name, problems))
        if not self.is_plain:
            rows: Iterable[Any] = zip(*columns, strict=True) if columns else [()] * frame.num_rows
            columns = [[pickle.dumps(row, pickle.HIGHEST_PROTOCOL) for row in rows]]
        return columns, problems

    @functools.cached_property
    def others(self) -> pa.Schema:
        """Return the schema of what stands beside the body."""
        return pa.schema([field for field in self.schema if field.name != self.body])

    @functools.cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        return json_decoder(pa.struct(list(self.schema)))

    def check(self) -> None:
        """Raise InvalidOption if a body cannot be made of a row and a row of a body."""
        if self.session is not None and self.session not in self.schema.names:
            raise InvalidOption(
                f"expected session to be a column of the source, which are {', '.join(self.schema.names)}, "
                f"got {self.session!r}"
            )
        if self.body is None and self.format is not None:
            raise InvalidOption("parse reads the column that is the message's body: name it, as body='value'")
        if self.body is None:
            self._decode  # noqa: B018 - raises for a type that JSON does not have
        elif self.body not in self.schema.names:
            raise InvalidOption(
                f"the source has no column {self.body!r} to be the body; it has "
                f"{', '.join(self.schema.names)}"
            )
        elif self.schema.field(self.body).type not in (pa.string(), pa.binary()):
            raise InvalidOption(
                f"expected the column {self.body!r} to be text or binary, to be a body, got "
                f"{self.schema.field(self.body).type}: omit body, and all columns are, as JSON"
            )

    # -- a row as a message ----------------------------------------------------------------------

    def sessions_of(self, rows: pa.RecordBatch) -> list[str | None]:
        """Return the session that each row is of."""
        if self.session is None:
            return [None] * rows.num_rows
        return [_session_of(value) for value in values_in(rows.column(self.session), self.session, {})]

    def messages_of(self, rows: pa.RecordBatch, origins: Sequence[RowOrigin]) -> list[NewMessage]:
        """Return rows as messages that nothing is lost in. `origins`: where they came from."""
        names = self.schema.names
        columns = [shown_values(rows.column(name)) for name in names]
        sessions: Sequence[str | None] = self.sessions_of(rows)
        if self.session is not None:
            # One that is of nobody's has nothing before it.
            sessions = [one or origin.content for one, origin in zip(sessions, origins, strict=True)]
        return [
            self._message_of(dict(zip(names, values, strict=True)), origin, session)
            for values, origin, session in zip(zip(*columns, strict=True), origins, sessions, strict=True)
        ]

    def _message_of(self, values: Mapping[str, Any], origin: RowOrigin, session: str | None) -> NewMessage:
        simple = {
            name: _aware(value)
            for name, value in values.items()
            if name != self.body and isinstance(value, _SIMPLE) and len(str(value)) <= _LONGEST
        }
        where = {f"{ORIGIN}.{name}": as_property(value) for name, value in origin.columns.items()}
        where[ORIGIN] = origin.text
        body = _json(values, self.schema) if self.body is None else values[self.body]
        whole = {COLUMNS: origin.others} if self.body is not None and self.others.names else {}
        return kept({"body": body, "properties": simple, "session_id": session}, where, whole)

    def others_of(self, rows: pa.RecordBatch) -> list[bytes]:
        """Return what stands beside the body of each row, as a stream of Arrow's."""
        others = rows.select(self.others.names)
        # Copied: of a slice, what stands beside it would be written, too.
        copies = (others.slice(at, 1).take(_FIRST) for at in range(rows.num_rows))
        return [self._head + copy.serialize().to_pybytes() + _END for copy in copies]

    @functools.cached_property
    def _head(self) -> bytes:
        head: bytes = self.others.serialize().to_pybytes()
        return head

    # -- a message as a row ----------------------------------------------------------------------

    def row_of(self, body: bytes, headers: bytes | None) -> pa.RecordBatch:
        """Return a message as a row, a batch of one. Raises ValueError, with the path, if it is none."""
        if self.body is None:
            rows = rows_of([plain(self._decode(body))], pa.struct(list(self.schema)))
            values: Mapping[str, Any] = rows[0].as_py()
        else:
            properties = {} if headers is None else decode_headers(headers).properties
            columns = properties.get(COLUMNS)
            own = {self.body: self._body(body, bool(properties.get(NULL_BODY)))}
            values = own if columns is None else {**_decoded(columns), **own}
        arrays = [_one(values.get(field.name), field) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def read(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[str | None]]:
        """Return rows as a handler is given them, and what is wrong with the body of each; None: nothing."""
        if self.format is None:
            return rows, [None] * rows.num_rows
        place = rows.schema.get_field_index(self.body)
        values, problems = self.format.read(rows.column(place).cast(pa.binary()).to_pylist())
        return rows.set_column(place, pa.field(self.body, values.type), values), problems

    def _body(self, body: bytes, was_null: bool) -> Any:
        if was_null and not body:
            return None
        if self.schema.field(self.body).type == pa.binary():
            return body
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"the body is not UTF-8 (byte {error.start}) - at `$`") from None


def values_in(column: pa.Array, name: str, problems: dict[int, str]) -> list[Any]:
    """Return a column's values, and note what is wrong with those that Python has not."""
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (ValueError, OverflowError):
        values = []
        for place, one in enumerate(column):
            try:
                values.append(one.as_py())
            except (ValueError, OverflowError):
                values.append(None)
                problems[place] = beyond_text(name)
        return values


def shown_values(column: pa.Array) -> list[Any]:
    """Return a column's values; those that Python has not as text."""
    problems: dict[int, str] = {}
    values = values_in(column, "", problems)
    if not pa.types.is_nested(column.type):
        for place in problems:
            values[place] = column[place].cast(pa.string()).as_py()
    return values


def _session_of(value: Any) -> str | None:
    """Return a value as the id of a session, as text; one that is no id by its digest."""
    if value is None:
        return None
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    is_plain_id = 0 < len(text) <= LONGEST_ID and text.isprintable()
    return text if is_plain_id else hashlib.sha256(text.encode()).hexdigest()


def _one(value: Any, field: pa.Field) -> pa.Array:
    try:
        return pa.array([value], field.type)
    except MISFITS as error:
        # Of another schema of the source, or whoever may send to the queue has made it.
        raise ValueError(f"the value does not fit {field.type}: {error} - at `$.{field.name}`") from None


def _decoded(columns: bytes) -> dict[str, Any]:
    try:
        with pa.ipc.open_stream(pa.py_buffer(columns)) as reader:
            table = reader.read_all()
            # Whoever may send to the queue has made it.
            table.validate(full=True)
            (row,) = table.to_pylist()
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"the property {COLUMNS} is damaged: {type(error).__name__} - at `$`") from None
    fields: dict[str, Any] = row
    return fields


def as_property(value: Any) -> Any:
    """Return a value as a property: what none can be as text."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value
    return str(value)


def _aware(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(datetime.UTC) if isinstance(value, datetime.datetime) else value


def _json(values: Mapping[str, Any], schema: pa.Schema) -> bytes:
    return msgspec.json.encode(
        {name: _as_json(values[name], schema.field(name).type) for name in schema.names}
    )


def _as_json(value: Any, kind: pa.DataType) -> Any:
    """Return a value as the decoder of a schema reads it: a map is an object, binary Base64."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _as_json(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {str(key): _as_json(one, kind.item_type) for key, one in value}
    if pa.types.is_list(kind):
        return [_as_json(one, kind.value_type) for one in value]
    return value


def is_plain(kind: pa.DataType) -> bool:
    """Return whether marshal takes all values of a type."""
    if pa.types.is_nested(kind):
        inner: Sequence[pa.Field] = [kind.field(place) for place in range(kind.num_fields)]
        return all(is_plain(field.type) for field in inner)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_null(kind)
    )
