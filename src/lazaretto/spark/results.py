"""Results of a pipeline, by claim and shard, so that a replay replaces what it wrote before."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from lazaretto.failure import Failure, failure_of
from lazaretto.store.claims import MOST_SHARDS

_GROUP = 50_000


class ResultSchemaError(Exception):
    """A handler's result does not fit the schema of results."""


class ResultPart(Protocol):
    """Where the results of one shard of a claim go."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take some results."""

    def close(self) -> None:
        """Make them visible, all at once: in place of what an earlier run of the same shard wrote."""


class ResultSink(Protocol):
    """Where results go. Is sent to tasks, so it can be pickled.

    A claim may be run again, and then its results come again, the same shard in the same place: so
    that there are no duplicates, a sink replaces what it has of a claim and shard.
    """

    def open(self, schema: pa.Schema, claim: int, shard: int) -> ResultPart:
        """Return where the results of a shard go. `schema`: `sequence_number`, and what the user said."""

    def remove(self, claim: int) -> None:
        """Forget the results of a claim that was revoked: its messages come again in another one."""


class ParquetResults:
    """A folder, or URI, of Parquet files: one for each shard of each claim. File systems are Arrow's."""

    def __init__(self, root: str) -> None:
        self._root = root

    def _at(self, claim: int) -> tuple[pyarrow.fs.FileSystem, str]:
        if "://" in self._root:
            files, path = pyarrow.fs.FileSystem.from_uri(self._root)
        else:
            files, path = pyarrow.fs.LocalFileSystem(), self._root
        return files, f"{path.rstrip('/')}/claim={claim:010}"

    def open(self, schema: pa.Schema, claim: int, shard: int) -> ResultPart:
        """Return a file that readers do not see before it is whole."""
        files, folder = self._at(claim)
        files.create_dir(folder, recursive=True)
        return _ParquetPart(files, folder, schema, shard)

    def remove(self, claim: int) -> None:
        """Remove a claim's folder."""
        files, folder = self._at(claim)
        if files.get_file_info(folder).type is not pyarrow.fs.FileType.NotFound:
            files.delete_dir(folder)


class _ParquetPart:
    def __init__(self, files: pyarrow.fs.FileSystem, folder: str, schema: pa.Schema, shard: int) -> None:
        self._files = files
        self._path = f"{folder}/part-{shard:04}.parquet"
        # Readers pass over names like this one.
        self._hidden = f"{folder}/_{uuid.uuid4().hex}"
        self._writer = pq.ParquetWriter(self._hidden, schema, filesystem=files)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()
        self._files.move(self._hidden, self._path)


class Results:
    """Collects the results of one shard. `sequence_number` is the first column, the schema's follow."""

    def __init__(self, sink: ResultSink, schema: pa.Schema, claim: int, shard: int) -> None:
        self._schema = pa.schema([pa.field("sequence_number", pa.int64()), *schema])
        self._struct = pa.struct(list(schema))
        self._part = sink.open(self._schema, claim, shard % MOST_SHARDS)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    @classmethod
    def of(cls, sink: ResultSink | None, schema: bytes | None, claim: int, shard: int) -> Results | None:
        """Return what collects a shard's results, None if none are wanted."""
        if sink is None or schema is None:
            return None
        return cls(sink, pa.ipc.read_schema(pa.py_buffer(schema)), claim, shard)

    def add(self, numbers: Sequence[int], results: Sequence[Any]) -> dict[int, Failure]:
        """Add results of messages; return the failures of those that do not fit, by their place."""
        if not numbers:
            return {}
        wrong: dict[int, Failure] = {}
        try:
            found = pa.array(results, self._struct)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            wrong = self._which(results)
            good = [index for index in range(len(results)) if index not in wrong]
            numbers = [numbers[index] for index in good]
            found = pa.array([results[index] for index in good], self._struct)
        arrays = [pa.array(numbers, pa.int64()), *found.flatten()]
        self._keep(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        return wrong

    def add_batch(self, numbers: Sequence[int], found: pa.RecordBatch) -> None:
        """Add the results of messages, a row each. Raises ResultSchemaError, and then adds none."""
        try:
            columns = [found.column(field.name).cast(field.type) for field in self._struct]
        except (pa.ArrowException, KeyError) as error:
            raise ResultSchemaError(
                f"the function's result does not fit the schema of results: {error}"
            ) from error
        arrays = [pa.array(numbers, pa.int64()), *columns]
        self._keep(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _which(self, results: Sequence[Any]) -> dict[int, Failure]:
        wrong = {}
        for index, result in enumerate(results):
            try:
                pa.array([result], self._struct)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                text = f"the handler's result does not fit the schema of results: {error}"
                failure = failure_of(ResultSchemaError(text))
                assert failure is not None
                wrong[index] = failure
        return wrong

    def _keep(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _GROUP:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._part.write(pa.concat_batches(self._waiting))
        self._waiting, self._rows = [], 0

    def close(self) -> None:
        """Write what is left, and have it seen."""
        self._write()
        self._part.close()
