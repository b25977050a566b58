"""pgmq on PostgreSQL: its functions from its SQL file, called by psycopg with everything prepared."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.servers import PostgresServer
from bench.systems.contract import ATTEMPTS, DEAD, QUEUE, Client, Handler, PostgresSystem, peer, poll

#: Where its SQL file is; it comes with no Python package.
_FILE = "LAZARETTO_BENCH_PGMQ"
_LOCK_SECONDS = 30

#: A message's number, the hand-overs so far, and its body.
_Message = tuple[int, int, str]

_READ = "SELECT msg_id, read_ct, message::text FROM pgmq.read(%s, %s, %s)"


class PgmqClient(Client[_Message]):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def send(self, body: bytes) -> None:
        self._connection.execute("SELECT pgmq.send(%s, %s::jsonb)", (QUEUE, body.decode()))

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        texts = [body.decode() for body in bodies]
        self._connection.execute("SELECT pgmq.send_batch(%s, %s::jsonb[])", (QUEUE, texts))

    def receive(self, limit: int, wait: float) -> Sequence[_Message]:
        read = (_READ, (QUEUE, _LOCK_SECONDS, limit))
        found = poll(lambda: self._connection.execute(*read).fetchall() or None, wait)
        return found[0] if found else ()

    def complete(self, handles: Sequence[_Message]) -> None:
        if len(handles) == 1:
            self._connection.execute("SELECT pgmq.delete(%s, %s::bigint)", (QUEUE, handles[0][0]))
        else:
            numbers = [number for number, _, _ in handles]
            self._connection.execute("SELECT pgmq.delete(%s, %s::bigint[])", (QUEUE, numbers))

    def body(self, handle: _Message) -> bytes:
        # JSONB gives the keys in an order of its own.
        number = handle[2].partition('"number": "')[2][:18]
        return b'{"number":"' + number.encode()

    def close(self) -> None:
        self._connection.close()


def connect(address: str) -> Any:
    """Return a connection that prepares all it is asked."""
    connection = peer("psycopg").connect(address, autocommit=True)
    connection.prepare_threshold = 0
    return connection


class PgmqSystem(PostgresSystem[_Message]):
    """pgmq's own functions, a connection for each thread."""

    name = "pgmq"
    package = "psycopg"
    workloads = frozenset({"W1", "W2", "W3", "W4", "W5", "W6", "W7"})

    @classmethod
    def missing(cls) -> str | None:
        if not Path(os.environ.get(_FILE, "/nowhere")).is_file():
            return f"set {_FILE} to the path of its pgmq.sql"
        return super().missing()

    def open(self) -> None:
        self.server = PostgresServer(self.home)
        connection = self._connect()
        connection.execute("CREATE SCHEMA IF NOT EXISTS pgmq")
        connection.execute(Path(os.environ[_FILE]).read_text().encode(), prepare=False)
        # As it is laid down without its extension: what it would register there is its own affair.
        connection.execute("SELECT pgmq.create(%s)", (QUEUE,))
        connection.execute("SELECT pgmq.create(%s)", (DEAD,))
        connection.close()

    def _connect(self) -> Any:
        return connect(self.server.address)

    def client(self, held: int = 1) -> Client[_Message]:
        return PgmqClient(self._connect())

    def drill(self, handler: Handler, total: int, poison: int) -> None:
        connection = self._connect()
        client = PgmqClient(connection)
        while handles := client.receive(100, 0):
            done: list[_Message] = []
            again: list[int] = []
            with connection.transaction():
                for handle in handles:
                    try:
                        handler(client.body(handle))
                    except Exception as error:
                        if handle[1] < ATTEMPTS:
                            again.append(handle[0])
                            continue
                        why = {"reason": repr(error), "stack": traceback.format_exc(), "body": handle[2]}
                        wrapped = peer("psycopg.types.json").Jsonb(why)
                        connection.execute("SELECT pgmq.send(%s, %s)", (DEAD, wrapped))
                    done.append(handle)
                for number in again:
                    connection.execute("SELECT pgmq.set_vt(%s, %s, 0)", (QUEUE, number))
                if done:
                    client.complete(done)
        connection.close()

    def set_aside(self) -> int:
        connection = self._connect()
        (count,) = connection.execute("SELECT queue_length FROM pgmq.metrics(%s)", (DEAD,)).fetchone()
        connection.close()
        return int(count)
