"""Waits out temporary faults with growing delays, and logs them."""

from __future__ import annotations

import contextlib
import logging
import threading

from lazaretto.errors import (
    EntityError,
    HandlerError,
    InvalidOption,
    LazarettoError,
    NotAllowed,
    ServerUnsuitable,
    StoreCorrupt,
    StoreForeign,
    StoreGone,
    StoreIncomplete,
    StoreNotFound,
    StoreOutdated,
    StoreTooNew,
)
from lazaretto.host.handler_stats import HandlerStats

#: Faults that do not pass: the file is no longer a store, or the queue was replaced after the host started.
#: All others may pass: an unreachable or read-only server, a full disk, too few file descriptors, a module
#: that is being replaced.
_LASTING: tuple[type[LazarettoError], ...] = (
    HandlerError,
    InvalidOption,
    NotAllowed,
    ServerUnsuitable,
    StoreCorrupt,
    StoreForeign,
    StoreGone,
    StoreIncomplete,
    StoreNotFound,
    StoreOutdated,
    StoreTooNew,
)


def may_pass(error: BaseException) -> bool:
    """Return whether a later retry may succeed without a change to the host."""
    return isinstance(error, Exception) and not isinstance(error, _LASTING)


_log = logging.getLogger(__name__)

#: The first and the longest delay after a fault, in seconds.
_FIRST, _LONGEST = 0.1, 5.0
#: Delay before a halted, disabled or missing queue is tried again, in seconds.
_REST = 0.5


class Patience:
    """A slot's delays between retries, which end when it is stopped."""

    def __init__(self, stats: HandlerStats, path: str, stopping: threading.Event) -> None:
        self._stats = stats
        self._path = path
        self._stopping = stopping
        self._next = _FIRST

    def rest(self, error: BaseException) -> None:
        """Log the fault, unless it was already logged, and wait. The delay doubles each time."""
        if isinstance(error, EntityError):
            seconds = _REST
        else:
            seconds, self._next = self._next, min(2 * self._next, _LONGEST)
        if self._stats.waiting(str(error) or type(error).__name__):
            expected = isinstance(error, LazarettoError | OSError)
            # The log may not be writable, which is no reason to stop.
            with contextlib.suppress(Exception):
                _log.warning(
                    "%r: failed, and will be retried until it succeeds: %s: %s",
                    self._path,
                    type(error).__name__,
                    error,
                    exc_info=None if expected else error,
                )
        self._stopping.wait(seconds)

    def well(self) -> None:
        """Record a success: the next delay is short again."""
        self._next = _FIRST
        self._stats.waiting(None)
