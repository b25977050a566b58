"""Results in a folder of Parquet files, one for each shard of each claim."""

from __future__ import annotations

import contextlib
import copy
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from lazaretto.errors import InvalidOption
from lazaretto.spark.results import PublishingSink, ResultOwner, ResultPart

#: Where the folder says whose it is. Readers of Parquet pass over a name like this one.
_OWNERS = "_lazaretto"
_CLAIM = "claim="
#: Where it says up to which claim it is published, and what the columns are.
_STATES = "_lazaretto_state"
#: How often it is looked whose the folder is while others come too, and seconds between at most.
_LOOKS, _PAUSE = 20, 0.1
#: Files of readers, and of runs whose claim is not settled: readers pass over the latter.
_PART, _STAGE = "part-", "_stage-"

T = TypeVar("T", bound=msgspec.Struct)


def absolute_root(root: str) -> str:
    """Return where results go, for processes that are in other folders."""
    return root if "://" in root else str(Path(root).absolute())


def file_system_of(root: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system of a path or URI, and the path there."""
    if "://" in root:
        pair: tuple[pyarrow.fs.FileSystem, str] = pyarrow.fs.FileSystem.from_uri(root)
        return pair
    return pyarrow.fs.LocalFileSystem(), root


class FolderState(msgspec.Struct, frozen=True):
    """The state of one consumer's results in a folder.

    `published`: the last claim whose results readers see, or that has none here. `columns`: their types by
    name, of all results that were ever written.
    """

    published: int = 0
    columns: dict[str, str] = {}


class ParquetResults:
    """A folder, or URI, of Parquet files: one for each shard of each claim. File systems are Arrow's.

    The folder belongs to one consumer, as a file in it says. Readers see a file when its claim is settled.
    """

    def __init__(self, root: str, owner: ResultOwner | None = None, host: ResultOwner | None = None) -> None:
        self._root = absolute_root(root)
        self._owner = owner
        #: Whose the folder is, where results of another consumer stand beside its own.
        self._host = host or owner
        self.types: dict[str, str] = {}

    def owned_by(self, owner: ResultOwner) -> PublishingSink:
        """Return the sink for one consumer's results. Raises InvalidOption if the folder is another's."""
        files, root = self._place()
        for _ in range(_LOOKS):
            if self._belongs_to(owner, files, root):
                return ParquetResults(self._root, owner)
            # Of several that come at the same time, each may give way to the others.
            time.sleep(random.uniform(0.0, _PAUSE))  # noqa: S311 - no secret
        raise InvalidOption(
            f"it cannot be told whose the results in {self._root!r} are: the files in its folder {_OWNERS!r} "
            "change, or cannot be read; start one query after the other, or name another folder"
        )

    def beside(self, owner: ResultOwner) -> PublishingSink:
        """Return the sink for results that stand beside those of the folder's own consumer."""
        return ParquetResults(self._root, owner, self._host)

    def _belongs_to(self, owner: ResultOwner, files: pyarrow.fs.FileSystem, root: str) -> bool:
        """Return whether the folder is a consumer's, or now is; False: look again. Raises InvalidOption."""
        owners = f"{root}/{_OWNERS}"
        own = f"{owner.key}.json"
        names = _names(files, owners)
        if own in names:
            return True
        if names:
            theirs = read_record(files, f"{owners}/{names[0]}", ResultOwner)
            if theirs is not None:
                self._refuse(owner, theirs)
            return False
        if any(name.startswith(_CLAIM) for name in _names(files, root)):
            raise InvalidOption(
                f"the results in {self._root!r} are of an older version, which did not record "
                "their owner: use another folder; readers can read both"
            )
        files.create_dir(owners, recursive=True)
        with files.open_output_stream(f"{owners}/{own}") as stream:
            stream.write(msgspec.json.encode(owner))
        # Looked at again: another one may have come at the same time.
        if any(name != own for name in _names(files, owners)):
            files.delete_file(f"{owners}/{own}")
            return False
        return True

    def _refuse(self, ours: ResultOwner, theirs: ResultOwner) -> NoReturn:
        raise InvalidOption(
            f"the results in {self._root!r} belong to consumer {theirs.consumer!r} of queue {theirs.queue!r} "
            f"in {theirs.store!r}, and not to {ours.consumer!r} of {ours.queue!r} in {ours.store!r}"
            f"{', which was created again' if ours.named == theirs.named else ''}: "
            "each consumer needs a folder of its own; name another one, or move the results away"
        )

    def _place(self) -> tuple[pyarrow.fs.FileSystem, str]:
        files, path = file_system_of(self._root)
        return files, path.rstrip("/")

    def is_seen(self) -> bool:
        """Return whether this process sees the folder that the driver has made its consumer's."""
        files, root = self._place()
        if self._host is None:
            return True
        own = f"{root}/{_OWNERS}/{self._host.key}.json"
        return bool(files.get_file_info(own).type is pyarrow.fs.FileType.File)

    def _at(self, claim: int) -> tuple[pyarrow.fs.FileSystem, str]:
        files, root = self._place()
        return files, f"{root}/{_CLAIM}{claim:010}"

    @property
    def _key(self) -> str:
        return "" if self._owner is None else f"{self._owner.key}-"

    def open_stage(self, schema: pa.Schema, claim: int, shard: int, stage: str) -> ResultPart:
        """Return a file that readers pass over."""
        files, folder = self._at(claim)
        files.create_dir(folder, recursive=True)
        return FilePart(files, f"{folder}/{_STAGE}{self._key}{shard:04}-{stage}", schema)

    def _state_file(self) -> tuple[pyarrow.fs.FileSystem, str] | None:
        if self._owner is None:
            return None
        files, root = self._place()
        return files, f"{root}/{_STATES}/{self._owner.key}.json"

    def _state(self) -> FolderState | None:
        """Return what the folder says of itself, None if it says nothing."""
        place = self._state_file()
        if place is None:
            return None
        files, path = place
        return read_record(files, path, FolderState)

    def _save(self, state: FolderState) -> None:
        place = self._state_file()
        if place is not None:
            write_record(*place, state)

    def prepared(self, schema: pa.Schema) -> PublishingSink:
        """Return the sink for results of a schema. Raises InvalidOption: others there have other types."""
        state = self._state()
        columns = self._columns() if state is None or not state.columns else state.columns
        spelling = {name.lower(): name for name in columns}
        for field in schema:
            spelled = spelling.get(field.name.lower())
            if spelled is not None and (spelled, columns[spelled]) != (field.name, str(field.type)):
                raise InvalidOption(
                    f"the results in {self._root!r} do not fit the schema of results: column {spelled!r} is "
                    f"{columns[spelled]} there, and {field.name!r} is {field.type} here, and no reader could "
                    "read both; use another folder, or move the results away with their folders of state"
                )
        whole = columns | {field.name: str(field.type) for field in schema}
        if state is not None and state.columns != whole:
            self._save(FolderState(state.published, whole))
        sink = copy.copy(self)
        sink.types = whole
        return sink

    def _columns(self) -> dict[str, str]:
        """Return the columns of the latest results, by a file of them."""
        files, root = self._place()
        claims = [name for name in _names(files, root) if name.startswith(_CLAIM)]
        for claim in sorted(claims, reverse=True):
            for name in _names(files, f"{root}/{claim}"):
                if name.startswith((f"{_STAGE}{self._key}", f"{_PART}{self._key}")):
                    with contextlib.suppress(pa.ArrowException, FileNotFoundError):
                        schema = pq.read_schema(f"{root}/{claim}/{name}", filesystem=files)
                        return {field.name: str(field.type) for field in schema}
        return {}

    def begin(self, claim: int) -> None:
        """Note that claims up to this one have nothing here that is not published, unless it was noted."""
        if self._state() is None:
            self._save(FolderState(claim, self.types))

    def lost(self, claim: int, results: Mapping[str, int]) -> list[str]:
        """Return the files that are missing of a claim that was not published yet."""
        state = self._state()
        if state is None or claim <= state.published:
            return []
        files, folder = self._at(claim)
        names = _names(files, folder)
        missing = [
            stage
            for stage, rows in results.items()
            if rows and not any(name.startswith(_STAGE) and name.endswith(f"-{stage}") for name in names)
        ]
        # A driver may have died while it gave them their names.
        seen = sum(name.startswith(f"{_PART}{self._key}") for name in names)
        return [f"{folder}/{_STAGE}{self._key}…-{stage}" for stage in missing[seen:]]

    def publish(self, claim: int, stages: Sequence[str]) -> None:
        """Give the files of these stages the names that readers look for; delete those of other runs."""
        files, folder = self._at(claim)
        for name in _names(files, folder):
            if name.startswith(f"{_STAGE}{self._key}"):
                shard, stage = name.removeprefix(f"{_STAGE}{self._key}").split("-")
                if stage in stages:
                    files.move(f"{folder}/{name}", f"{folder}/{_PART}{self._key}{shard}.parquet")
                else:
                    files.delete_file(f"{folder}/{name}")
        state = self._state()
        if state is not None and state.published < claim:
            self._save(FolderState(claim, state.columns))

    def published(self) -> int:
        """Return the last claim of which readers see results, 0 if there is none."""
        files, root = self._place()
        claims = [name for name in _names(files, root) if name.startswith(_CLAIM)]
        for claim in sorted(claims, reverse=True):
            if any(name.startswith(f"{_PART}{self._key}") for name in _names(files, f"{root}/{claim}")):
                return int(claim.removeprefix(_CLAIM))
        return 0

    def remove(self, claim: int) -> None:
        """Remove a claim's files."""
        files, folder = self._at(claim)
        for name in _names(files, folder):
            if name.startswith((f"{_STAGE}{self._key}", f"{_PART}{self._key}")):
                files.delete_file(f"{folder}/{name}")


def read_record(files: pyarrow.fs.FileSystem, path: str, kind: type[T]) -> T | None:
    """Return what a small file says, None if it is gone or not written yet."""
    try:
        with files.open_input_stream(path) as stream:
            return msgspec.json.decode(stream.read(), type=kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def write_record(files: pyarrow.fs.FileSystem, path: str, record: msgspec.Struct) -> None:
    """Write a small file, all at once."""
    files.create_dir(path.rpartition("/")[0], recursive=True)
    begun = f"{path}.{uuid.uuid4().hex}"
    # Buffered: not all file systems take what is Arrow's own.
    with files.open_output_stream(begun, buffer_size=4096) as stream:
        stream.write(msgspec.json.encode(record))
    files.move(begun, path)


def _names(files: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    try:
        infos = files.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
    except FileNotFoundError:
        # Arrow says so of a folder that is made while it looks.
        return []
    return [entry.base_name for entry in infos]


class FilePart:
    """A Parquet file."""

    def __init__(self, files: pyarrow.fs.FileSystem, path: str, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(path, schema, filesystem=files)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()
