"""The raw limit: what SQLite itself does with the same rows, with no queue around it."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import ClassVar

from bench.systems.contract import BUSY_SECONDS, Receiver, Sender, System, chunks

_SCHEMA = """
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    visible_at INTEGER NOT NULL,
    state INTEGER NOT NULL DEFAULT 0,
    token INTEGER,
    body BLOB NOT NULL
);
CREATE INDEX message_ready ON message (visible_at, id) WHERE state = 0;
"""
_INSERT = "INSERT INTO message (visible_at, body) VALUES (?, ?)"
_CLAIM = """
UPDATE message SET state = 1, token = ?, visible_at = ?
WHERE id IN (SELECT id FROM message WHERE state = 0 AND visible_at <= ? ORDER BY visible_at, id LIMIT ?)
RETURNING id, body
"""
_DELETE = "DELETE FROM message WHERE id = ? AND token = ?"
_LOCK_NANOSECONDS = 60_000_000_000

_Row = tuple[int, int, bytes]


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


class _RawSender(Sender):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def send(self, body: bytes) -> None:
        self._connection.execute(_INSERT, (time.time_ns(), body))

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        now = time.time_ns()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_INSERT, [(now, body) for body in bodies])
        self._connection.execute("COMMIT")


class _Writer:
    """One thread that commits together what many threads have handed to it.

    Sixteen connections that take turns at the write lock are not the limit of the file; this is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inbox: SimpleQueue[tuple[bytes, threading.Lock] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="raw-writer", daemon=True)
        self._thread.start()

    def write(self, body: bytes, done: threading.Lock) -> None:
        self._inbox.put((body, done))
        done.acquire()

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        connection = _connect(self._path)
        while (item := self._inbox.get()) is not None:
            asked = [item]
            while not self._inbox.empty():
                more = self._inbox.get()
                if more is None:
                    self._inbox.put(None)
                    break
                asked.append(more)
            now = time.time_ns()
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT, [(now, body) for body, _ in asked])
            connection.execute("COMMIT")
            for _, done in asked:
                done.release()
        connection.close()


class _GroupSender(Sender):
    def __init__(self, writer: _Writer) -> None:
        self._writer = writer
        self._done = threading.Lock()
        self._done.acquire()

    def send(self, body: bytes) -> None:
        self._writer.write(body, self._done)


class _RawReceiver(Receiver[_Row]):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._token = 0

    def receive(self, limit: int, wait: float) -> Sequence[_Row]:
        now = time.time_ns()
        self._token += 1
        claim = (self._token, now + _LOCK_NANOSECONDS, now, limit)
        claimed = self._connection.execute(_CLAIM, claim).fetchall()
        return [(row[0], self._token, row[1]) for row in claimed]

    def complete(self, handles: Sequence[_Row]) -> None:
        if len(handles) == 1:
            self._connection.execute(_DELETE, handles[0][:2])
            return
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_DELETE, [handle[:2] for handle in handles])
        self._connection.execute("COMMIT")

    def body(self, handle: _Row) -> bytes:
        return handle[2]


class RawSystem(System[_Row]):
    """SQLite alone: one table, one partial index, hand-over and deletion in two transactions."""

    name = "raw"
    kind = "raw"
    workloads = frozenset({"W1", "W2", "W3", "W4", "W5", "fdatasync"})
    marks: ClassVar[Mapping[str, str]] = {"W2": "a"}
    settings = (
        "sqlite3, WAL, synchronous=FULL, partial index on (visible_at, id); one INSERT a commit, "
        "executemany of 100 a commit, UPDATE..RETURNING and DELETE in two commits"
    )

    def version(self) -> str:
        return sqlite3.sqlite_version

    def open(self) -> None:
        self._path = self.home / "raw.db"
        self._connection = _connect(self._path)
        self._connection.executescript(_SCHEMA)
        self._writer: _Writer | None = None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._connection.close()

    def fill(self, bodies: Iterable[bytes]) -> None:
        sender = _RawSender(self._connection)
        for chunk in chunks(bodies, 1_000):
            sender.send_batch(chunk)

    def sender(self) -> Sender:
        return _RawSender(self._connection)

    def shared_sender(self) -> Sender:
        if self._writer is None:
            self._writer = _Writer(self._path)
        return _GroupSender(self._writer)

    def receiver(self) -> Receiver[_Row]:
        return _RawReceiver(self._connection)


class Appender:
    """A plain file that a page of 4 KiB is appended to, with one fdatasync a page."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._page = b"x" * 4_096

    def append(self) -> None:
        """Append a page; on disk when this returns."""
        os.write(self._file, self._page)
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
