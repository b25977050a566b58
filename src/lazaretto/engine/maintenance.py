"""The background thread of a broker: runs timers, and notices other processes' writes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from lazaretto.engine.timers import CleanUp, Sweep, cleaned_at
from lazaretto.engine.workers.workers import BuryWorkers, Heartbeat
from lazaretto.errors import BrokerClosed, LazarettoError, StoreGone, TransactionError
from lazaretto.model.clock import MICROSECONDS, Clock, MovableClock
from lazaretto.store.runtime.forks import at_rest, at_work
from lazaretto.store.runtime.processes import draw
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: How long the thread sleeps while no receiver waits, in seconds.
_REST = 0.5
#: How often outdated history is removed, by one process of all, in seconds; and how soon after its start a
#: process looks whether it was: not all at once, because whoever removes it holds up all writers.
_CLEAN_EVERY = 600.0
_CLEAN_FIRST = 5.0
_CLEAN_SPREAD = 10.0
#: How often this process writes a heartbeat if it takes or holds messages, in seconds.
_BEAT_EVERY = 10.0
#: How often the thread looks for dead processes, in seconds.
_BURY_EVERY = 1.0


def look(store: Store, query: Callable[[Transaction], T]) -> T:
    """Return what users see in a store at its current time.

    With a manual clock no thread processes due timers, so the reader does it.
    """
    # A transaction of this thread may hold the store; then it sees the state at its start.
    with suppress(TransactionError):
        if not store.clock.ticks and store.read(lambda tx: tx.anything_due()):
            while store.run(Sweep()):
                pass
    return store.read(query)


class Maintenance:
    """Runs until `stop`. It survives every error of the store: the next round tries again."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._stopping = False
        self._seen: tuple[int, int] | None = None
        self._next_due: int | None = 0
        self._again: int | None = None
        self._beat_at = self._bury_at = 0.0
        self._clean_at = 0
        self._thread = threading.Thread(target=self._run, name="lazaretto-maintenance", daemon=True)
        self._thread.start()
        if isinstance(clock, MovableClock):
            clock.watch(store.wake)

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._store.stop_waiting()
        self._store.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        with at_work():
            self._keep_on()

    def _rest(self, seconds: float) -> None:
        with at_rest():
            self._store.sleep(seconds)

    def _keep_on(self) -> None:
        while not self._stopping:
            try:
                with self._store.version_reader() as version:
                    self._keep(version)
            except BrokerClosed:
                return
            except Exception as error:
                if isinstance(error, StoreGone):
                    # Waiting receivers notice it themselves.
                    self._store.notifier.notify_all()
                # Reopen the reader. The log may not be writable, which is no reason to stop.
                with suppress(Exception):
                    _log.warning(
                        "timers failed and will be retried soon: %s: %s",
                        type(error).__name__,
                        error,
                    )
                self._rest(_REST)

    def _keep(self, version: Callable[[], tuple[int, int]]) -> None:
        first = _CLEAN_FIRST + draw() * _CLEAN_SPREAD
        self._clean_at = self._clock.now() + int(first * MICROSECONDS)
        gone = False
        while not self._stopping:
            try:
                self._look(version)
                gone = False
                if self._store.rates_left():
                    self._store.write_rates()
                if self._clock.ticks and self._clock.now() >= self._clean_at:
                    self._clean_up()
                if self._clock.ticks:
                    self._look_for_dead()
            except BrokerClosed:
                return
            except StoreGone as error:
                if not gone:
                    _log.error("timers are no longer processed: %s", error)
                # Waiting receivers notice the fault themselves.
                gone = True
                self._store.notifier.notify_all()
                self._rest(_REST)
            except LazarettoError as error:
                _log.warning("timers: %s", error)
                self._rest(_REST)
            self._rest(self._pause())

    def _look(self, version: Callable[[], tuple[int, int]]) -> None:
        seen, before = version(), self._seen
        if before is None or seen[0] != before[0]:
            self._store.notifier.notify_all()
        self._seen = seen
        self._again = self._store.look_again()
        if before is None or seen[1] != before[1]:
            self._next_due = self._store.read(lambda tx: tx.next_due())
        while self._is_due() and not self._stopping:
            # It may be done, or it was no more than the time to look again.
            self._next_due = self._store.read(lambda tx: tx.next_due())
            if self._is_due():
                self._store.run(Sweep())

    def _is_due(self) -> bool:
        return self._clock.ticks and self._next_due is not None and self._next_due <= self._clock.now()

    def _clean_up(self) -> None:
        """Remove outdated history, unless another process has done it lately."""
        every = int(_CLEAN_EVERY * MICROSECONDS)
        cleaned = self._store.read(cleaned_at)
        if cleaned is not None and cleaned <= self._clock.now() < cleaned + every:
            self._clean_at = cleaned + every
        elif not self._store.run(CleanUp()):
            self._clean_at = self._clock.now() + every

    def _look_for_dead(self) -> None:
        """Write a heartbeat, and recover messages that dead processes held."""
        now, presence = time.monotonic(), self._store.presence
        if now >= self._beat_at or presence.is_due():
            self._beat_at = now + _BEAT_EVERY
            takers = presence.records()
            registered = self._store.read(lambda tx: tx.workers.needs_heartbeat())
            if takers or registered:
                self._store.run(Heartbeat(takers))
        self._store.tidy()
        if now >= self._bury_at:
            self._bury_at = now + _BURY_EVERY
            if self._store.read(lambda tx: tx.workers.dead()):
                self._store.run(BuryWorkers())

    def _pause(self) -> float:
        pause = self._store.poll if self._store.notifier.waiting else _REST
        if self._clock.ticks:
            for at in (self._next_due, self._again):
                if at is not None:
                    pause = min(pause, max(0.0, (at - self._clock.now()) / MICROSECONDS))
        return pause
