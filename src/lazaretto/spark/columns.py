"""The columns of a stream of messages, how they are read, and one for each property that is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.clock import LAST_MOMENT
from lazaretto.model.headers import PropertyValue
from lazaretto.model.keys import LAST_SEQUENCE
from lazaretto.spark.reading import BATCH_ROWS, SQL, select
from lazaretto.store.addresses import is_served
from lazaretto.store.records.claims import ClaimRecord, ShardRecord
from lazaretto.store.records.messages import FRESH


class Column(NamedTuple):
    """A column: its type, and the SQL that finds it, of a message called m. Times there are microseconds.

    `served`: that SQL on a server, where it is another one.
    """

    kind: pa.DataType
    sql: str
    served: str | None = None

    def at(self, url: str) -> str:
        """Return the SQL that finds it in the store at a URL."""
        return self.served if self.served is not None and is_served(url) else self.sql


LONG, INT, TEXT, BYTES = pa.int64(), pa.int32(), pa.string(), pa.binary()
#: Bytes of bodies that are read at once, about.
_MOST_BYTES = 32 * 1024 * 1024
TIME = pa.timestamp("us", tz="UTC")
NUMBER = f"m.key & {LAST_SEQUENCE}"
#: What a stream of messages has, after what tells its claim. Whatever users made is bytes.
MESSAGE = {
    "sequence_number": Column(LONG, NUMBER),
    "message_id": Column(TEXT, "CAST(m.message_id AS TEXT)"),
    "session_id": Column(TEXT, "m.session_id"),
    "enqueued_time": Column(TIME, "m.enqueued"),
    "expires_at": Column(TIME, f"CASE WHEN m.expires <= {LAST_MOMENT} THEN m.expires END"),
    # What a range locks was not written when it was delivered.
    "attempt": Column(INT, f"m.deliveries + CASE m.state WHEN {FRESH} THEN 1 ELSE 0 END"),
    "delivery_count": Column(INT, "m.delivery_count"),
    "cycle": Column(INT, "m.cycle"),
    "generation": Column(INT, "m.generation"),
    "enqueued_sequence_number": Column(LONG, "m.enqueued_sequence_number"),
    "headers": Column(BYTES, "m.headers"),
    "body": Column(
        BYTES, "coalesce(m.body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id))"
    ),
}
CLAIM = {"claim": LONG, "shard": LONG, "epoch": LONG, "careful": pa.bool_()}
#: A stream of shards alone: whoever gets them reads the messages.
SHARDS = pa.schema([(name, CLAIM[name]) for name in ("claim", "shard", "epoch")])
STREAM = pa.schema([*CLAIM.items(), *((name, column.kind) for name, column in MESSAGE.items())])


def selected(url: str, columns: Mapping[str, Column], names: Iterable[str]) -> str:
    """Return what a query of the store at a URL selects to find these columns."""
    return ", ".join(f"{columns[name].at(url)} AS {name}" for name in names)


def schema_of(columns: Mapping[str, Column], names: Iterable[str]) -> pa.Schema:
    """Return the schema of these columns."""
    return pa.schema([(name, columns[name].kind) for name in names])


def rows_at_once(claim: ClaimRecord) -> int:
    """Return how many messages of a claim are read at once, by their mean size."""
    return max(1, min(BATCH_ROWS, _MOST_BYTES * claim.rows // max(claim.bytes, 1)))


def shard_query(url: str, shard: ShardRecord, names: Iterable[str]) -> tuple[str, tuple[int, ...]]:
    """Return the query of what a shard holds, in order, and its parameters."""
    ranges = " OR ".join(f"m.key BETWEEN {first} AND {last}" for first, last in shard.ranges)
    sql = SQL["shard_messages"].replace("[columns]", selected(url, MESSAGE, names))
    return sql.replace("[in_ranges]", ranges or "false"), (shard.first, shard.last, shard.token)


def read_shard(
    url: str, shard: ShardRecord, names: list[str], rows: int
) -> Generator[pa.RecordBatch, None, None]:
    """Yield what a shard holds, in order, so many rows at once, with these columns of a message."""
    yield from select(url, *shard_query(url, shard, names), schema_of(MESSAGE, names), rows)


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
