"""The background thread of a broker: runs timers, and notices other processes' writes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Protocol, TypeVar

from lazaretto.engine.timers import CleanUp, Sweep
from lazaretto.engine.workers.workers import BuryWorkers, Heartbeat
from lazaretto.errors import BrokerClosed, LazarettoError, StoreGone, TransactionError
from lazaretto.model.clock import MICROSECONDS, Clock
from lazaretto.store.contract.transaction_contract import Store, Transaction
from lazaretto.store.runtime.notifier import Notifier

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: How long it sleeps while nobody waits, in seconds.
_REST = 0.5
#: How often what is no longer kept is removed, in seconds, and how soon after the start first.
_CLEAN_EVERY = 600.0
_CLEAN_FIRST = 5.0
#: How often this process says that it lives, if it holds messages, in seconds.
_BEAT_EVERY = 10.0
#: How often it is looked for processes that died, in seconds.
_BURY_EVERY = 1.0


class MaintainedStore(Store, Protocol):
    """What the keeper needs of a store besides the contract."""

    notifier: Notifier
    #: How often other processes' commits are looked for while somebody waits, in seconds.
    poll: float

    def version_reader(self) -> AbstractContextManager[Callable[[], tuple[int, int]]]:
        """Give a function that tells two numbers: one changes with other processes' commits, one with any."""
        ...

    def tidy(self) -> None:
        """Clear away what messages that are gone have left, if that is due."""
        ...

    def sleep(self, seconds: float) -> None:
        """Sleep, as the thread that looks for other processes' commits, until it is time to look again."""
        ...

    def wake(self) -> None:
        """End the `sleep` that is under way, or else the next one."""
        ...


def look(store: Store, query: Callable[[Transaction], T]) -> T:
    """Return what users see of a store at its time.

    A clock that is moved by hand has no thread that does what is due; whoever looks does it.
    """
    # A transaction of this thread may hold the store; it sees what there was when it began.
    with suppress(TransactionError):
        if not store.clock.ticks and store.read(lambda tx: tx.anything_due()):
            while store.run(Sweep()):
                pass
    return store.read(query)


class Maintenance:
    """Runs until `stop`. It survives every error of the store: the next round tries again."""

    def __init__(self, store: MaintainedStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._stopping = False
        self._seen: tuple[int, int] | None = None
        self._next_due: int | None = 0
        self._beat_at = self._bury_at = 0.0
        self._thread = threading.Thread(target=self._run, name="lazaretto-maintenance", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._store.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stopping:
            try:
                with self._store.version_reader() as version:
                    self._keep(version)
            except BrokerClosed:
                return
            except Exception as error:
                # The reader is opened anew. Whoever reads the log may be gone, which is no reason to stop.
                with suppress(Exception):
                    _log.warning("timers are looked after again soon: %s: %s", type(error).__name__, error)
                self._store.sleep(_REST)

    def _keep(self, version: Callable[[], tuple[int, int]]) -> None:
        clean_at = self._clock.now() + int(_CLEAN_FIRST * MICROSECONDS)
        gone = False
        while not self._stopping:
            try:
                self._look(version)
                gone = False
                if self._clock.ticks and self._clock.now() >= clean_at:
                    more = self._store.run(CleanUp())
                    clean_at = self._clock.now() + (0 if more else int(_CLEAN_EVERY * MICROSECONDS))
                if self._clock.ticks:
                    self._look_for_dead()
            except BrokerClosed:
                return
            except StoreGone as error:
                if not gone:
                    _log.error("timers are not looked after: %s", error)
                # Whoever waits finds out by itself.
                gone = True
                self._store.notifier.notify_all()
                self._store.sleep(_REST)
            except LazarettoError as error:
                _log.warning("timers: %s", error)
                self._store.sleep(_REST)
            self._store.sleep(self._pause())

    def _look(self, version: Callable[[], tuple[int, int]]) -> None:
        seen, before = version(), self._seen
        if before is None or seen[0] != before[0]:
            self._store.notifier.notify_all()
        if seen != before:
            self._seen = seen
            self._next_due = self._store.read(lambda tx: tx.next_due())
        if self._clock.ticks:
            while self._next_due is not None and self._next_due <= self._clock.now() and not self._stopping:
                self._store.run(Sweep())
                self._next_due = self._store.read(lambda tx: tx.next_due())

    def _look_for_dead(self) -> None:
        """Say that this process lives, and look after what those held that no longer do."""
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + _BEAT_EVERY
            if self._store.read(lambda tx: tx.workers.needs_heartbeat()):
                self._store.run(Heartbeat())
        self._store.tidy()
        if now >= self._bury_at:
            self._bury_at = now + _BURY_EVERY
            if self._store.read(lambda tx: tx.workers.dead()):
                self._store.run(BuryWorkers())

    def _pause(self) -> float:
        pause = self._store.poll if self._store.notifier.waiting else _REST
        if self._next_due is not None and self._clock.ticks:
            pause = min(pause, max(0.0, (self._next_due - self._clock.now()) / MICROSECONDS))
        return pause
