"""Group commit: what several threads ask for at the same time goes to disk in one commit.

There is no writer thread. A thread that finds nobody writing writes for itself, so that a lone
caller pays for no hand-over. Threads that come meanwhile leave their operation in a queue and
sleep; one of them is woken to write for all of them next.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from lazaretto.errors import BrokerClosed, StoreError, TransactionError
from lazaretto.store.contract import Operation

#: The most operations of one commit: bounds how long the first waits for the last.
_MOST = 256
#: How long a writer waits for the callers of the last commit to come back, in seconds: little more
#: than a commit takes. Without it they arrive one by one and half of them miss each commit.
_GATHER = 0.0002


class Ticket:
    """One caller's operation on its way through a commit."""

    __slots__ = ("answer", "done", "error", "operation", "wake")

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation
        self.answer: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.wake: threading.Lock | None = None


def _acquire(lock: threading.Lock) -> BaseException | None:
    """Acquire a lock whatever signals arrive; return the exception one of them raised.

    A ticket cannot be called back: others may be writing it, or counting on this thread to write.
    """
    interruption = None
    while True:
        try:
            lock.acquire()
            return interruption
        except BaseException as error:
            interruption = error


class GroupCommit:
    """Brings the operations of many threads to `commit`, in groups, one group at a time.

    `commit` fills in each ticket's answer or error. What it raises itself becomes the error of
    every ticket in the group that has no answer.
    """

    def __init__(self, commit: Callable[[list[Ticket]], None]) -> None:
        self._commit = commit
        self._writing = threading.Lock()
        self._waiting: deque[Ticket] = deque()
        self._local = threading.local()
        self._gate = threading.Lock()
        self._gate.acquire()
        self._expected = 0
        self._callers = 0
        self._holder: int | None = None
        self.closed = False

    def run(self, operation: Operation[Any]) -> Any:
        """Return the operation's answer, or raise its error, once its commit is done."""
        if self.closed:
            raise BrokerClosed("the broker is closed")
        if self._holder is not None and self._holder == threading.get_ident():
            raise TransactionError(
                "a transaction of this thread has run SQL and holds the store: "
                "send, receive and settle through it, or end it first"
            )
        ticket = Ticket(operation)
        if not self._waiting and self._writing.acquire(blocking=False):
            self._lead(ticket)
        else:
            self._follow(ticket)
        if ticket.error is not None:
            raise ticket.error
        return ticket.answer

    def hold(self) -> None:
        """Keep all others from writing until `let_go`."""
        if self._holder == threading.get_ident():
            raise TransactionError("a transaction of this thread has run SQL already; end it first")
        self._writing.acquire()
        self._holder = threading.get_ident()

    def let_go(self) -> None:
        """Let others write again."""
        self._holder = None
        self._pass_on()

    def _follow(self, ticket: Ticket) -> None:
        try:
            wake: threading.Lock = self._local.wake
        except AttributeError:
            wake = self._local.wake = threading.Lock()
            wake.acquire()
        ticket.wake = wake
        waiting = self._waiting
        waiting.append(ticket)
        if self._expected and len(waiting) >= self._expected:
            self._expected = 0
            self._open_gate()
        # Whoever was writing may have looked at the queue before this ticket stood in it.
        if self._writing.acquire(blocking=False):
            self._pass_on()
        interruption = _acquire(wake)
        if not ticket.done:
            try:
                self._lead(None)
            finally:
                interruption = _acquire(wake) or interruption
        if interruption is not None:
            raise interruption

    def _lead(self, own: Ticket | None) -> None:
        """Write for all that wait. Whatever happens, every ticket taken is answered, the right passed on."""
        waiting = self._waiting
        group = [] if own is None else [own]
        interruption = None
        missing = self._callers - len(group) - len(waiting)
        if missing > 0 and self._callers > 1:
            interruption = self._gather(len(waiting) + missing)
        while waiting and len(group) < _MOST:
            group.append(waiting.popleft())
        try:
            self._commit(group)
        except BaseException as error:
            shared: BaseException = error
            if not isinstance(error, Exception):
                # Meant for this thread alone; the others did nothing to be interrupted for.
                interruption = error
                shared = StoreError(
                    "the commit was interrupted by a signal; whether it was done is not known"
                )
            for ticket in group:
                ticket.error = shared
        finally:
            self._callers = len(group) + len(waiting)
            for ticket in group:
                ticket.done = True
                if ticket.wake is not None:
                    ticket.wake.release()
            self._pass_on()
        if interruption is not None:
            raise interruption

    def _gather(self, expected: int) -> BaseException | None:
        """Wait until that many callers stand in the queue, or long enough; return an interruption."""
        self._expected = expected
        try:
            if len(self._waiting) < expected:
                self._gate.acquire(timeout=_GATHER)
        except BaseException as error:
            return error
        finally:
            self._expected = 0
        return None

    def _open_gate(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:
            # It was open already: the writer has not come by since the last time.
            return

    def _pass_on(self) -> None:
        """Give the right to write to a waiting thread, or back."""
        waiting = self._waiting
        while not waiting:
            self._writing.release()
            # A ticket may have come between the look and the release, and found it taken.
            if not waiting or not self._writing.acquire(blocking=False):
                return
        # Only the holder of the right takes tickets out, so the first one stays the first.
        heir = waiting[0].wake
        assert heir is not None
        heir.release()
