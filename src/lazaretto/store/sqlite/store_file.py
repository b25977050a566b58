"""A store's file: created for its owner alone, and watched for removal or replacement."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import secrets
import sqlite3
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from lazaretto.errors import BrokerClosed, StoreError, StoreGone
from lazaretto.store.runtime.forks import on_fork

Identity = tuple[int, int]

_making = threading.Lock()

#: Linux writes blanks and backslashes in a mount point as octal numbers.
_ESCAPED = re.compile(rb"\\([0-7]{3})")

#: The files that are open in this process, and the identities of those that were so when it was forked.
_watched: weakref.WeakSet[WatchedFile] = weakref.WeakSet()
_inherited: set[Identity | None] = set()

#: Bytes of what tells one connection's numbers from another's.
_NAME: Final = 6

#: Events: a file was renamed away, renamed to here, or removed; the folder itself was removed or renamed.
_MOVED_FROM, _MOVED_TO, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x40, 0x80, 0x200, 0x400, 0x800
_EVENTS = _MOVED_FROM | _MOVED_TO | _DELETE | _DELETE_SELF | _MOVE_SELF
_MOST_BYTES = 1 << 16
_NONE = bytes(4)


def make(path: Path) -> None:
    """Create an empty file that only its owner can read, unless it exists; SQLite reports obstacles.

    Its log and the log's index get the same rights from SQLite.
    """
    with contextlib.suppress(OSError), _making:
        try:
            # Not opened, if that can be: to close a file drops the locks that another thread has on it.
            os.mknod(path, stat.S_IFREG | 0o600)
        except FileExistsError:
            raise
        except (AttributeError, OSError):
            # Windows has no such call, and macOS keeps it for its administrator. All threads come this way
            # before they open a file that was not there.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def identity(path: str | Path) -> Identity | None:
    """Return the identity of a file: its device and inode. None if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called often
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _open_quietly(path: str) -> int:
    """Open a file so that reading it leaves its times alone: their change is written to disk, too."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:
        # Only the file's owner may ask for that.
        return os.open(path, flags)


def _seek_and_read(fd: int, size: int, offset: int) -> bytes:
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, size)


#: Reads so many bytes at an offset; one thread at a time, since not every system has a call for it.
read_at: Final[Callable[[int, int, int], bytes]] = getattr(os, "pread", _seek_and_read)


def refuse_inherited(path: Path) -> None:
    """Raise StoreError if this process was forked from one in which the file was open.

    SQLite keeps what a process has locked in memory of the library. A child has a copy of that, but not the
    locks: it would write without any, into a log that others believe nobody uses, and remove.
    """
    if identity(path) in _inherited:
        raise StoreError(
            f"store {path}: this process was forked from one that had the store open, and SQLite would write "
            "without locks; fork before the store is opened or after it is closed, or start processes by "
            "multiprocessing's spawn or forkserver"
        )


def refuse_second_name(path: Path) -> None:
    """Raise StoreError if the file at `path` is, or may be, in use by another name, too.

    SQLite keeps the log beside the name a file is opened by. By each name there would be a log of its own,
    and what is committed by one would be overwritten, or never seen, by the other.
    """
    try:
        links = path.stat().st_nlink
    except OSError:
        # SQLite reports obstacles.
        return
    if links > 1:
        raise StoreError(
            f"store {path}: expected a file with one name, got one with {links} (hard links): each name has "
            "a log of its own, and messages would be lost. Nothing was changed; keep one name, that which "
            f"has a -wal beside it if there is one, and remove the others (find DIRECTORY -samefile {path})"
        )
    if os.path.realpath(path) in _mount_points():
        raise StoreError(
            f"store {path}: expected a file in a folder that is mounted, got a file that is mounted by "
            "itself: its log would be outside of the mount, and messages would be lost. Nothing was changed; "
            "mount the folder that it is in"
        )


def _mount_points() -> set[str]:
    """Return where something is mounted, as far as this process can see; nothing where no system tells."""
    try:
        table = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return set()
    return {os.fsdecode(_ESCAPED.sub(_unescape, line.split(b" ")[4])) for line in table.splitlines()}


def _unescape(octal: re.Match[bytes]) -> bytes:
    return bytes([int(octal[1], 8)])


class WatchedFile:
    """The file and the log that a store was opened with. Made while a connection has both open."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        #: SQLite keeps the log beside the file itself, not beside a link to it.
        self._log_path = f"{os.path.realpath(path)}-wal"
        #: The log, to read. SQLite has no locks on this file that closing it could drop.
        self.log = _open_quietly(self._log_path)
        self._link = f"/proc/self/fd/{self.log}"
        self._folders = watch((path.absolute().parent, Path(self._log_path).parent))
        #: What the watch of the folders counted before the files were found in place.
        self._seen = -1
        self._log_name = self._name_of_log()
        self._opened = (identity(self._path), identity(self._log_path))
        _watched.add(self)

    def _name_of_log(self) -> str | None:
        """Return the current path of the opened log, None if the system cannot tell."""
        try:
            return os.readlink(self._link)  # noqa: PTH115 - called often
        except OSError:
            return None

    def _log_identity(self) -> Identity | None:
        # Since Linux 6.13, to ask for a file's times makes the next commit to it half as slow again.
        if self._log_name is not None and self._name_of_log() == self._log_name:
            return self._opened[1]
        return identity(self._log_path)

    def refuse_gone(self) -> None:
        """Raise StoreGone unless both files are still where they were. Called in each commit.

        Where the folders can be watched, the files are looked at only if something happened there.
        """
        if self._folders is None:
            self.look()
            return
        try:
            events = self._folders.count()
        except OSError:
            # Somebody has closed all descriptors.
            self._folders = None
            self.look()
            return
        if events != self._seen:
            self.look()
            self._seen = events

    def look(self) -> None:
        """Do the same by looking at the files: so a folder further up that was renamed is noticed, too."""
        now = (identity(self._path), self._log_identity())
        if now == self._opened:
            return
        self._seen = -1
        which = 0 if now[0] != self._opened[0] else 1
        name = (self._path, self._log_path)[which]
        raise StoreGone(
            f"store {self._path}: {name} was {'removed or renamed' if now[which] is None else 'replaced'} "
            "while the store was open. The call changed nothing, and nothing more is written. "
            "Stop all processes that have the store open, restore the right files, and connect again"
        )

    @property
    def gone(self) -> bool:
        """Whether one of the files is no longer where it was."""
        try:
            self.look()
        except StoreGone:
            return True
        return False

    def close(self) -> None:
        """Close the log."""
        self._log_name = None
        os.close(self.log)
        _watched.discard(self)


def _inherit() -> None:
    _inherited.update(file._opened[0] for file in _watched)
    _inherited.discard(None)
    _watched.clear()


on_fork(after_in_child=_inherit)


class CommitMarks:
    """Marks of what a file holds: between two that are equal nobody committed. Threads can share it.

    `opened`: returns a connection that only reads. `closed`: the store is closed.
    """

    def __init__(self, opened: Callable[[], sqlite3.Connection], closed: threading.Event) -> None:
        self._opened, self._closed = opened, closed
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._name = ""

    def mark(self) -> str:
        """Return the mark of what the file holds now. Raises BrokerClosed, sqlite3.Error."""
        with self._lock:
            if self._closed.is_set():
                raise BrokerClosed("the broker is closed")
            if self._connection is None:
                # The number counts what one connection has seen.
                self._connection, self._name = self._opened(), secrets.token_hex(_NAME)
            try:
                (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error:
                self._forget()
                raise
            return f"{self._name}-{version}"

    def close(self) -> None:
        """Close the connection, once the store is closed."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class FolderWatch:
    """The folders that this process watches: all in one, as a system allows each user only about 100."""

    def __init__(self) -> None:
        # Not every system has these.
        import fcntl
        import termios

        self._ioctl: Callable[..., Any] = fcntl.ioctl
        self._unread_bytes = termios.FIONREAD
        libc = ctypes.CDLL(None, use_errno=True)
        self._add = libc.inotify_add_watch
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        self._lock = threading.Lock()
        self._unread = bytearray(4)
        self._events = 0

    def add(self, folder: Path) -> None:
        """Watch one more folder, until the process ends. A folder in which nothing happens costs nothing."""
        if self._add(self._fd, os.fsencode(folder), _EVENTS) < 0:
            raise OSError(ctypes.get_errno(), f"{folder} cannot be watched")

    def count(self) -> int:
        """Return a number that rises when something happens in a folder. Raises OSError."""
        # Threads share the buffer: whoever finds 0 in it finds the number that was raised before.
        self._ioctl(self._fd, self._unread_bytes, self._unread)
        if self._unread != _NONE:
            with self._lock:
                self._events += 1
                with contextlib.suppress(BlockingIOError):
                    os.read(self._fd, _MOST_BYTES)
        return self._events

    def close(self) -> None:
        """Watch nothing any more."""
        os.close(self._fd)


@functools.cache
def _of_process() -> FolderWatch | None:
    """Return the watch of this process, None where the system has none to give."""
    if sys.platform != "linux":
        return None
    try:
        return FolderWatch()
    except (ImportError, AttributeError, OSError):
        return None


def _forget() -> None:
    """Leave the events of the parent to the parent."""
    if _of_process.cache_info().currsize:
        inherited = _of_process()
        _of_process.cache_clear()
        if inherited is not None:
            inherited.close()


on_fork(after_in_child=_forget)


def watch(folders: Iterable[Path]) -> FolderWatch | None:
    """Watch these folders too; return None if the system cannot."""
    shared = _of_process()
    if shared is None:
        return None
    try:
        for folder in folders:
            shared.add(folder)
    except OSError:
        return None
    return shared
