"""Activation: starts readers of a service's queue while there is work, up to a maximum.

`by_type` makes a procedure for readers that calls a function for each message's type.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from lazaretto.broker.handling.functions import refuse_lazy
from lazaretto.dialogs.dialog_transaction import DialogMessage, DialogTransaction
from lazaretto.dialogs.directory import Directory
from lazaretto.engine.log import note
from lazaretto.errors import BrokerClosed, LazarettoError
from lazaretto.model.conversations import DIALOG_TIMER, priority_bounds
from lazaretto.model.dialog_contracts import Service
from lazaretto.model.entities import EntityPath
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

_log = logging.getLogger("lazaretto.dialogs")

#: How long a reader waits for a message before it may end, in seconds, if it does not say.
READER_WAIT = 0.5
#: How often a monitor looks if nothing tells it to, and how soon it starts one more reader, in seconds.
_LOOK = 5.0
_ONE_MORE = 0.1
#: How long a monitor sleeps at most, so that it ends soon when it is to.
_NAP = 0.25
#: How long a reader may run without receiving until it is reported, in seconds.
IDLE_AFTER = 5.0
#: How long nothing is started after readers that failed or received nothing: doubling, at most, in seconds.
_FIRST_REST, _LONGEST_REST = 0.2, 30.0


class MonitorState(enum.Enum):
    """The state of a service's queue and its readers, as in Service Broker's dm_broker_queue_monitors."""

    #: There is nothing to receive, and no reader.
    INACTIVE = "inactive"
    #: A reader was started, and has not received yet.
    NOTIFIED = "notified"
    RECEIVES_OCCURRING = "receives_occurring"


class Reader:
    """The argument of a procedure: begins transactions on the queue it was started for."""

    def __init__(self, store: Store, directory: Directory, service: Service) -> None:
        self.service = service.name
        self._queue = service.queue
        self._store = store
        self._directory = directory
        self._stopping = threading.Event()
        self._current: DialogTransaction | None = None
        self._receives = 0
        self.started = time.monotonic()
        self.reported = False

    @property
    def stopping(self) -> bool:
        """Whether the host is about to end: finish what you do and return."""
        return self._stopping.is_set()

    @property
    def receives(self) -> int:
        """The number of receives so far."""
        current = self._current
        return self._receives + (current.receives if current is not None else 0)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[DialogTransaction]:
        """Begin a unit of work on the service's queue; its groups stay locked as long as it takes."""
        work = DialogTransaction(self._store, self._directory, self._queue)
        self._current = work
        try:
            with work:
                yield work
        finally:
            self._current = None
            self._receives += work.receives

    def stop(self) -> None:
        """Ask the procedure to return."""
        self._stopping.set()

    def keep_locks(self) -> None:
        """Renew the locks of the current transaction."""
        current = self._current
        if current is not None:
            with contextlib.suppress(LazarettoError):
                current.renew_locks()


class MonitorStatus(NamedTuple):
    """State of a monitor. `failures`: how many readers in a row ended with an error or received nothing."""

    service: str
    state: MonitorState
    readers: int
    failures: int


Procedure = Callable[[Reader], None]


class QueueMonitor:
    """Starts readers of one service by load: one more whenever a group is free and all readers are busy.

    A reader is a thread that runs the procedure, which receives until nothing comes, and returns. A
    thousand messages of one group need one reader, since only one can have its lock. A procedure that
    raises, or returns without having received, is noted in the events, and started again only after a
    while.
    """

    def __init__(self, store: Store, directory: Directory, service: Service, procedure: Procedure) -> None:
        self._store = store
        self._directory = directory
        self._service = service
        self._procedure = procedure
        self._readers: dict[threading.Thread, Reader] = {}
        self._started = self._failures = 0
        self._rest_until = 0.0
        self._lock = threading.Lock()
        self._stopped = False
        self._one_less = False
        self._thread = threading.Thread(target=self._run, name=f"monitor {service.name}", daemon=True)
        self._thread.start()

    def status(self) -> MonitorStatus:
        """Return how the queue stands with its readers."""
        with self._lock:
            readers = list(self._readers.values())
            state = MonitorState.INACTIVE
            if readers:
                received = any(reader.receives for reader in readers)
                state = MonitorState.RECEIVES_OCCURRING if received else MonitorState.NOTIFIED
            return MonitorStatus(self._service.name, state, len(readers), self._failures)

    def has_work(self) -> bool:
        """Return whether a reader is at work, or a group waits for one."""
        path = EntityPath.parse(self._service.queue)
        while True:
            with self._lock:
                readers, started = len(self._readers), self._started
            if readers or self._store.read(lambda tx: free_group(tx, path)):
                return True
            # A group that one has taken meanwhile is not free, and the reader may have ended already.
            with self._lock:
                if self._started == started:
                    return False

    def stop(self, timeout: float | None = None) -> bool:
        """Start no more readers and wait for those there are; return whether all have ended."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._stopped = True
            for reader in self._readers.values():
                reader.stop()
        for thread in [self._thread, *list(self._readers)]:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return not self._readers and not self._thread.is_alive()

    # -- the monitor's thread -------------------------------------------------------------------

    def _run(self) -> None:
        path = EntityPath.parse(self._service.queue)
        locks = self._service.lock_duration / 3
        renewed, look, before = time.monotonic(), 0.0, -1
        while not self._stopped:
            try:
                place = self._directory.place(path)
                seen, now = self._store.changes(place), time.monotonic()
                if seen != before or now >= look or self._one_less:
                    self._one_less = False
                    before, look = seen, now + self._start_one(path)
                if now - renewed >= locks:
                    renewed = now
                    for reader in list(self._readers.values()):
                        reader.keep_locks()
                self._report_idle()
                self._store.wait(place, seen, max(0.0, min(look - now, locks, _NAP)))
            except BrokerClosed:
                return
            except Exception:
                _log.exception("the monitor of service %s failed; it continues", self._service.name)
                time.sleep(_ONE_MORE)

    def _start_one(self, path: EntityPath) -> float:
        """Start one more reader if there is work for it; return for how long nothing more is to be done."""
        with self._lock:
            running = len(self._readers)
            rest = self._rest_until - time.monotonic()
            waiting = [reader for reader in self._readers.values() if not reader.receives]
        if running >= self._service.max_readers or waiting:
            # What was started last has not come to receive yet: it may take what there is.
            return _ONE_MORE if running < self._service.max_readers else _LOOK
        if rest > 0:
            return rest
        if not self._store.read(lambda tx: free_group(tx, path)):
            return _LOOK
        reader = Reader(self._store, self._directory, self._service)
        thread = threading.Thread(
            target=self._read, args=(reader,), name=f"reader {self._service.name}", daemon=True
        )
        with self._lock:
            if self._stopped:
                return 0.0
            # Readers end under the same lock, and so not before they are known.
            thread.start()
            self._readers[thread] = reader
            self._started += 1
        return _ONE_MORE

    def _report_idle(self) -> None:
        now = time.monotonic()
        for reader in list(self._readers.values()):
            if not reader.reported and not reader.receives and now - reader.started > IDLE_AFTER:
                reader.reported = True
                self._note("reader_idle")

    # -- a reader's thread ----------------------------------------------------------------------

    def _read(self, reader: Reader) -> None:
        failed = False
        try:
            self._procedure(reader)
            if not reader.receives and not reader.stopping:
                failed = True
                if not reader.reported:
                    self._note("reader_idle")
        except BrokerClosed:
            pass
        except Exception as error:
            failed = True
            _log.warning("a reader of service %s failed", self._service.name, exc_info=error)
            self._note("reader_failed", error=f"{type(error).__name__}: {error}"[:500])
        finally:
            with self._lock:
                del self._readers[threading.current_thread()]
                self._one_less = True
                self._failures = self._failures + 1 if failed else 0
                if failed:
                    rest = min(_FIRST_REST * 2 ** min(self._failures - 1, 10), _LONGEST_REST)
                    self._rest_until = time.monotonic() + rest

    def _note(self, kind: str, error: str | None = None) -> None:
        with contextlib.suppress(LazarettoError):
            self._store.run(_Note(self._service, kind, error))


class _Note(Operation[None]):
    """Write an event about a service's readers."""

    durable = False

    def __init__(self, service: Service, kind: str, error: str | None) -> None:
        self._service = service
        self._kind = kind
        self._error = error

    def run(self, tx: Transaction) -> None:
        queue = tx.queues.by_path(self._service.queue.lower())
        if queue is not None:
            name, handler = self._service.name, self._service.handler
            note(tx, self._kind, queue, service=name, handler=handler, error=self._error)


def free_group(tx: Transaction, path: EntityPath) -> bool:
    """Return whether a conversation group of a queue that nobody has locked has something to receive."""
    queue = tx.queues.by_path(path.key)
    if queue is None or not queue.status.gives:
        return False
    ranges = [priority_bounds(level) for level in tx.dialogs.levels(queue.queue_id)]
    return tx.dialogs.next_group(queue.queue_id, ranges)() is not None


MessageHandler = Callable[[DialogMessage, DialogTransaction], None]


def by_type(handlers: Mapping[str, MessageHandler], *, max_wait: float = READER_WAIT) -> Procedure:
    """Return a procedure that gives each message, in a transaction of its own, to the function for its type.

    A function that raises rolls the transaction back: the message is charged a failure, and the service's
    way with poison decides. A message of a type that has no function can never be processed: it is set
    aside, and the far end receives an error. EndDialog and Error end the conversation, whether they have a
    function or not. The procedure returns when nothing has come for `max_wait` seconds.
    """
    procedures = dict(handlers)
    for name, function in procedures.items():
        refuse_lazy(function, f"the function for {name!r}", may_await=False)

    def procedure(reader: Reader) -> None:
        while not reader.stopping:
            received: list[DialogMessage] = []
            try:
                with reader.transaction() as work:
                    received = work.receive(max_wait=max_wait)
                    if not received:
                        return
                    _give(received[0], work, procedures)
            except Exception as error:
                if not received:
                    raise
                message = received[0]
                _log.warning(
                    "%s %s of conversation %s failed: %s",
                    message.type, message.number, message.conversation, type(error).__name__,
                )  # fmt: skip

    return procedure


def _give(message: DialogMessage, work: DialogTransaction, handlers: Mapping[str, MessageHandler]) -> None:
    function = handlers.get(message.type)
    if function is not None:
        function(message, work)
    elif not message.is_last and message.type != DIALOG_TIMER:
        work.invalid(message, error=f"service {message.service!r} has no function for {message.type!r}")
