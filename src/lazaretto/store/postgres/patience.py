"""How long a caller waits for a server that is away, or for a program that holds the lock and is silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from lazaretto.errors import BrokerClosed, StoreUnavailable
from lazaretto.store.postgres.connection import translated
from lazaretto.store.postgres.upkeep import Upkeep

T = TypeVar("T")

#: How long it waits before it connects again, in seconds: the first and the longest time.
_FIRST_NAP = 0.05
_LONGEST_NAP = 2.0


class Patience:
    """Begins transactions, for up to `busy` seconds each. `where` names the store in errors."""

    def __init__(self, busy: float, where: str, upkeep: Upkeep) -> None:
        self._busy = busy
        self._where = where
        self._upkeep = upkeep
        self._ended = threading.Event()

    def end(self) -> None:
        """Wait no more: the store is about to be closed."""
        self._ended.set()

    def begin(self, begin: Callable[[], T], *, waits: bool = True) -> T:
        """Begin a transaction, again and again while the server is away, for as long as a caller `waits`.

        Nothing has been done yet, so that nothing is done twice. Raises BrokerClosed and psycopg's errors.
        """
        end = time.monotonic() + self._busy
        nap = _FIRST_NAP
        while True:
            try:
                return begin()
            except psycopg.Error as error:
                if isinstance(error, psycopg.errors.LockNotAvailable) and self._upkeep.end_silent_writers():
                    continue
                away = isinstance(translated(error, self._where), StoreUnavailable)
                if not (away and waits) or time.monotonic() + nap > end:
                    raise
                if self._ended.wait(nap):
                    raise BrokerClosed("the broker was closed during the call") from error
                nap = min(2 * nap, _LONGEST_NAP)
