"""Watches a host from between it and its server: what it says, and when it waits."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import threading

from psycopg.conninfo import conninfo_to_dict
from servers import Server

from lazaretto import Broker
from lazaretto.store.postgres.store import PostgresStore

#: What the server says last when it waits for a client that has no transaction open, and so no lock.
IDLE = b"Z\x00\x00\x00\x05I"


#: A statement that takes locks, as it is prepared; and then its name, as it is used.
_LOCKING = re.compile(rb"(lazaretto_\d+\x00)SELECT pg_advisory_xact")


class Witness:
    """Forwards connections to a server, and notes how they take turns."""

    def __init__(self, server: Server) -> None:
        parts = conninfo_to_dict(server.url)
        self._target = (str(parts["host"]), int(str(parts["port"])))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        #: What was said in turns, from whom and what, by the connection's port.
        self.said: dict[int, list[tuple[str, bytes]]] = {}
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def url(self, url: str) -> str:
        """Return the address of a store behind this."""
        return url.replace(f":{self._target[1]}/", f":{self.port}/")

    def writing(self, broker: Broker) -> list[tuple[str, bytes]]:
        """Return what is said on the connection that a host writes on."""
        with socket.socket(fileno=os.dup(store_of(broker)._connection.raw.fileno())) as own:
            return self.said[own.getsockname()[1]]

    def _accept(self) -> None:
        while not self._stopping.is_set():
            if select.select([self._listener], [], [], 0.05)[0]:
                client, (_, port) = self._listener.accept()
                turns = self.said[port] = []
                self._threads.append(threading.Thread(target=self._forward, args=(client, turns)))
                self._threads[-1].start()

    def _forward(self, client: socket.socket, turns: list[tuple[str, bytes]]) -> None:
        with client, socket.create_connection(self._target) as server:
            names = {client: ("client", server), server: ("server", client)}
            while not self._stopping.is_set():
                for one in select.select([client, server], [], [], 0.05)[0]:
                    who, other = names[one]
                    with contextlib.suppress(OSError):
                        piece = one.recv(1 << 20)
                        if not piece:
                            return
                        if turns and turns[-1][0] == who:
                            turns[-1] = who, turns[-1][1] + piece
                        else:
                            turns.append((who, piece))
                        other.sendall(piece)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()


def waits_under_a_lock(said: list[tuple[str, bytes]]) -> bool:
    """Return whether a client was silent while its transaction was open."""
    return any(who == "server" and not piece.endswith(IDLE) for who, piece in said)


def turns_that_lock(said: list[tuple[str, bytes]]) -> list[int]:
    """Return the places of the turns that take locks of the broker, on a connection from its start."""
    everything = b"".join(piece for who, piece in said if who == "client")
    names = {b"pg_advisory_xact", *_LOCKING.findall(everything)}
    return [
        place
        for place, (who, piece) in enumerate(said)
        if who == "client" and any(name in piece for name in names)
    ]


def store_of(broker: Broker) -> PostgresStore:
    """Return the store of a broker that is on the server."""
    assert isinstance(broker._store, PostgresStore)
    return broker._store


def without_flush(said: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Leave out what puts a commit on disk once its locks are gone.

    It goes out right behind the commit, so the server's answer to that may pass it or not.
    """
    told = list(said)
    if len(told) == 4 and b"pg_logical_emit_message" in told[3][1] and told[1][1].endswith(IDLE):
        told[2:] = []
    return told
