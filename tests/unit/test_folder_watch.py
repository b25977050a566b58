"""What the watch of folders counts, and that a forked child has one of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lazaretto.store.sqlite.store_file import FolderWatch, watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    return folder


def watched(folder: Path) -> FolderWatch:
    found = watch([folder])
    assert found is not None
    return found


def remove(folder: Path) -> None:
    (folder / "a").unlink()


def rename_away(folder: Path) -> None:
    (folder / "a").rename(folder.parent / "c")


def replace(folder: Path) -> None:
    (folder.parent / "b").rename(folder / "a")


def rename_folder(folder: Path) -> None:
    folder.rename(folder.parent / "there")


@pytest.mark.parametrize("harm", [remove, rename_away, replace, rename_folder])
def test_what_may_remove_a_file_counts_at_once(folder: Path, harm: Callable[[Path], None]) -> None:
    found = watched(folder)
    before = found.count()
    harm(folder)
    after = found.count()
    assert after > before
    assert found.count() == after


def test_writing_does_not_count(folder: Path) -> None:
    found = watched(folder)
    before = found.count()
    (folder / "a").write_bytes(b"more")
    assert found.count() == before


def test_several_stores_share_one_watch(folder: Path) -> None:
    assert watched(folder) is watched(folder.parent)


def test_what_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    assert watch([tmp_path / "nowhere"]) is None


def test_a_forked_child_leaves_the_events_to_its_parent(folder: Path) -> None:
    found = watched(folder)
    before = found.count()
    child = os.fork()
    if child == 0:
        try:
            own = watch([folder])
            remove(folder)
            os._exit(0 if own is not None and own is not found and own.count() == 1 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert found.count() > before
