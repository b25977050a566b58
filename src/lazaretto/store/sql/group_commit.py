"""Group commit: writes the concurrent operations of several threads in one commit.

Threads need no writer thread. A thread that finds no writer writes for itself, so a single caller never waits
for another thread. Threads that arrive during a commit queue their operations and sleep. One of them is then
woken to write for all of them.

Some operations, such as deliveries, need not wait for the disk, but would have to in a commit with others
that must. So when both kinds wait, every other commit contains only the quick ones.

Operations of event loops are written by a dedicated thread, or by any other thread that is writing. One call
notifies an event loop of all its operations in a commit.

A signal may raise an exception in the main thread between any two steps. So a `with` statement holds the
right to write, and no thread relies on being woken: a sleeping thread checks now and then whether the thread
that should answer it is gone.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lazaretto.errors import BrokerClosed, StoreError, TransactionError
from lazaretto.model.clock import current, undated
from lazaretto.store.runtime import measures
from lazaretto.store.runtime.forks import at_work
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: The most operations of one commit: bounds how long the first waits for the last.
_MOST = 1024
#: How long a writer waits for the callers of the last commit to come back, in seconds: little more
#: than a commit takes. Without it they arrive one by one and half of them miss each commit.
_GATHER = 0.0002
#: How long a sleeper sleeps before it looks up by itself, in seconds.
_LOOK_UP = 0.05

_IN_DOUBT = "a signal interrupted the commit; whether it was done is unknown; check before you repeat it"


class Ticket:
    """One caller's operation on its way through a commit."""

    __slots__ = ("answer", "done", "error", "later", "operation", "taken", "tell", "wake")

    def __init__(self, operation: Operation[Any], tell: Callable[[list[Any]], object] | None = None) -> None:
        self.operation = operation
        #: Is called, by the thread that wrote, with all tickets of a commit that have it.
        self.tell = tell
        self.answer: Any = None
        #: What gives the answer once the commit is done.
        self.later: Callable[[], Any] | None = None
        self.error: BaseException | None = None
        self.taken = False
        self.done = False
        self.wake: threading.Lock | None = None

    def run(self, tx: Transaction) -> None:
        """Run the operation."""
        self.answer = self.operation.run(tx)

    def drop(self) -> bool:
        """Cancel the operation; return False if it may be too late."""
        if not self.taken:
            # Whoever takes it says so first, and then looks here.
            self.done = True
        return not self.taken


def in_order(group: Sequence[Ticket]) -> Iterator[tuple[type[Operation[Any]], list[Ticket]]]:
    """Give the operations of a commit by their kinds, in the order in which they run.

    All of them came at the same time. What is sent first can be received in the same commit.
    """
    if len(group) == 1:
        yield type(group[0].operation), list(group)
        return
    ordered = sorted(group, key=lambda ticket: (ticket.operation.rank, type(ticket.operation).__name__))
    for kind, some in itertools.groupby(ordered, key=lambda ticket: type(ticket.operation)):
        yield kind, list(some)


def run_merged(kind: type[Operation[Any]], some: Sequence[Ticket], tx: Transaction) -> None:
    """Run operations of a kind together."""
    answers = kind.run_all(tx, [ticket.operation for ticket in some])
    for ticket, answer in zip(some, answers, strict=True):
        ticket.answer = answer


class GroupCommit:
    """Brings the operations of many threads to `commit`, in groups, one group at a time.

    `commit` sets each ticket's answer or error. An error that it raises becomes the error of every ticket in
    the group. `always_durable`: every answer waits for the disk.
    """

    def __init__(self, commit: Callable[[list[Ticket]], None], *, always_durable: bool = False) -> None:
        self._commit = commit
        self._always_durable = always_durable
        self._writing = threading.Lock()
        self._durable: deque[Ticket] = deque()
        self._quick: deque[Ticket] = deque()
        self._went_ahead = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self._expected = 0
        self._callers = 0
        #: The threads with an open transaction in which SQL has run.
        self._holders: set[int] = set()
        self._let_go = threading.Condition()
        #: The one of them that has the right to write.
        self._owner = 0
        self._server: threading.Thread | None = None
        self._submitted = threading.Lock()
        self.closed = False

    def run(self, operation: Operation[Any]) -> Any:
        """Return the operation's answer, or raise its error, once its commit is done."""
        if self.closed:
            raise BrokerClosed("the broker is closed")
        if self._holders:
            self._refuse_holder()
        ticket = Ticket(operation)
        if self._callers < 2 and not (self._durable or self._quick or self._writing.locked()):
            self._write_alone(ticket)
        else:
            self._write_with_others(ticket)
        if ticket.error is not None:
            raise ticket.error
        return ticket.answer

    def _write_alone(self, ticket: Ticket) -> None:
        """Write for a caller that need not wait for others."""
        try:
            with self._writing:
                if self.closed:
                    _refuse(ticket)
                else:
                    self._commit_measured([ticket])
        finally:
            if self._durable or self._quick:
                self._callers = 2
                self._wake_next()

    def _write_with_others(self, ticket: Ticket) -> None:
        """Wait until a caller's operation is written, by another caller or by itself."""
        durable = self._always_durable or ticket.operation.durable
        (self._durable if durable else self._quick).append(ticket)
        while not ticket.done:
            if self._writing.locked():
                self._sleep(ticket)
            else:
                try:
                    with self._writing:
                        while not ticket.done:
                            if ticket.taken or self.closed:
                                _refuse(ticket)
                            else:
                                self._write()
                finally:
                    if self._durable or self._quick:
                        self._wake_next()

    def submit(self, ticket: Ticket, after: Callable[[], None]) -> None:
        """Submit an operation and return at once; its ticket is notified. `after` runs after each commit."""
        if self.closed:
            raise BrokerClosed("the broker is closed")
        if self._server is None:
            self._start_server(after)
        durable = self._always_durable or ticket.operation.durable
        (self._durable if durable else self._quick).append(ticket)
        if self.closed:
            # Closed meanwhile, it may have come behind the last look of the thread that answers.
            self._refuse_left()
        if self._expected and self.waiting >= self._expected:
            self._expected = 0
            _release(self._gate)
        if self._submitted.locked():
            _release(self._submitted)

    def _start_server(self, after: Callable[[], None]) -> None:
        with self._writing:
            if self._server is None:
                self._submitted.acquire(blocking=False)
                self._server = threading.Thread(
                    target=self._serve, args=(after,), name="lazaretto-commit", daemon=True
                )
                self._server.start()

    def _serve(self, after: Callable[[], None]) -> None:
        """Write what is submitted, until closed."""
        while not self.closed:
            self._submitted.acquire()
            while self.waiting and not self.closed:
                with at_work():
                    with self._writing:
                        if self.waiting and not self.closed:
                            self._write()
                    after()
        self._refuse_left()

    def _refuse_left(self) -> None:
        """Tell event loops of the operations that nobody will write; threads find out by themselves."""
        left: list[Ticket] = []
        # What is being written has an answer of its own.
        with self._writing:
            for line in (self._durable, self._quick):
                while line:
                    ticket = line.popleft()
                    if ticket.tell is not None and not ticket.done:
                        ticket.error, ticket.done = BrokerClosed("the broker is closed"), True
                        left.append(ticket)
        _tell(left)

    def close(self) -> None:
        """Accept no more operations."""
        self.closed = True
        if self._submitted.locked():
            _release(self._submitted)

    def acquire(self) -> None:
        """Keep all others from writing until `let_go`."""
        self._refuse_holder()
        self._writing.acquire()
        self._owner = self.hold()

    def release(self) -> None:
        """Let others write again."""
        try:
            self.let_go(self._owner)
        finally:
            self._writing.release()
        self._wake_next()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep all others from writing within a block, also if this thread has an open transaction."""
        try:
            with self._writing:
                yield
        finally:
            self._wake_next()

    def hold(self) -> int:
        """Have this thread do all through its transaction until `let_go` of the returned number."""
        self._refuse_holder()
        holder = threading.get_ident()
        with self._let_go:
            self._holders.add(holder)
        return holder

    def let_go(self, holder: int) -> None:
        """End that."""
        with self._let_go:
            self._holders.discard(holder)
            self._let_go.notify_all()

    def wait_for_holders(self) -> None:
        """Wait until no thread has such a transaction. Raises TransactionError if this thread has one."""
        self._refuse_holder()
        with self._let_go:
            self._let_go.wait_for(lambda: not self._holders)

    def _refuse_holder(self) -> None:
        if threading.get_ident() in self._holders:
            raise TransactionError(
                "a transaction of this thread has run SQL and is open: "
                "send, receive and settle through it, or end it first"
            )

    def _sleep(self, ticket: Ticket) -> None:
        """Wait until the ticket is answered, its owner is to write, or long enough."""
        wake = ticket.wake
        if wake is None:
            wake = threading.Lock()
            wake.acquire()
            ticket.wake = wake
            if self._expected and self.waiting >= self._expected:
                self._expected = 0
                _release(self._gate)
            if ticket.done or not self._writing.locked():
                # Answered, or the writer gone, before it could see whom to wake.
                return
        wake.acquire(timeout=_LOOK_UP)

    @property
    def waiting(self) -> int:
        """How many operations wait for a commit to come."""
        return len(self._durable) + len(self._quick)

    def _write(self) -> None:
        """Write once: for all that wait, or for the quick ones if it is their turn."""
        if 1 < self._callers > self.waiting:
            self._gather(self._callers)
        self._went_ahead = bool(self._quick and self._durable) and not self._went_ahead
        group: list[Ticket] = []
        committed = False
        try:
            for line in (self._quick,) if self._went_ahead else (self._durable, self._quick):
                while line and len(group) < _MOST:
                    # Taken out last, so that an interruption between two steps leaves it with somebody.
                    ticket = line[0]
                    ticket.taken = True
                    if not ticket.done:
                        group.append(ticket)
                    line.popleft()
            if group:
                self._commit_measured(group)
            committed = True
        except Exception as error:
            for ticket in group:
                ticket.error = error
        finally:
            # A signal's exception is for this thread alone; the others did nothing to deserve it.
            self._callers = len(group) + len(self._durable) + len(self._quick)
            tells = False
            for ticket in group:
                if not committed and ticket.error is None:
                    ticket.error = StoreError(_IN_DOUBT)
                tells = tells or ticket.tell is not None
                ticket.done = True
                if ticket.wake is not None:
                    _release(ticket.wake)
            if tells:
                _tell(group)

    def _commit_measured(self, group: list[Ticket]) -> None:
        of_process = measures.of_process
        begin = 0.0 if of_process is None else time.perf_counter()
        # The deadline of a caller's read is none for what it writes for others.
        if current() is None:
            self._commit(group)
        else:
            with undated():
                self._commit(group)
        if of_process is not None:
            of_process.note_commit(begin, len(group))

    def _gather(self, expected: int) -> None:
        """Wait until that many callers stand in the queue, or long enough."""
        # It may have been opened when nobody stood before it any more.
        self._gate.acquire(blocking=False)
        self._expected = expected
        try:
            if self.waiting < expected:
                self._gate.acquire(timeout=_GATHER)
        finally:
            self._expected = 0

    def _wake_next(self) -> None:
        """Wake the first of those that wait, to write."""
        if not self._durable and not self._quick:
            return
        for ticket in (*tuple(self._durable), *tuple(self._quick))[:1]:
            if ticket.wake is not None:
                _release(ticket.wake)


def _refuse(own: Ticket) -> None:
    """Answer an operation that its caller cannot write."""
    # Whoever took it is gone without an answer; or it is closed since it came: nothing is left to write to.
    own.error = StoreError(_IN_DOUBT) if own.taken else BrokerClosed("the broker is closed")
    own.done = True


def _tell(group: list[Ticket]) -> None:
    """Tell whoever wants to be told of tickets, each once of all."""
    by_caller: dict[Callable[[list[Any]], object], list[Ticket]] = {}
    for ticket in group:
        if ticket.tell is not None:
            by_caller.setdefault(ticket.tell, []).append(ticket)
    for tell, tickets in by_caller.items():
        # An event loop that is closed cannot be told.
        with contextlib.suppress(RuntimeError):
            tell(tickets)


def _release(lock: threading.Lock) -> None:
    """Release a lock that somebody else may have released already."""
    with contextlib.suppress(RuntimeError):
        lock.release()
