"""The service host: runs handlers on their queues until it is stopped."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from lazaretto.broker.broker import Broker, store_of
from lazaretto.broker.editing import Editor
from lazaretto.engine.entities.queues import describe, require_queue
from lazaretto.engine.entities.status import stop_error
from lazaretto.engine.messages.sessions import held_error
from lazaretto.engine.outcome.breakers import breaker_of
from lazaretto.engine.repairs.runner import Runner
from lazaretto.engine.workers.leases import RenewLease
from lazaretto.errors import EntityError, HandlerError, InvalidOption, QueueDisabled, SandboxError
from lazaretto.host.handler_stats import HandlerReport, HandlerStats
from lazaretto.host.handlers import MOST_SLOTS, Handler, HandlerFunction, as_handlers
from lazaretto.host.runners import runner_of
from lazaretto.host.shared import Gate, Pace, Shared
from lazaretto.host.slots import Slot
from lazaretto.model.breaker import BreakerStatus, BreakerWindow
from lazaretto.model.checks import GivenDuration, seconds, shown, whole
from lazaretto.model.descriptions import QueueDescription
from lazaretto.model.entities import EntityPath, QueueOptions, Subqueue
from lazaretto.model.keys import lower_bound, upper_bound
from lazaretto.observe.traces.letters import around_steps
from lazaretto.store.records.messages import DEFERRED, QueueRecord
from lazaretto.store.sql.transaction import Transaction
from lazaretto.tools.signals import Ending

_log = logging.getLogger(__name__)
#: How often locks are checked, in seconds: a fraction of the shortest lock.
_LOOK = 0.1
#: Delay before a failed renewal is retried, in seconds.
_RENEW_AGAIN = 0.5
#: Time for a slot to settle finished messages after the grace period, in seconds.
_MARGIN = 3.0
#: How often the host checks whether to stop, in seconds.
_TICK = 0.1
Handlers = Handler | Iterable[Handler] | Mapping[str, HandlerFunction]


def work_left(tx: Transaction, path: EntityPath, failing: int) -> bool | EntityError:
    """Return whether messages can still be delivered, or why the rest cannot be.

    `failing`: dead letters that failed and have no attempt limit.
    """
    queue = require_queue(tx, path)
    description = describe(tx, queue)
    if not _count(description, path, failing):
        return False
    if description.counts.locked:
        # Some receiver holds messages.
        return True
    return stop_error(queue, path.subqueue) or _kept_back(tx, queue, path, description) or True


def _count(description: QueueDescription, path: EntityPath, failing: int) -> int:
    counts = description.counts
    if path.subqueue is not Subqueue.MAIN:
        return max(0, counts.dead_letter - failing)
    return counts.active + counts.locked + counts.suspect + counts.delayed + counts.scheduled


def _kept_back(
    tx: Transaction, queue: QueueRecord, path: EntityPath, description: QueueDescription
) -> EntityError | None:
    if path.subqueue is not Subqueue.MAIN:
        return None
    breaker = breaker_of(queue)
    if breaker is not None and breaker.status is BreakerStatus.HELD_OPEN:
        return QueueDisabled(
            f"the breaker of {queue.path!r} is held open by an operator: set it to auto to resume delivery"
        )
    if not description.held_sessions or _has_open_session(tx, queue):
        return None
    first, *_ = tx.sessions.held(lower_bound(queue.queue_id), upper_bound(queue.queue_id), 1)
    return held_error(queue, first.session_id, first.held_by)


def _has_open_session(tx: Transaction, queue: QueueRecord) -> bool:
    """Return whether a session that is not held has messages other than deferred ones."""
    session = tx.sessions.next_id(queue.queue_id)
    while session is not None:
        if any(m.state != DEFERRED for m in tx.sessions.messages(queue.queue_id, session)):
            return True
        session = tx.sessions.next_id(queue.queue_id, session)
    return False


class ServiceHost:
    """Runs handlers on the queues of a broker, each message isolated from all others.

    `handlers`: a Handler, several, or functions by queue. `concurrency` overrides the option of each
    handler. `grace`: seconds for running handlers to finish on shutdown; unfinished messages are released
    without counting an attempt. `on_output` is called with the output of sandboxed handlers; by default it
    is written to standard error. Any number of hosts can work on one store. A context manager: started on
    entry, stopped on exit.

    The host waits out temporary faults (the server is unreachable or read-only, the disk is full, no process
    can be started). Any other fault ends the host; `run` and the exit of the context raise it.

    Raises EntityNotFound, HandlerError, InvalidOption, SandboxSetupError: then nothing was started.
    """

    def __init__(
        self,
        broker: Broker,
        handlers: Handlers,
        *,
        grace: GivenDuration = 30.0,
        concurrency: int | None = None,
        on_output: Callable[[bytes], object] | None = None,
    ) -> None:
        if not isinstance(broker, Broker):
            raise InvalidOption(f"expected broker to be a Broker, got {shown(broker)}")
        self._broker = broker
        self._store = store_of(broker)
        self._handlers = as_handlers(handlers, "handlers")
        if not self._handlers:
            raise HandlerError("expected at least one handler, got none")
        keys = [(h.path.key, h.path.subqueue) for h in self._handlers]
        for handler, key in zip(self._handlers, keys, strict=True):
            if keys.count(key) > 1:
                raise HandlerError(f"expected one handler for {str(handler.path)!r}, got {keys.count(key)}")
        self._grace = seconds("grace", grace)
        self._concurrency = None if concurrency is None else whole("concurrency", concurrency, 1, MOST_SLOTS)
        self._on_output = on_output
        self._gate = Gate()
        self._shared: list[Shared] = []
        self._slots: list[Slot] = []
        self._threads: list[threading.Thread] = []
        self._lifecycle = threading.RLock()
        self._ending = Ending()
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._renewal: threading.Thread | None = None
        self._renew_at = 0.0
        self._repairs = Runner(self._store, Editor, around=around_steps(self._store))
        self._repairing: threading.Thread | None = None

    # -- starting -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start and return at once."""
        with self._lifecycle:
            if self._threads or self._stop.is_set():
                raise HandlerError("a host can be started only once; create a new one")
            if not self._prepare_all():
                return
            for number, slot in enumerate(self._slots):
                thread = threading.Thread(target=slot.run, name=f"lazaretto-slot-{number}", daemon=True)
                self._threads.append(thread)
            self._renewal = threading.Thread(target=self._keep, name="lazaretto-host", daemon=True)
            self._repairing = threading.Thread(
                target=self._repairs.run, name="lazaretto-repairs", daemon=True
            )
            for thread in [*self._threads, self._renewal, self._repairing]:
                thread.start()

    def _prepare_all(self) -> bool:
        """Prepare the slots; return False if the host was told to stop."""
        try:
            for handler in self._handlers:
                self._prepare(handler)
        except SandboxError:
            if not self._is_told():
                self._close_runners()
                raise
        except BaseException:
            self._close_runners()
            raise
        if self._is_told():
            self._close_runners()
            return False
        return True

    def _is_told(self) -> bool:
        return self._ending.asked or self._stop.is_set()

    def _close_runners(self) -> None:
        for slot in self._slots:
            slot.close()

    def _prepare(self, handler: Handler) -> None:
        path, options = handler.path, handler.options
        if options.policy is not None:
            self._broker.update_queue(path.queue, policy=options.policy)
        queue: QueueOptions = self._store.read(lambda tx: require_queue(tx, path)).options
        main = path.subqueue is Subqueue.MAIN
        window = BreakerWindow(queue.breaker) if main and queue.breaker is not None else None
        stats = HandlerStats(str(path), handler.__name__)
        for_ever = queue.policy_of(path.subqueue) is None
        sessions = queue.on_poison_session if main and queue.requires_session else None
        at_once = options.batch_size if handler.at_once and sessions is None else 1
        shared = Shared(handler, self._store, stats, self._gate, window, Pace(at_once), for_ever)
        self._shared.append(shared)
        for _ in range(self._concurrency or options.concurrency):
            make_runner = partial(runner_of, self._store, handler, self._on_output, self._is_told)
            self._slots.append(Slot(shared, make_runner, queue.lock_duration, sessions=sessions))

    # -- while it runs --------------------------------------------------------------------------

    def _keep(self) -> None:
        """Renew locks, and give up handlers that do not return, until all slots have ended."""
        while not self._ended.wait(_LOOK):
            for slot in self._slots:
                self._surviving(slot.give_up)
            if time.monotonic() >= self._renew_at:
                self._surviving(self._renew)
            if self._error() is not None and not self._stop.is_set():
                # A failure of one slot affects the others too: no host is better than half of one.
                self._stop.set()
                for slot in self._slots:
                    slot.stop(self._grace)

    def _surviving(self, work: Callable[[], object]) -> None:
        """Do something for each slot; a failure for one slot must not affect the others."""
        try:
            work()
        except Exception as error:
            self._renew_at = time.monotonic() + _RENEW_AGAIN
            with suppress(Exception):
                _log.warning("renewing locks failed: %s: %s", type(error).__name__, error)

    def _renew(self) -> None:
        for slot in self._slots:
            for batch in list(slot.held.values()):
                if time.monotonic() >= batch.renew_at and not batch.given_up:
                    handover = batch.handover
                    self._store.run(RenewLease(handover.lock, [m.key for m in handover.messages]))
                    batch.renew_at = time.monotonic() + batch.seconds / 2

    def _error(self) -> BaseException | None:
        """Return the error that ended a slot, if there is one."""
        return next((slot.error for slot in self._slots if slot.error is not None), None)

    def reports(self) -> list[HandlerReport]:
        """Return a report on each handler."""
        return [shared.stats.report() for shared in self._shared]

    def idle(self) -> list[EntityError] | None:
        """Return None while there is work; otherwise why the remaining messages cannot be delivered.

        An empty list means that nothing is left except dead letters that are retried forever.
        """
        why: list[EntityError] = []
        for shared in self._shared:
            path, failing = shared.handler.path, shared.stats.report().failing
            work = self._store.read(functools.partial(work_left, path=path, failing=failing))
            if work is True:
                return None
            if isinstance(work, EntityError):
                why.append(work)
        return why

    @property
    def broker(self) -> Broker:
        """The host's broker."""
        return self._broker

    @property
    def running(self) -> bool:
        """Whether any slot is at work."""
        return any(thread.is_alive() for thread in self._threads)

    # -- ending ---------------------------------------------------------------------------------

    def stop(self, grace: GivenDuration | None = None) -> None:
        """Stop receiving, let running handlers finish within `grace` seconds, and release the rest.

        If an exception interrupts it (Control-C in a program that does not use `run`), running messages are
        released at once.
        """
        allowed = self._grace if grace is None else seconds("grace", grace)
        self._stop.set()
        self._repairs.stop()
        with self._lifecycle:
            if not self._threads or self._ended.is_set():
                return
            try:
                self._await_slots(allowed)
            except BaseException:
                self._await_slots(0.0)
                raise
            finally:
                self._ended.set()
                for thread in (self._renewal, self._repairing):
                    if thread is not None:
                        thread.join(10.0)
                self._close_runners()

    def _await_slots(self, grace: float) -> None:
        for slot in self._slots:
            slot.stop(grace)
        end = time.monotonic() + grace + _MARGIN
        running = list(zip(self._slots, self._threads, strict=True))
        while running and time.monotonic() < end:
            running[0][1].join(_TICK)
            if grace and self._ending.hurried:
                self._await_slots(0.0)
                return
            running = [
                (slot, thread) for slot, thread in running if thread.is_alive() and not slot.is_given_up()
            ]

    def run(self, *, until: Callable[[], bool] | None = None) -> None:
        """Start, and work until SIGTERM, SIGINT, SIGHUP, `stop` or `request_stop`, or `until` returns True.

        `until` is called a few times a second. A second SIGINT (Control-C) ends the grace period. Raises the
        error that ended a slot, if there is one.
        """
        with self._ending.on_signals():
            self.start()
            try:
                while self.running and not self._ending.asked and not self._stop.wait(_TICK):
                    if until is not None and until():
                        break
            finally:
                self.stop()
        self._raise_error()

    def _raise_error(self) -> None:
        error = self._error()
        if error is not None:
            raise error

    def request_stop(self) -> None:
        """Make `run` return soon. Can be called in a signal handler."""
        self._ending.ask()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self._raise_error()
