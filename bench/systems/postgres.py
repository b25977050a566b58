"""What the systems on PostgreSQL have in common: a server each, and clients that are asked by coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

from servers import postgres_programs

from bench.postgres import PostgresServer
from bench.systems.contract import System

H = TypeVar("H")
T = TypeVar("T")


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


class LoopClient:
    """A client with an event loop of its own, asked one thing at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self._loop.run_until_complete(question)
