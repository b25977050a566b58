"""A store's file that has two names, each of which would have a log of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lazaretto
from lazaretto import Message, StoreError
from lazaretto.store.addresses import copy_store

#: Binds the file or folder $1 to $2 where only this process sees it, and runs the rest.
MOUNTED = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'

SEND = """
import sys, lazaretto
with lazaretto.connect(sys.argv[1]) as broker:
    broker.sender("q").send(lazaretto.Message(b"from inside"))
"""


def new_namespace() -> list[str] | None:
    """Return the command that begins a namespace of mounts; None where this user may have none."""
    if shutil.which("unshare") is None:
        return None
    for flags in ("-m", "-Urm"):
        if subprocess.run(["unshare", flags, "true"], capture_output=True).returncode == 0:
            return ["unshare", flags]
    return None


def run_mounted(source: Path, target: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that sees `source` at `target`."""
    namespace = new_namespace()
    if namespace is None:
        pytest.skip("this user may not mount here")
    shell = ["sh", "-c", MOUNTED, "sh", str(source), str(target), *command]
    return subprocess.run([*namespace, *shell], capture_output=True, text=True, timeout=120)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "host folder" / "shop.db"
    path.parent.mkdir()
    with lazaretto.connect(path) as broker:
        broker.create_queue("q")
        broker.sender("q").send(Message(b"first"))
    return path


def active(path: Path) -> int:
    with lazaretto.connect(path, create=False) as broker:
        return broker.queue("q").counts.active


def test_a_hard_link_is_refused_by_either_name(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with lazaretto.connect(store) as broker:
        os.link(store, other)
        for name in (store, other):
            with pytest.raises(StoreError, match=r"got one with 2 \(hard links\).*-samefile"):
                lazaretto.connect(name)
        # Who had it open before goes on by the one name that has a log.
        broker.sender("q").send(Message(b"second"))
    command = [sys.executable, "-m", "lazaretto", "doctor", "--store", str(other)]
    doctor = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert doctor.returncode == 5, doctor
    assert "hard links" in doctor.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host folder", "other.db"], "nothing was made"
    other.unlink()
    assert active(store) == 2


def test_an_empty_file_with_two_names_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "shop.db", tmp_path / "other.db"
    path.touch()
    os.link(path, other)
    with pytest.raises(StoreError, match="hard links"):
        lazaretto.connect(path)
    assert path.read_bytes() == b""


def test_a_copy_into_a_file_with_two_names_is_refused(store: Path, tmp_path: Path) -> None:
    target, other = tmp_path / "copy.db", tmp_path / "other.db"
    target.touch()
    os.link(target, other)
    with pytest.raises(StoreError, match="hard links"):
        copy_store(str(store), str(target))


def test_a_symbolic_link_is_another_way_to_the_same_log(store: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(store)
    with lazaretto.connect(store) as broker, lazaretto.connect(link) as same:
        same.sender("q").send(Message(b"second"))
        assert [message.body for message in broker.peek("q", 5)] == [b"first", b"second"]


@pytest.mark.parametrize("name", ["shop.db", "a name \\ with\tblanks.db"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_file_that_is_mounted_by_itself_is_refused(
    store: Path, tmp_path: Path, name: str, begun: bool
) -> None:
    source = store if begun else tmp_path / "empty.db"
    source.touch()
    before = source.read_bytes()
    target = tmp_path / "data" / name
    target.parent.mkdir()
    target.touch()
    done = run_mounted(source, target, sys.executable, "-c", SEND, str(target))
    assert "mounted by itself" in done.stderr, done
    assert "mount the folder" in done.stderr
    assert source.read_bytes() == before
    assert active(store) == 1


def test_a_folder_that_is_mounted_does(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "data"
    target.mkdir()
    with lazaretto.connect(store) as broker:
        done = run_mounted(store.parent, target, sys.executable, "-c", SEND, str(target / store.name))
        assert done.returncode == 0, done
        assert [message.body for message in broker.peek("q", 5)] == [b"first", b"from inside"]
