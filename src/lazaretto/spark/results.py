"""Results of a pipeline, by claim and shard, so that a replay replaces what it wrote before."""

from __future__ import annotations

import socket
from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec
import pyarrow as pa

from lazaretto.model.checks import suggestion
from lazaretto.model.failure import Failure, failure_of
from lazaretto.spark.bodies import MISFITS
from lazaretto.spark.result_values import cast_column, rows_of
from lazaretto.spark.task_errors import Outage, writing

#: Results that are kept until they are written: rows, and bytes.
_GROUP, _GROUP_BYTES = 50_000, 32 * 1024 * 1024


class ResultSchemaError(Exception):
    """A handler's result does not fit the schema of results."""


class ResultsRefused(Exception):
    """The place of results refuses some of them, and has taken none of the batch.

    `errors`: why, by the row of the batch.
    """

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        super().__init__(f"{len(errors)} results are refused")
        self.errors = dict(errors)


class ResultOwner(msgspec.Struct, frozen=True):
    """The consumer that owns results. `identity` differs when a queue or store was created anew."""

    store: str
    queue: str
    consumer: str
    identity: int

    @property
    def key(self) -> str:
        """Return its name in files: 16 hexadecimal digits."""
        return f"{self.identity:016x}"

    @property
    def named(self) -> tuple[str, str, str]:
        """Return its name for users."""
        return self.store, self.queue, self.consumer


class ResultPart(Protocol):
    """A place for the results of one shard of a claim."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take some results, or none of them and raise ResultsRefused: then their messages have failed."""

    def close(self) -> None:
        """Make the results visible, all at once. They replace those of an earlier run of the same shard."""


class ResultSink(Protocol):
    """A place for results. It is sent to tasks, so it must be picklable.

    A claim may run again. Its results are then written again, with the same shards. To avoid duplicates, a
    sink replaces the results of the same claim and shard. Each consumer numbers its own claims, so a sink
    may have a method `owned_by(owner)`. It is called once before the query starts. It returns the sink for
    that ResultOwner, or raises if the existing results belong to another.
    """

    def open(self, schema: pa.Schema, claim: int, shard: int) -> ResultPart:
        """Return where the results of a shard go. `schema` is `sequence_number` and the user's columns."""

    def remove(self, claim: int) -> None:
        """Remove the results of a revoked claim. Its messages will be delivered in another claim."""


class PublishingSink(Protocol):
    """A place for results that are visible only when their claim is settled. It is sent to tasks.

    Each run of a shard has a stage, whose results stay apart from those of other runs. The driver publishes
    the stages that a claim was settled with, so that results and outcomes are always of the same run.

    There may also be: `owned_by(owner)` and `prepared(schema)`, which return the sink to use; `is_seen()`,
    which says in a task whether it sees the place that the driver has prepared; `published()`, the number of
    the last claim there, which shows that a store is older than its results. `refuses`: true of a sink whose
    parts may raise ResultsRefused. `refused(claim, stages)` returns why results would be refused when they
    are published, by sequence number, and takes them away with `forget(claim, numbers)`: both are called
    before the claim is settled. `begin(claim)` is called when a query starts, with the last claim that has
    ended; `lost(claim, results)` returns what is missing of a claim that was not published, where `results`
    says how many results each of its stages has.
    """

    def open_stage(self, schema: pa.Schema, claim: int, shard: int, stage: str) -> ResultPart:
        """Return where the results of one run of a shard go."""

    def publish(self, claim: int, stages: Sequence[str]) -> None:
        """Make the results of these stages visible, unless they are. Called in the order of claims."""

    def remove(self, claim: int) -> None:
        """Remove the results of a revoked claim. Its messages will be delivered in another claim."""


Sink = ResultSink | PublishingSink


def owned(sink: Sink, owner: ResultOwner) -> Sink:
    """Return the sink for one consumer. Raises the sink's error if it belongs to another."""
    own = getattr(sink, "owned_by", None)
    owned_sink: Sink = sink if own is None else own(owner)
    return owned_sink


def is_seen(sink: Sink | None) -> bool:
    """Return whether this process sees the place that the driver has prepared, if the sink can say so."""
    look = getattr(sink, "is_seen", None)
    return look is None or bool(look())


def refuses(sink: Sink | None) -> bool:
    """Return whether a sink may refuse results of its own accord."""
    return bool(getattr(sink, "refuses", False))


def publishing(sink: Sink | None) -> PublishingSink | None:
    """Return a sink if it publishes."""
    return cast(PublishingSink, sink) if hasattr(sink, "publish") else None


def _whole(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field("sequence_number", pa.int64()), *schema])


def prepared(sink: Sink, schema: bytes) -> Sink:
    """Return the sink made ready for results of a schema. Raises the sink's error if they do not fit."""
    prepare = getattr(sink, "prepared", None)
    ready: Sink = sink if prepare is None else prepare(_whole(pa.ipc.read_schema(pa.py_buffer(schema))))
    return ready


#: A batch may also lack a column.
_MISFITS = (*MISFITS, KeyError)


def _failure(what: str, error: Exception) -> Failure:
    failure = failure_of(ResultSchemaError(f"{what} does not fit the schema of results: {error}"))
    assert failure is not None
    return failure


def _told(error: BaseException) -> Failure:
    failure = failure_of(error)
    assert failure is not None
    return failure


def _not_behind(wrong: Container[int], sessions: Sequence[str | None]) -> list[int]:
    """Return the positions of results that are not wrong, and of a session not behind one that is."""
    names: set[str] = set()
    good = []
    for index, session in enumerate(sessions):
        if index in wrong:
            if session is not None:
                names.add(session)
        elif session not in names:
            good.append(index)
    return good


def _requires(kind: pa.DataType) -> bool:
    """Return whether a type has a field that must not be null."""
    fields = [kind.field(place) for place in range(kind.num_fields)]
    return any(not field.nullable or _requires(field.type) for field in fields)


def _first_null(array: pa.Array, path: str = "") -> str | None:
    """Return the path to a field that is null and must not be, None if there is none."""
    kind = array.type
    # What stands below a null is nothing.
    array = array.drop_null() if array.null_count else array
    if pa.types.is_struct(kind):
        parts = [(f"{path}.{field.name}".lstrip("."), field, array.field(field.name)) for field in kind]
    elif pa.types.is_map(kind):
        parts = [(f"{path}{{}}", kind.item_field, array.items)]
    elif pa.types.is_list(kind):
        parts = [(f"{path}[]", kind.value_field, array.flatten())]
    else:
        return None
    for name, field, values in parts:
        null = name if values.null_count and not field.nullable else _first_null(values, name)
        if null is not None:
            return null
    return None


class Results:
    """Collects the results of one run of a shard. `sequence_number` is the first column.

    `add`, `add_batch` and `close` raise Outage if the place where results go fails.

    `rows`: how many were written. `refused`: why the place has refused others, by sequence number.
    """

    def __init__(self, sink: Sink, schema: pa.Schema, claim: int, shard: int, stage: str) -> None:
        self.rows = 0
        self.refused: dict[int, Failure] = {}
        self._schema = _whole(schema)
        self._struct = pa.struct(list(schema))
        self._requires = _requires(self._struct)
        self._sink, self._at = sink, (claim, shard, stage)
        self._part: ResultPart | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._held = self._bytes = 0

    @classmethod
    def of(
        cls, sink: Sink | None, schema: bytes | None, claim: int, shard: int, stage: str
    ) -> Results | None:
        """Return the collector of a shard's results, or None if there is no sink."""
        if sink is None or schema is None:
            return None
        return cls(sink, pa.ipc.read_schema(pa.py_buffer(schema)), claim, shard, stage)

    def add(
        self, numbers: Sequence[int | None], results: Sequence[Any], sessions: Sequence[str | None]
    ) -> dict[int, Failure]:
        """Add results of messages; return the failures of those that do not fit the schema, by position.

        Of a session, those behind such a one are not added.
        """
        if not numbers:
            return {}
        wrong: dict[int, Failure] = {}
        places: Sequence[int] = range(len(numbers))
        try:
            array = self._array(results)
        except _MISFITS:
            wrong = self._which(results)
            places = _not_behind(wrong, sessions)
            numbers = [numbers[index] for index in places]
            array = self._array([results[index] for index in places])
        if refuses(self._sink) and any(sessions):
            # Who runs behind one that is refused has to be known now.
            late = self._keep_now(numbers, array, [sessions[index] for index in places])
            return wrong | {places[index]: failure for index, failure in late.items()}
        self._keep(numbers, array)
        return wrong

    def add_batch(self, numbers: Sequence[int | None], batch: pa.RecordBatch) -> dict[int, Failure]:
        """Add the results of messages, one row each; return the failures of those that do not fit."""
        wrong: dict[int, Failure] = {}
        try:
            fitted = self._cast(batch)
        except _MISFITS:
            parts = []
            for index in range(len(numbers)):
                try:
                    parts.append(self._cast(batch.slice(index, 1)))
                except _MISFITS as error:
                    wrong[index] = _failure("the function's result", error)
            numbers = [number for index, number in enumerate(numbers) if index not in wrong]
            if not parts:
                return wrong
            fitted = pa.concat_arrays(parts)
        self._keep(numbers, fitted)
        return wrong

    def _which(self, results: Sequence[Any]) -> dict[int, Failure]:
        wrong = {}
        for index, result in enumerate(results):
            try:
                self._array([result])
            except _MISFITS as error:
                wrong[index] = _failure("the handler's result", error)
        return wrong

    def _array(self, results: Sequence[Any]) -> pa.StructArray:
        return self._complete(rows_of(results, self._struct))

    def _cast(self, batch: pa.RecordBatch) -> pa.StructArray:
        names = [field.name for field in self._struct]
        unknown = next((name for name in batch.schema.names if name not in names), None)
        if unknown is not None:
            raise ValueError(f"the schema has no field {unknown!r}{suggestion(unknown, names)} - at `$`")
        columns = [
            cast_column(batch.column(field.name), field.type, f"$.{field.name}") for field in self._struct
        ]
        return self._complete(pa.StructArray.from_arrays(columns, fields=list(self._struct)))

    def _complete(self, array: pa.StructArray) -> pa.StructArray:
        """Return results in which nothing is null that must not be: Arrow does not look at that."""
        null = _first_null(array) if self._requires else None
        if null is not None:
            raise ValueError(f"{null!r} is null, which its schema excludes")
        return array

    def _batch(self, numbers: Sequence[int | None], array: pa.StructArray) -> pa.RecordBatch:
        arrays = [pa.array(numbers, pa.int64()), *array.flatten()]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _keep(self, numbers: Sequence[int | None], array: pa.StructArray) -> None:
        batch = self._batch(numbers, array)
        self._waiting.append(batch)
        self._held += batch.num_rows
        self._bytes += batch.nbytes
        if self._held >= _GROUP or self._bytes >= _GROUP_BYTES:
            self.flush()

    def _keep_now(
        self, numbers: Sequence[int | None], array: pa.StructArray, sessions: Sequence[str | None]
    ) -> dict[int, Failure]:
        """Write results at once; return the failures of those that are refused, by position."""
        batch = self._batch(numbers, array)
        refused = self._offer(batch)
        if refused:
            self._offer_rest(batch, _not_behind(refused, sessions))
        return refused

    def flush(self) -> None:
        """Write what waits; what the place refuses of it is in `refused`."""
        if self._waiting:
            batch = pa.concat_batches(self._waiting)
            refused = self._offer(batch)
            if refused:
                numbers = batch.column(0).to_pylist()
                self.refused |= {numbers[index]: failure for index, failure in refused.items()}
                self._offer_rest(batch, [row for row in range(batch.num_rows) if row not in refused])
        self._waiting, self._held, self._bytes = [], 0, 0

    def _offer(self, batch: pa.RecordBatch) -> dict[int, Failure]:
        """Write a batch, or nothing; return the failures of the rows that are refused."""
        try:
            with writing():
                self._opened().write(batch)
        except ResultsRefused as refused:
            return {index: _told(error) for index, error in refused.errors.items()}
        self.rows += batch.num_rows
        return {}

    def _offer_rest(self, batch: pa.RecordBatch, places: Sequence[int]) -> None:
        rest = batch.take(pa.array(places, pa.int64()))
        with writing():
            self._opened().write(rest)
        self.rows += rest.num_rows

    def _opened(self) -> ResultPart:
        if self._part is None:
            claim, shard, stage = self._at
            if not is_seen(self._sink):
                # What it wrote elsewhere nobody would miss, and nobody would find.
                raise Outage(
                    f"{socket.gethostname()} does not see the place of results that the driver has prepared: "
                    "name a folder that all machines share, or a URI"
                )
            published = publishing(self._sink)
            if published is not None:
                self._part = published.open_stage(self._schema, claim, shard, stage)
            else:
                self._part = cast(ResultSink, self._sink).open(self._schema, claim, shard)
        return self._part

    def close(self) -> None:
        """Write the rest and make all results visible."""
        self.flush()
        with writing():
            # Also without rows: readers find the schema there.
            self._opened().close()
