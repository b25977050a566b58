"""Options of the Spark data source, which Spark passes as text, checked in one place."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import refuse_unknown, shown
from lazaretto.model.options import (
    Duration,
    Kind,
    duration,
    flag,
    integer,
    option,
    option_set,
    options_of,
    required,
    size,
    words,
)
from lazaretto.spark.views import VIEWS
from lazaretto.store.addresses import absolute
from lazaretto.store.records.claims import DEFAULT_LEASE, MOST_ROWS, MOST_SHARDS

#: Options of a stream of claims.
STREAM_OPTIONS = ("max_rows", "max_bytes", "catch_up_rows", "catch_up_after", "shards", "lease")
#: Options of what is made of bodies and properties.
BODY_OPTIONS = ("body", "body_schema", "properties")
#: What may become of rows that are written.
DEAD_LETTER, FAIL = "dead_letter", "fail"
#: How bodies may be written.
BODIES = ("json", "avro", "protobuf")
#: Options that Spark itself adds.
_OF_SPARK = ("path", "checkpointlocation", "queryname")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidOption(f"expected option {name} to be text, got {shown(value)}")
    return value


def _store(name: str, value: object) -> str:
    store = _text(name, value)
    # Tasks, and what is read later, may be in another folder.
    return store if store.startswith("env:") else absolute(store)


def _view(name: str, value: object) -> object:
    if value and value not in VIEWS:
        raise InvalidOption(f"expected option {name} to be one of {', '.join(VIEWS)}, got {shown(value)}")
    return value


def _body(name: str, value: object) -> object:
    if value and value not in BODIES:
        raise InvalidOption(f"expected option {name} to be one of {', '.join(BODIES)}, got {shown(value)}")
    return value


def _one_of(name: str, value: object, allowed: Sequence[str]) -> object:
    if value and value not in allowed:
        raise InvalidOption(f"expected option {name} to be {' or '.join(allowed)}, got {shown(value)}")
    return value


def _subqueue(name: str, value: object) -> object:
    return _one_of(name, value, (DEAD_LETTER,))


def _on_bad_row(name: str, value: object) -> object:
    return _one_of(name, value, (DEAD_LETTER, FAIL))


def _any_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidOption(f"expected option {name} to be text, got {shown(value)}")
    return value


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Everything that can be set on `format("lazaretto")`.

    Options:
        store: URL of the store. `env:NAME` reads it from an environment variable, which keeps it out of
            plans and logs.
        queue: Path of the queue.
        consumer: Name under which claims are taken.
        max_rows: Maximum number of messages of one micro-batch.
        max_bytes: Maximum size of the messages of one micro-batch.
        catch_up_rows: Maximum number of messages of one micro-batch while the query is behind; 0 for
            `max_rows`.
        catch_up_after: Age of the oldest message in the queue from which the query is behind.
        shards: Number of tasks of one micro-batch.
        lease: How long a claim stays open without a heartbeat of its driver.
        view: What a batch read shows; not for streams.
        shards_only: A stream has a row for each shard, without messages.
        body: How bodies are written. The column `value` then has them as `body_schema` says.
        body_schema: For JSON columns with types, as in SQL (default: from a sample of the queue); for Avro
            its schema in JSON; for Protobuf `module:Class` of the generated message.
        properties: Properties that are columns, with types, such as `region string, tenant bigint`.
        subqueue: Where rows that are written go: `dead_letter` makes a dead letter of each.
        on_bad_row: What becomes of a row that cannot be a message (default: `dead_letter` for streams, `fail`
            for tables).
    """

    store: str = dataclasses.field(repr=False, metadata=required(words(_store, "a URL; `env:NAME`")))
    queue: str = dataclasses.field(metadata=required(words(_text, "a path")))
    consumer: str = option("spark", words(_text, "text"))
    max_rows: int = option(100_000, integer(1, MOST_ROWS))
    max_bytes: int = option(256 * 1024 * 1024, size(1, 1 << 50))
    catch_up_rows: int = option(0, integer(0, MOST_ROWS))
    catch_up_after: Duration = option(60.0, duration(0.0, 86_400.0))
    shards: int = option(2, integer(1, MOST_SHARDS))
    lease: Duration = option(DEFAULT_LEASE, duration(1.0, 86_400.0))
    view: str = option("", words(_view, ", ".join(f"`{view}`" for view in VIEWS)))
    shards_only: bool = option(False, flag())
    body: str = option("", words(_body, ", ".join(f"`{body}`" for body in BODIES)))
    body_schema: str = option("", words(_any_text, "text"))
    properties: str = option("", words(_any_text, "names with types"))
    subqueue: str = option("", words(_subqueue, "`dead_letter`"))
    on_bad_row: str = option("", words(_on_bad_row, "`dead_letter`, `fail`"))

    def __post_init__(self) -> None:
        if self.body_schema and not self.body:
            raise InvalidOption(
                "the option body_schema needs the option body, which says how bodies are written"
            )
        if self.body in ("avro", "protobuf") and not self.body_schema:
            raise InvalidOption(f"the option body={self.body!r} needs the option body_schema")

    def url(self) -> str:
        """Return the store's URL, looked up where it is not told."""
        if not self.store.startswith("env:"):
            return self.store
        name = self.store.removeprefix("env:")
        url = os.environ.get(name)
        if not url:
            raise InvalidOption(
                f"expected the environment variable {name} to hold a store's URL, but it is not set"
            )
        return absolute(url)


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_READERS: dict[Kind, Callable[[str], Any]] = {
    Kind.INTEGER: int,
    Kind.SIZE: int,
    Kind.DURATION: float,
    Kind.TEXT: str,
    Kind.FLAG: _flag,
}
_FIELDS = {name: _READERS[one.check.kind] for name, one in options_of(SparkOptions).items()}


def parse(options: Mapping[str, str]) -> SparkOptions:
    """Return the options that Spark hands over. Raises InvalidOption."""
    values_by_name = {name.lower(): value for name, value in options.items()}
    for name in _OF_SPARK:
        values_by_name.pop(name, None)
    # Spark's own options are written likeThis; both are understood.
    names = {name.replace("_", ""): name for name in _FIELDS}
    values: dict[str, Any] = {}
    for name, text in values_by_name.items():
        field = names.get(name.replace("_", ""))
        if field is None:
            refuse_unknown([name], _FIELDS, "the options of format('lazaretto')")
            continue
        try:
            values[field] = _FIELDS[field](text)
        except KeyError:
            raise InvalidOption(f"expected option {field} to be true or false, got {shown(text)}") from None
        except ValueError:
            raise InvalidOption(f"expected option {field} to be a number, got {shown(text)}") from None
    missing = [name for name in ("store", "queue") if name not in values]
    if missing:
        raise InvalidOption(f"format('lazaretto') needs the option {missing[0]!r}")
    return SparkOptions(**values)
