"""Results of a pipeline: a Parquet file for each shard of a claim, so that a replay writes it again."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from lazaretto.failure import Failure, failure_of
from lazaretto.store.claims import MOST_SHARDS

_GROUP = 50_000


class ResultSchemaError(Exception):
    """A handler's result does not fit the schema of results."""


def claim_folder(root: str, claim: int) -> str:
    """Return the folder of a claim's results."""
    return f"{root.rstrip('/')}/claim={claim:010}"


def filesystem_of(root: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return where a path or URI lies: file systems are Arrow's."""
    if "://" in root:
        found: tuple[pyarrow.fs.FileSystem, str] = pyarrow.fs.FileSystem.from_uri(root)
        return found
    return pyarrow.fs.LocalFileSystem(), root


def remove_claim(root: str, claim: int) -> None:
    """Remove the results of a claim that was revoked: its messages come again in another one."""
    files, path = filesystem_of(root)
    folder = claim_folder(path, claim)
    if files.get_file_info(folder).type is not pyarrow.fs.FileType.NotFound:
        files.delete_dir(folder)


class ResultFile:
    """The results of one shard. `sequence_number` is the first column, the schema's follow."""

    def __init__(self, root: str, schema: pa.Schema, claim: int, shard: int) -> None:
        self._schema = pa.schema([pa.field("sequence_number", pa.int64()), *schema])
        self._struct = pa.struct(list(schema))
        self._files, path = filesystem_of(root)
        folder = claim_folder(path, claim)
        self._files.create_dir(folder, recursive=True)
        self._path = f"{folder}/part-{shard % MOST_SHARDS:04}.parquet"
        # Hidden from readers until it is whole.
        self._hidden = f"{folder}/_{uuid.uuid4().hex}"
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    @classmethod
    def at(cls, root: str | None, schema: bytes | None, claim: int, shard: int) -> ResultFile | None:
        """Return the file of a shard's results, None if none are wanted."""
        if root is None or schema is None:
            return None
        return cls(root, pa.ipc.read_schema(pa.py_buffer(schema)), claim, shard)

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
        batch = pa.RecordBatch.from_arrays(
            [pa.array(numbers, pa.int64()), *found.flatten()], schema=self._schema
        )
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _GROUP:
            self._write()
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
        self._waiting.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows += len(numbers)
        if self._rows >= _GROUP:
            self._write()

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

    def _write(self) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._hidden, self._schema, filesystem=self._files)
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._rows = [], 0

    def close(self) -> None:
        """Write what is left, and put the file in its place."""
        self._write()
        assert self._writer is not None
        self._writer.close()
        self._files.move(self._hidden, self._path)
