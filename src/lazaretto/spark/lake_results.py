"""Results in tables of Delta or Iceberg, without a JVM: each claim is one commit of the table, once."""

from __future__ import annotations

import abc
import importlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from lazaretto.errors import InvalidOption
from lazaretto.model.installing import install
from lazaretto.spark.parquet_results import (
    FilePart,
    FolderState,
    absolute_root,
    file_system_of,
    read_record,
    write_record,
)
from lazaretto.spark.results import ResultOwner, ResultPart

#: How often a commit is tried again that others were faster than.
_TRIES = 20
#: Where the files of claims are, in the table's folder.
_FOLDER = "lazaretto"
#: Where the table's folder says from which claim on results are there: what cleans up passes over it.
_STATES = "_lazaretto_state"


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InvalidOption(f"these results need {name}: {install(extra)}") from None


class _ClaimPart:
    """A part of a file, to which the number of the claim is added."""

    def __init__(self, part: ResultPart, schema: pa.Schema, claim: int) -> None:
        self._part, self._schema, self._claim = part, schema, claim

    def write(self, batch: pa.RecordBatch) -> None:
        claim = pa.repeat(pa.scalar(self._claim, pa.int64()), batch.num_rows)
        number, *others = batch.columns
        self._part.write(pa.RecordBatch.from_arrays([number, claim, *others], schema=self._schema))

    def close(self) -> None:
        self._part.close()


class _TableFiles(abc.ABC):
    """Parquet files below a table's folder, which belong to the table only when a commit says so.

    `root`: a path or URI. A folder for each claim of each consumer; a file for each run of a shard.
    """

    def __init__(self, root: str) -> None:
        self.root = absolute_root(root).rstrip("/")
        self.owner: ResultOwner | None = None
        self.schema: pa.Schema | None = None

    def copied(self, **changes: Any) -> Self:
        """Return a copy with some attributes changed."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    @property
    def name(self) -> str:
        """Return the name under which the table counts the claims of its consumer."""
        if self.owner is None:
            raise InvalidOption("these results are for lazaretto.spark.process, which says whose they are")
        return f"lazaretto-{self.owner.key}"

    def owned_by(self, owner: ResultOwner) -> Self:
        """Return the sink for one consumer's results. A table may have those of several."""
        return self.copied(owner=owner)

    def _with_claim(self, schema: pa.Schema) -> pa.Schema:
        number, *others = schema
        if "claim" in schema.names:
            raise InvalidOption(
                "the column 'claim' of the results is the sink's own: give yours another name"
            )
        return pa.schema([number, pa.field("claim", pa.int64()), *others])

    def file_system(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """Return the file system, and the table's folder there with a slash at its end, if it has a name."""
        files, root = file_system_of(self.root)
        return files, f"{root}/"

    def _place(self, claim: int) -> tuple[pyarrow.fs.FileSystem, str, str]:
        """Return where a claim's files are: the file system, the table's folder, and theirs within it."""
        return *self.file_system(), f"{_FOLDER}/{self.name}/{claim:010}"

    def open_stage(self, schema: pa.Schema, claim: int, shard: int, stage: str) -> ResultPart:
        """Return a file of which the table knows nothing yet."""
        files, root, folder = self._place(claim)
        files.create_dir(f"{root}{folder}", recursive=True)
        whole = self._with_claim(schema)
        return _ClaimPart(FilePart(files, f"{root}{folder}/{stage}.parquet", whole), whole, claim)

    def found(self, claim: int, stages: Sequence[str]) -> list[tuple[str, pyarrow.fs.FileInfo, int]]:
        """Return the files of stages that have rows: path within the table, facts and rows."""
        files, root, folder = self._place(claim)
        names = [f"{folder}/{stage}.parquet" for stage in stages]
        facts = files.get_file_info([f"{root}{name}" for name in names]) if names else []
        present = [
            (name, fact, pq.read_metadata(fact.path, filesystem=files).num_rows)
            for name, fact in zip(names, facts, strict=True)
            if fact.type is pyarrow.fs.FileType.File
        ]
        return [one for one in present if one[2]]

    @abc.abstractmethod
    def published(self) -> int:
        """Return the last claim that the table has, 0 if it has none."""

    def begin(self, claim: int) -> None:
        """Note that claims up to this one have nothing here that is not published, unless it was noted."""
        files, root = self.file_system()
        path = f"{root}{_STATES}/{self.name}.json"
        if read_record(files, path, FolderState) is None:
            write_record(files, path, FolderState(max(claim, self.published())))

    def lost(self, claim: int, results: Mapping[str, int]) -> list[str]:
        """Return the files that are missing of a claim that was not published yet."""
        files, root, folder = self._place(claim)
        state = read_record(files, f"{root}{_STATES}/{self.name}.json", FolderState)
        if state is None or claim <= state.published or claim <= self.published():
            return []
        names = [f"{root}{folder}/{stage}.parquet" for stage, rows in results.items() if rows]
        facts = files.get_file_info(names) if names else []
        return [fact.path for fact in facts if fact.type is not pyarrow.fs.FileType.File]

    def remove(self, claim: int) -> None:
        """Remove the files of a revoked claim: the table has none of them."""
        files, root, folder = self._place(claim)
        if files.get_file_info(f"{root}{folder}").type is pyarrow.fs.FileType.Directory:
            files.delete_dir(f"{root}{folder}")


class DeltaResults(_TableFiles):
    """A Delta table, by `deltalake`. It has the columns `sequence_number`, `claim` and the schema's.

    `root`: path or URI of the table, which is created if there is none. `storage_options`: as for deltalake.
    Each claim is one commit with an application transaction: its version is the number of the claim.
    """

    def __init__(self, root: str, storage_options: Mapping[str, str] | None = None) -> None:
        super().__init__(root)
        self._storage = None if storage_options is None else dict(storage_options)

    def file_system(self) -> tuple[pyarrow.fs.FileSystem, str]:
        if self._storage is None:
            return super().file_system()
        # The library's own, for what the user has told it.
        handler = _library("deltalake.fs", "delta").DeltaStorageHandler(self.root, self._storage)
        return pyarrow.fs.PyFileSystem(handler), ""

    def _table(self) -> Any:
        """Return the table as it is now, None if there is none."""
        delta = _library("deltalake", "delta")
        if not delta.DeltaTable.is_deltatable(self.root, storage_options=self._storage):
            return None
        return delta.DeltaTable(self.root, storage_options=self._storage)

    def prepared(self, schema: pa.Schema) -> Self:
        """Return the sink for results of a schema; create the table. Raises InvalidOption: it has others."""
        delta = _library("deltalake", "delta")
        whole = self._with_claim(schema)
        wanted = delta.Schema.from_arrow(whole)
        if self._table() is None:
            delta.DeltaTable.create(self.root, wanted, mode="ignore", storage_options=self._storage)
        table = self._table()
        kinds = {field.name: str(field.type) for field in table.schema().fields}
        for field in wanted.fields:
            if kinds.get(field.name) != str(field.type):
                raise InvalidOption(
                    f"the table {self.root!r} does not fit the schema of results: column {field.name!r} is "
                    f"{kinds.get(field.name, 'missing')} there, and {field.type} here"
                )
        if table.metadata().partition_columns:
            raise InvalidOption(f"the table {self.root!r} is partitioned: results need one that is not")
        return self.copied(schema=whole)

    def is_seen(self) -> bool:
        """Return whether this process sees the table that the driver has made."""
        return self._table() is not None

    def published(self) -> int:
        """Return the last claim that the table has, 0 if it has none."""
        table = self._table()
        return 0 if table is None else table.transaction_version(self.name) or 0

    def publish(self, claim: int, stages: Sequence[str]) -> None:
        """Commit a claim's files to the table, unless it has them."""
        state = self.found(claim, stages)
        delta = _library("deltalake.transaction", "delta")
        error: Exception | None = None
        for _ in range(_TRIES if state else 0):
            table = self._table()
            if (table.transaction_version(self.name) or 0) >= claim:
                return
            adds = [
                delta.AddAction(
                    name, fact.size, {}, int(time.time() * 1000), True,
                    msgspec.json.encode({"numRecords": rows}).decode(),
                )
                for name, fact, rows in state
            ]  # fmt: skip
            mark = delta.Transaction(self.name, claim)
            try:
                table.create_write_transaction(
                    adds, "append", table.schema(),
                    commit_properties=delta.CommitProperties(app_transactions=[mark]),
                )  # fmt: skip
            except _library("deltalake.exceptions", "delta").CommitFailedError as failed:
                # Somebody else was faster: perhaps a driver that did not know it was replaced.
                error = failed
                continue
            return
        if error is not None:
            raise error


class IcebergResults(_TableFiles):
    """An Iceberg table, by `pyiceberg`. It has the columns `sequence_number`, `claim` and the schema's.

    `table`: its name in the catalog, as "shop.orders". It is created if there is none. `catalog`, and
    `properties` of it: as for `pyiceberg.catalog.load_catalog`. Each claim is one commit, which also sets a
    property of the table to the number of the claim.
    """

    def __init__(self, table: str, catalog: str = "default", **properties: str) -> None:
        super().__init__("")
        self._name, self._catalog, self._properties = table, catalog, properties
        self._metadata = ""
        self._io: Mapping[str, str] = {}

    def _at(self, location: str) -> tuple[pyarrow.fs.FileSystem, str]:
        """Return the file system of a location, as the table's own library finds it, and the path there."""
        kind = _library("pyiceberg.io.pyarrow", "iceberg").PyArrowFileIO
        scheme, place, path = kind.parse_location(location, self._io)
        return kind(self._io).fs_by_scheme(scheme, place), path

    def file_system(self) -> tuple[pyarrow.fs.FileSystem, str]:
        files, root = self._at(self.root)
        return files, f"{root}/"

    def _load(self) -> Any:
        catalog = _library("pyiceberg.catalog", "iceberg").load_catalog(self._catalog, **self._properties)
        return catalog, _library("pyiceberg.exceptions", "iceberg")

    def prepared(self, schema: pa.Schema) -> Self:
        """Return the sink for results of a schema; create the table. Raises InvalidOption: it has others."""
        catalog, errors = self._load()
        whole = self._with_claim(schema)
        try:
            table = catalog.load_table(self._name)
        except errors.NoSuchTableError:
            table = catalog.create_table(self._name, whole)
        kinds = {field.name: field.type for field in table.schema().as_arrow()}
        for field in whole:
            kind = kinds.get(field.name)
            if kind is None or pa.nulls(0, field.type).cast(kind, safe=False).type != kind:
                raise InvalidOption(f"the table {self._name!r} has no column {field.name!r} of {field.type}")
        return self.copied(
            schema=whole,
            root=table.location().rstrip("/"),
            _metadata=table.metadata_location.rpartition("/")[0],
            _io=dict(table.io.properties),
        )

    def is_seen(self) -> bool:
        """Return whether this process sees the folder of the table that the driver has loaded."""
        files, folder = self._at(self._metadata)
        return files.get_file_info(folder).type is pyarrow.fs.FileType.Directory

    def published(self) -> int:
        """Return the last claim that the table has, 0 if it has none."""
        catalog, _ = self._load()
        return int(catalog.load_table(self._name).properties.get(self.name, 0))

    def publish(self, claim: int, stages: Sequence[str]) -> None:
        """Commit a claim's files to the table, unless it has them."""
        paths = [f"{self.root}/{name}" for name, _, _ in self.found(claim, stages)]
        catalog, errors = self._load()
        error: Exception | None = None
        for _ in range(_TRIES if paths else 0):
            table = catalog.load_table(self._name)
            if int(table.properties.get(self.name, 0)) >= claim:
                return
            # In this copy of the table's facts alone. The library would put its commit on top of any other
            # by itself, also of one that has this claim.
            table.metadata.properties["commit.retry.num-retries"] = "0"
            try:
                with table.transaction() as change:
                    change.add_files(paths, check_duplicate_files=False)
                    change.set_properties({self.name: str(claim)})
            except errors.CommitFailedException as failed:
                error = failed
                continue
            return
        if error is not None:
            raise error
