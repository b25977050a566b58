"""What the systems on PostgreSQL have in common: a server each."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from servers import postgres_programs

from bench.postgres import PostgresServer
from bench.systems.contract import System

H = TypeVar("H")


class PostgresSystem(System[H]):
    """A queue on a PostgreSQL server, which `open` starts."""

    served: ClassVar[bool] = True
    _server: PostgresServer

    @classmethod
    def missing(cls) -> str | None:
        return "PostgreSQL is not installed" if postgres_programs() is None else super().missing()

    @property
    def server(self) -> PostgresServer:
        """The server that `open` has started."""
        return self._server

    def close(self) -> None:
        self._server.stop()
