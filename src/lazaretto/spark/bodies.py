"""Columns of bodies and properties in a stream or a table: a typed value, and one for each property."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lazaretto.errors import InvalidOption
from lazaretto.model.clock import LAST_MOMENT, to_micros
from lazaretto.model.headers import decode_headers
from lazaretto.spark.columns import fitting, property_columns
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.store_access import broker_at

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


#: The part of values that must be of one type for a field to have it.
_MOST = 0.9
_decode = msgspec.json.Decoder().decode
#: The body as its schema says, null if it does not fit; and then why, with the path to the field.
VALUE, PROBLEM = "value", "problem"
#: Messages that a schema is inferred from, and how many bytes of them.
_SAMPLE, _SAMPLE_BYTES = 1_000, 16 * 1024 * 1024
#: Bytes of a schema registry's header, and bits of a number in it.
_HEADER, _LONGEST_SHIFT = 5, 28
#: The first moment that Python has, in microseconds.
_FIRST = to_micros(datetime.datetime.min.replace(tzinfo=datetime.UTC))
#: What Arrow raises for a value that does not fit a type.
MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)


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
    kind = _kind_of(objects, "$")
    if kind is None:
        raise InvalidOption(
            "no schema can be inferred: the objects of the sample are empty; give body_schema"
        )
    return kind


def _kind_of(values: Sequence[Any], path: str) -> pa.DataType | None:
    """Return the type that nearly all values have, None if nothing tells it."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    numbers = [value for value in present if type(value) in (int, float)]
    floats = any(type(value) is float for value in numbers)
    alike: dict[str, list[Any]] = {"numbers": [], "numbers beyond 64 bits": []}
    for value in numbers:
        fits = floats or -(1 << 63) <= value < 1 << 63
        alike["numbers" if fits else "numbers beyond 64 bits"].append(value)
    for name, class_ in (("texts", str), ("booleans", bool), ("arrays", list), ("objects", dict)):
        alike[name] = [value for value in present if type(value) is class_]
    name = max(alike, key=lambda one: len(alike[one]))
    if len(alike[name]) < _MOST * len(present) or name == "numbers beyond 64 bits":
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


@dataclasses.dataclass(frozen=True)
class Extras:
    """Columns besides those of a message. `schema`: of all of them, as Arrow writes it."""

    body: str
    body_schema: str
    schema: bytes

    @functools.cached_property
    def columns(self) -> pa.Schema:
        """Return their schema."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema))

    @property
    def needs(self) -> list[str]:
        """Return the columns of a message that they are made of."""
        ours = {VALUE, PROBLEM}
        columns = ["body"] if ours & set(self.columns.names) else []
        return columns + (["headers"] if set(self.columns.names) - ours else [])

    def prepare(self) -> None:
        """Load what reads the bodies. Raises InvalidOption: a package or a class is missing."""
        if VALUE in self.columns.names:
            _decoder(self.body, self.body_schema, self.columns.field(VALUE).type)

    def of(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the columns for messages with their bodies and headers."""
        arrays: dict[str, pa.Array] = {}
        if "body" in self.needs:
            kind = self.columns.field(VALUE).type
            decode = _decoder(self.body, self.body_schema, kind)
            arrays[VALUE], problems = _read(decode, kind, batch.column("body").to_pylist())
            arrays[PROBLEM] = pa.array(problems, pa.string())
        fields = [field for field in self.columns if field.name not in arrays]
        if fields:
            properties = [decode_headers(one).properties for one in batch.column("headers").to_pylist()]
            for field in fields:
                fit = fitting(field.type)
                arrays[field.name] = pa.array([fit(one.get(field.name)) for one in properties], field.type)
        return arrays

    def added(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """Yield batches with these columns."""
        for batch in batches:
            more = self.of(batch)
            schema = pa.schema([*batch.schema, *self.columns])
            arrays = [*batch.columns, *(more[name] for name in self.columns.names)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclasses.dataclass(frozen=True)
class BodyFormat:
    """How bodies are written, and as what values they are read. `schema`: theirs, as Arrow writes it.

    `registry`: each begins with the header of Confluent's schema registry.
    """

    name: str
    definition: str
    schema: bytes
    registry: bool = False

    @classmethod
    def of(cls, options: SparkOptions, registry: bool = False) -> BodyFormat:
        """Return the format that options name. Raises InvalidOption."""
        kind = type_of(options)
        encoded = pa.schema([(VALUE, kind)]).serialize().to_pybytes()
        _decoder(options.body, options.body_schema, kind)
        return cls(options.body, options.body_schema, encoded, registry)

    @functools.cached_property
    def kind(self) -> pa.StructType:
        """Return the type of the values."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema)).field(VALUE).type

    def __reduce__(self) -> tuple[Any, ...]:
        return BodyFormat, (self.name, self.definition, self.schema, self.registry)

    def read(self, bodies: Sequence[bytes | None]) -> tuple[pa.Array, list[str | None]]:
        """Return the values of bodies, and what is wrong with each that does not fit."""
        decode = _decoder(self.name, self.definition, self.kind)
        if self.registry:
            decode = functools.partial(_behind_header, decode, self.name == "protobuf")
        return _read(decode, self.kind, bodies)


def _behind_header(decode: Callable[[bytes], Any], has_path: bool, body: bytes) -> Any:
    """Return the value behind a zero byte, the schema's number in four and, of Protobuf, the type's path."""
    if len(body) < _HEADER or body[0]:
        raise ValueError("the body has no header of a schema registry - at `$`")
    start = _HEADER
    if has_path:
        count, start = _number(body, start)
        for _ in range(count):
            _, start = _number(body, start)
    return decode(body[start:])


def _number(body: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, by zigzag, and where it ends."""
    number = shift = 0
    while True:
        if at >= len(body) or shift > _LONGEST_SHIFT:
            raise ValueError("the header of the schema registry is cut off - at `$`")
        byte = body[at]
        number, at, shift = number | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at


def type_of(options: SparkOptions) -> pa.StructType:
    """Return the type of bodies, which Spark parses if it is written as in SQL. Raises InvalidOption."""
    if options.body != "json" or not options.body_schema:
        return value_type(options)
    from pyspark.sql.types import StructType

    from lazaretto.spark.arrow_schemas import arrow_schema

    kind = StructType.fromDDL(options.body_schema)
    assert isinstance(kind, StructType)
    return pa.struct(list(arrow_schema(kind)))


def extras_of(options: SparkOptions, schema: StructType, columns: Collection[str]) -> Extras | None:
    """Return what a schema has besides the known columns, if the options ask for it. Raises InvalidOption."""
    from pyspark.sql.types import StructType

    from lazaretto.spark.arrow_schemas import arrow_schema

    properties = property_columns(options.properties)
    ours = (VALUE, PROBLEM) if options.body else ()
    mine = [field for field in schema.fields if field.name not in columns]
    mine = [field for field in mine if field.name in ours or field.name in properties]
    if not mine:
        return None
    fields = arrow_schema(StructType(mine))
    for field in fields:
        if field.name in properties and field.type != properties[field.name]:
            raise InvalidOption(f"the column {field.name!r} has another type than the option properties says")
    if PROBLEM in fields.names and VALUE not in fields.names:
        raise InvalidOption(f"the column {PROBLEM!r} needs the column {VALUE!r}, which has the schema")
    if VALUE in fields.names and not pa.types.is_struct(fields.field(VALUE).type):
        raise InvalidOption(f"expected the column {VALUE!r} to be a struct, got {fields.field(VALUE).type}")
    return make_extras(options, fields)


def make_extras(options: SparkOptions, columns: pa.Schema) -> Extras:
    """Return what makes these columns. Raises InvalidOption for a type that nothing gives."""
    extras = Extras(options.body, options.body_schema, columns.serialize().to_pybytes())
    extras.prepare()
    return extras


def ddl_of_extras(options: SparkOptions, columns: Collection[str]) -> str:
    """Return the columns that the options ask for, for Spark to parse; look at a sample if it has to."""
    from pyspark.sql.pandas.types import from_arrow_type

    parts = []
    if options.body == "json" and options.body_schema:
        parts += [f"{VALUE} struct<{options.body_schema}>", f"{PROBLEM} string"]
    elif options.body:
        parts += [f"{VALUE} {ddl(from_arrow_type(value_type(options)))}", f"{PROBLEM} string"]
    taken = {*columns, *((VALUE, PROBLEM) if options.body else ())}
    parts += [
        f"{_quoted(name)} {ddl(from_arrow_type(kind))}"
        for name, kind in property_columns(options.properties, taken).items()
    ]
    return ", ".join(parts)


def value_type(options: SparkOptions) -> pa.StructType:
    """Return the type of bodies that is told without Spark, or that a sample of them has."""
    if options.body == "avro":
        from lazaretto.spark.avro_bodies import avro_type

        return avro_type(options.body_schema)
    if options.body == "protobuf":
        from lazaretto.spark.protobuf_bodies import protobuf_type

        return protobuf_type(options.body_schema)
    bodies = _sample(options)
    if not bodies:
        raise InvalidOption(f"no schema can be inferred: {options.queue!r} is empty; give body_schema")
    return inferred(bodies)


def _sample(options: SparkOptions) -> list[bytes]:
    bodies: list[bytes] = []
    after = size = 0
    with broker_at(options.url()) as broker:
        while len(bodies) < _SAMPLE and size < _SAMPLE_BYTES:
            page = broker.peek(options.queue, 50, after)
            if not page:
                break
            bodies += [message.body for message in page]
            size += sum(len(message.body) for message in page)
            after = page[-1].sequence_number + 1
    return bodies


def ddl(kind: DataType) -> str:
    """Return a type as Spark's parser reads it, names quoted."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        fields = [
            f"{_quoted(field.name)}: {ddl(field.dataType)}{'' if field.nullable else ' NOT NULL'}"
            for field in kind.fields
        ]
        return f"struct<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{ddl(kind.keyType)}, {ddl(kind.valueType)}>"
    return kind.simpleString()


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# -- values ----------------------------------------------------------------------------------------


@functools.lru_cache(8)
def _decoder(body: str, body_schema: str, kind: pa.StructType) -> Callable[[bytes], Any]:
    if body == "avro":
        from lazaretto.spark.avro_bodies import avro_decoder

        return avro_decoder(body_schema)
    if body == "protobuf":
        from lazaretto.spark.protobuf_bodies import protobuf_decoder

        return protobuf_decoder(body_schema)
    from lazaretto.spark.json_bodies import json_decoder

    return json_decoder(kind)


def _read(
    decode: Callable[[bytes], Any], kind: pa.StructType, bodies: Sequence[bytes | None]
) -> tuple[pa.Array, list[str | None]]:
    """Return the values of bodies, and what is wrong with each that does not fit."""
    values: list[Any] = []
    problems: list[str | None] = []
    for body in bodies:
        value = problem = None
        try:
            value = decode(body or b"")
        except ValueError as error:
            problem = str(error)
        values.append(value)
        problems.append(problem)
    try:
        return _array(values, kind), problems
    except MISFITS:
        for place, value in enumerate(values):
            problem = None if value is None else _misfit(value, kind, "$")
            if problem is not None:
                values[place], problems[place] = None, problem
        return _array(values, kind), problems


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array. Raises one of MISFITS."""
    array = pa.array(values, kind)
    if _has_times(kind) and is_beyond(array):
        # Arrow has them, but Python does not: whoever looks at a row would fail.
        raise ValueError("a time before the year 1 or after 9999")
    return array


@functools.lru_cache(64)
def _has_times(kind: pa.DataType) -> bool:
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return pa.types.is_timestamp(kind) or any(map(_has_times, inner))


def is_beyond(column: pa.Array) -> bool:
    """Return whether times are outside the years that Python has."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        ends = pc.min_max(column.cast(pa.int64())).as_py()
        return ends["min"] is not None and (ends["min"] < _FIRST or ends["max"] > LAST_MOMENT)
    if pa.types.is_struct(kind):
        return any(is_beyond(column.field(place)) for place in range(kind.num_fields))
    if pa.types.is_map(kind):
        return is_beyond(column.items)
    return pa.types.is_list(kind) and is_beyond(column.flatten())


def _misfit(value: Any, kind: pa.DataType, path: str) -> str | None:
    """Return what of a value does not fit a type, with its path; None if it fits."""
    try:
        _array([value], kind)
    except MISFITS:
        parts: list[tuple[Any, pa.DataType, str]] = []
        if pa.types.is_struct(kind) and isinstance(value, Mapping):
            parts = [(value.get(one.name), one.type, f"{path}.{one.name}") for one in kind]
        elif pa.types.is_list(kind) and isinstance(value, list):
            parts = [(one, kind.value_type, f"{path}[{place}]") for place, one in enumerate(value)]
        elif pa.types.is_map(kind) and isinstance(value, Mapping):
            parts = [(one, kind.item_type, f"{path}[...]") for one in value.values()]
        inner = (_misfit(*part) for part in parts)
        return next((one for one in inner if one), f"the value does not fit {kind} - at `{path}`")
    return None


def bounded(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts whose bodies have so many bytes at most, or that are one message."""
    bodies = batch.column("body")
    if bodies.nbytes <= most:
        yield batch
        return
    start = held = 0
    for index, size in enumerate(pc.binary_length(bodies).to_pylist()):
        if index > start and held + (size or 0) > most:
            yield batch.slice(start, index - start)
            start, held = index, 0
        held += size or 0
    yield batch.slice(start)
