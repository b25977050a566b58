"""Results in a folder of Parquet files, one for each shard of each claim."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from lazaretto.errors import InvalidOption
from lazaretto.spark.results import PublishingSink, ResultOwner, ResultPart

#: Where the folder says whose it is. Readers of Parquet pass over a name like this one.
_OWNERS = "_lazaretto"
_CLAIM = "claim="
#: How often it is looked whose the folder is while others come too, and seconds between at most.
_LOOKS, _PAUSE = 20, 0.1
#: Files of readers, and of runs whose claim is not settled: readers pass over the latter.
_PART, _STAGE = "part-", "_stage-"


def absolute_root(root: str) -> str:
    """Return where results go, for processes that are in other folders."""
    return root if "://" in root else str(Path(root).absolute())


def file_system_of(root: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system of a path or URI, and the path there."""
    if "://" in root:
        found: tuple[pyarrow.fs.FileSystem, str] = pyarrow.fs.FileSystem.from_uri(root)
        return found
    return pyarrow.fs.LocalFileSystem(), root


class ParquetResults:
    """A folder, or URI, of Parquet files: one for each shard of each claim. File systems are Arrow's.

    The folder belongs to one consumer, as a file in it says. Readers see a file when its claim is settled.
    """

    def __init__(self, root: str, owner: ResultOwner | None = None) -> None:
        self._root = absolute_root(root)
        self._owner = owner

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

    def _belongs_to(self, owner: ResultOwner, files: pyarrow.fs.FileSystem, root: str) -> bool:
        """Return whether the folder is a consumer's, or now is; False: look again. Raises InvalidOption."""
        owners = f"{root}/{_OWNERS}"
        own = f"{owner.key}.json"
        names = _names(files, owners)
        if own in names:
            return True
        if names:
            theirs = _owner_in(files, f"{owners}/{names[0]}")
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
        own = f"{root}/{_OWNERS}/{self._key.rstrip('-')}.json"
        return self._owner is None or files.get_file_info(own).type is pyarrow.fs.FileType.File

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


def _owner_in(files: pyarrow.fs.FileSystem, path: str) -> ResultOwner | None:
    """Return the owner that a file names, None if it is gone or not written yet."""
    try:
        with files.open_input_stream(path) as stream:
            return msgspec.json.decode(stream.read(), type=ResultOwner)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _names(files: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    try:
        found = files.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
    except FileNotFoundError:
        # Arrow says so of a folder that is made while it looks.
        return []
    return [entry.base_name for entry in found]


class FilePart:
    """A Parquet file."""

    def __init__(self, files: pyarrow.fs.FileSystem, path: str, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(path, schema, filesystem=files)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()
