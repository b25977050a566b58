"""The processes of a sandbox: a guard, a warm template, and the runner that it forks to run the items.

Started by sandbox.py as a new interpreter, so that nothing is ever forked from a process with threads.
The template loads the function once. When the runner dies, the template cleans up after it and forks
the next one, which is ready in milliseconds. A template that has threads by then runs the items itself.
The guard does nothing but wait: whoever kills its parent in there does not kill the user's process. It is
forked before the function is loaded, which is safe on each system that can fork: there is one thread.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import gc
import inspect
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec

from lazaretto.isolation.columns import JOIN
from lazaretto.isolation.coroutines import Crew, DeadlineExceeded
from lazaretto.isolation.memory import (
    AT_ONCE,
    CURSOR,
    END,
    LEAVES,
    NEXT,
    OVER,
    ROUND,
    STEPS,
    STOP,
    THREADS,
    Record,
    Segment,
    get_items,
    put_record,
)
from lazaretto.isolation.system import (
    adopt_orphans,
    bury,
    count_descriptors,
    count_threads,
    die_with,
    flush,
    heed_signals,
    hold_signals,
    ignore_signals,
    read_all,
    release_signals,
)
from lazaretto.isolation.verdict import RESULT_TOO_LARGE, FailedResult
from lazaretto.model.failure import HANDLER_TIMEOUT, OUT_OF_MEMORY, Failure, failure_of

Function = Callable[[Any], bytes | None]

#: Kinds of records. NOTHING: it returned None, which is told only where items run at the same time.
RESULT, ERROR, MEMORY, TIMEOUT, NOTHING, FAILED_RESULT = 1, 2, 3, 4, 5, 6
#: Notices of the template to the parent: a byte, then a number. BORN: its own pid, before anything of the
#: function's is loaded. READY: the runner's pid, negative if no fork replaces it. DIED: wait status. FAILED:
#: how many bytes of msgpack the setup's error has in the records.
#: The runner has no part in them, and tells by the control page alone: its pipe only wakes the parent.
BORN, READY, DIED, FAILED = b"b", b"r", b"d", b"f"
#: Commands to a runner: its pid, bytes of items, the round's number, whether to stop at the first failure.
COMMAND = struct.Struct("<qqqq")
NOTICE = struct.Struct("<cq")

#: How long a runner waits for the next round without sleeping, in seconds.
_SPIN = 0.0001
#: More descriptors than at the start that a runner may have open between rounds.
_SPARE_DESCRIPTORS = 32
#: Items after which a runner looks at its descriptors again.
_LOOK_EVERY = 100

#: Taken now: a function may put something else in the module's place.
_encode = msgspec.msgpack.Encoder().encode
_now = time.time_ns


class ItemFailure(Failure, frozen=True):
    """The error of an item. `ended`: when, in nanoseconds since 1970."""

    ended: int = 0


class Start(msgspec.Struct):
    """The start values of a template. Numbers ending in fd are descriptors."""

    parent: int
    command_fd: int
    notice_fd: int
    wake_fd: int
    control_fd: int
    setup_fd: int
    items_fd: int
    records_fd: int
    stack_fd: int
    memory: int | None
    deadline: float | None
    max_result: int
    refork_every: int | None
    fork: bool


class Child:
    """This process, as template or as runner."""

    def __init__(self, start: Start) -> None:
        self._start = start
        for fd in (start.command_fd, start.notice_fd, start.wake_fd, start.items_fd, start.stack_fd):
            os.set_inheritable(fd, False)
        os.set_blocking(start.wake_fd, False)
        self._control = Segment.adopt(start.control_fd)
        self._records = Segment.adopt(start.records_fd)
        self._items = Segment(start.items_fd, os.fstat(start.items_fd).st_size)
        self._pipes = self._found_pipes()
        self._numbers = self._control.numbers()
        self._left: Iterator[tuple[int, Any]] = iter(())
        self._forked = False
        self._crew: Crew[bytes | None] | None = None
        #: Whether the fork at hand is our own, not the function's.
        self._forking = False

    # -- the template ---------------------------------------------------------------------------

    def main(self) -> None:
        """Load the function, then keep a runner alive until the parent hangs up."""
        die_with(self._start.parent)
        self._be_guarded()
        self._notify(BORN, os.getpid())
        os.register_at_fork(
            before=hold_signals, after_in_parent=release_signals, after_in_child=self._on_fork
        )
        faulthandler.enable(file=self._start.stack_fd, all_threads=True)
        try:
            pickled = os.pread(self._start.setup_fd, os.fstat(self._start.setup_fd).st_size, 0)
            os.close(self._start.setup_fd)
            setup = pickle.loads(pickled)  # noqa: S301 - from our parent
            function = setup()
            if not callable(function):
                raise TypeError(f"expected the setup to return a function, got {type(function).__name__}")
        except BaseException as error:
            self._say_failed(error)
            os._exit(1)
        if not self._start.fork or count_threads() > 1:
            # A process with threads must not fork: this one runs the items itself, and is started anew.
            self._run(function)
        gc.collect()
        gc.freeze()
        adopt_orphans()
        while True:
            flush()
            self._forking = True
            pid = os.fork()
            self._forking = False
            if pid == 0:
                self._run(function)
            self._notify(READY, pid)
            status = bury(pid)
            if self._parent_gone():
                os._exit(0)
            self._notify(DIED, status)

    def _be_guarded(self) -> None:
        """Go on as a child of this process, which waits and then ends as the child has ended."""
        guard = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with(guard)
            return
        start = self._start
        for fd in (start.command_fd, start.notice_fd, start.wake_fd, start.items_fd):
            os.close(fd)
        adopt_orphans()
        code = os.waitstatus_to_exitcode(bury(pid))
        if code < 0:
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with contextlib.suppress(OSError):
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)

    def _say_failed(self, error: BaseException) -> None:
        failure = failure_of(error)
        size = self._records.put(0, _encode(failure))
        self._notify(FAILED, size)

    def _notify(self, kind: bytes, number: int) -> None:
        os.write(self._start.notice_fd, NOTICE.pack(kind, number))

    def _parent_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._start.command_fd, select.POLLIN)
        return any(what & (select.POLLHUP | select.POLLERR) for _, what in poll.poll(0))

    # -- the runner -----------------------------------------------------------------------------

    def _run(self, function: Function) -> None:
        """Run rounds of items until the parent hangs up. Never returns."""
        import resource

        code = 99
        try:
            die_with(os.getppid())
            with contextlib.suppress(OSError):
                os.setsid()
            with contextlib.suppress(OSError):
                # When memory runs out, this process goes first.
                Path("/proc/self/oom_score_adj").write_text("1000")
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            faulthandler.enable(file=self._start.stack_fd, all_threads=False)
            faulthandler.register(signal.SIGUSR1, file=self._start.stack_fd, all_threads=True)
            if count_threads() > 1 or not self._start.fork:
                self._notify(READY, -os.getpid())
            os.close(self._start.notice_fd)
            code = self._rounds(function)
        finally:
            os._exit(code)

    def _rounds(self, function: Function) -> int:
        me = os.getpid()
        threads = self._threads = threading.active_count()
        run = self._round_at_once if inspect.iscoroutinefunction(function) else self._round
        self._most_descriptors = count_descriptors() + _SPARE_DESCRIPTORS
        rest, looked = self._start.refork_every, 0
        self._limit_memory()
        commands = select.poll()
        commands.register(self._start.command_fd, select.POLLIN)
        while True:
            # The next round often follows at once: sooner than this process would be woken.
            end = time.monotonic() + _SPIN
            while not commands.poll(0) and time.monotonic() < end:
                os.sched_yield()
            command = read_all(self._start.command_fd, COMMAND.size)
            if command is None:
                return 0
            runner, size, number, stop_on_failure = COMMAND.unpack(command)
            if runner != me:
                # For one that died before it read this: our parent will hear of that, and ask again.
                continue
            if self._items.reach(size):
                self._limit_memory()
            reached = run(function, size, rest, bool(stop_on_failure))
            if os.getpid() != me:
                return 0
            looked += reached
            leaves = threading.active_count() > threads or (self._crew is not None and self._crew.stubborn)
            if looked >= _LOOK_EVERY or self._cut:
                looked = 0
                leaves = leaves or count_descriptors() > self._most_descriptors
            if rest is not None:
                rest -= reached
                leaves = leaves or rest <= 0
            intact = self._found_pipes() == self._pipes
            numbers = self._numbers
            numbers[NEXT], numbers[CURSOR] = reached, -1
            flush()
            numbers[LEAVES] = leaves or not intact
            numbers[OVER] = number
            if intact:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._start.wake_fd, b".")
            if leaves or not intact:
                return 0

    def _found_pipes(self) -> list[tuple[int, int]] | None:
        """Return which files our pipes are: an item may have put others in their places."""
        try:
            pipes = (os.fstat(self._start.command_fd), os.fstat(self._start.wake_fd))
        except OSError:
            return None
        return [(one.st_dev, one.st_ino) for one in pipes]

    def _round(self, function: Function, size: int, most: int | None, stop_on_failure: bool) -> int:
        """Run the items, or so many of them; return the first that was not run."""
        numbers = self._numbers
        self._cut = False
        with _without_collection():
            items = get_items(self._items, size, getattr(function, JOIN, None))[:most]
        last, end = len(items), 0
        self._left = enumerate(items)
        del items
        # Nothing more than this is done for an item that returns None: it is what isolation costs.
        for index, item in self._left:
            if numbers[STOP]:
                return index
            numbers[CURSOR] = index
            try:
                result = function(item)
                if result is None:
                    continue
                self._refuse_forked()
                record = self._result(index, result)
            except BaseException as error:
                self._refuse_forked()
                record = _error(index, error)
                self._cut = isinstance(error, OSError)
            numbers[END] = end = put_record(self._records, end, record)
            if self._cut and count_descriptors() > self._most_descriptors:
                # The next item would fail for want of what this one has not given back.
                return index + 1
            if (stop_on_failure and record[1] != RESULT) or end > ROUND:
                return index + 1
        self._refuse_forked()
        return last

    def _round_at_once(self, function: Any, size: int, most: int | None, stop_on_failure: bool) -> int:
        """Run items at the same time, or in order up to a failure; return how many were started."""
        numbers, end, failed = self._numbers, 0, False
        self._cut = False
        crew = self._crew
        if crew is None:
            crew = self._crew = Crew(self._at, self._start.deadline)
        numbers[AT_ONCE] = 1
        self._at(crew.current)

        def may_start(index: int) -> bool:
            if numbers[STOP] or failed or end > ROUND:
                return False
            numbers[NEXT] = index + 1
            return True

        def on_end(index: int, result: object, error: BaseException | None) -> None:
            nonlocal end, failed
            self._refuse_forked()
            try:
                if error is not None:
                    raise error
                record = (index, NOTHING, b"") if result is None else self._result(index, result)
            except BaseException as caught:
                record = _error(index, caught)
            _, kind, payload = record
            failed = failed or (stop_on_failure and kind not in (RESULT, NOTHING))
            if end + len(payload) <= ROUND + self._start.max_result:
                numbers[END] = end = put_record(self._records, end, record)
            else:
                # What does not fit counts as not run, as those that are not started any more.
                failed = True

        async def on_tick() -> None:
            # The loop goes round.
            numbers[STEPS] += 1

        def call(item: Any) -> Callable[[], Coroutine[Any, Any, bytes | None]]:
            return lambda: function(item)

        items = get_items(self._items, size)[:most]
        crew.run(
            [call(item) for item in items],
            on_end,
            may_start=may_start,
            on_tick=on_tick,
            at_once=1 if stop_on_failure else None,
        )
        self._refuse_forked()
        return numbers[NEXT]

    def _at(self, index: int) -> None:
        """Tell whose step runs."""
        self._refuse_forked()
        numbers = self._numbers
        numbers[CURSOR] = index
        numbers[STEPS] += 1
        numbers[THREADS] = threading.active_count() > self._threads

    def _on_fork(self) -> None:
        """Take the items that are left from a child that the function forks, and let it be ended."""
        if not self._forking:
            heed_signals()
            self._forked = True
            collections.deque(self._left, maxlen=0)
        release_signals()

    def _refuse_forked(self) -> None:
        if self._forked:
            # Such a child has come back from the function: it has no business here.
            os._exit(0)

    def _result(self, index: int, result: object) -> Record:
        if type(result) is bytes and len(result) <= self._start.max_result:
            # What nearly all results are.
            return index, RESULT, result
        if not isinstance(result, bytes):
            raise TypeError(f"expected the function to return bytes or None, got {type(result).__name__}")
        if len(result) > self._start.max_result:
            limit = self._start.max_result
            text = (
                f"expected a result of at most {limit} bytes, got {len(result)}; "
                "for a handler this counts everything that it sends and executes for one message"
            )
            return index, ERROR, _encode(ItemFailure(RESULT_TOO_LARGE, text, ended=_now()))
        return index, FAILED_RESULT if isinstance(result, FailedResult) else RESULT, result

    def _limit_memory(self) -> None:
        memory = self._start.memory
        if memory is None:
            return
        import resource

        with contextlib.suppress(OSError, ValueError):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, hard))


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Look for no garbage meanwhile: of the many objects that a round makes of its items, none is any yet."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _error(index: int, error: BaseException) -> Record:
    failure = failure_of(error)
    assert failure is not None
    kind, type_, message = ERROR, failure.type, failure.message
    if isinstance(error, MemoryError):
        kind, type_, message = MEMORY, OUT_OF_MEMORY, failure.message or "the memory limit was exceeded"
    elif isinstance(error, DeadlineExceeded):
        kind, type_ = TIMEOUT, HANDLER_TIMEOUT
    return index, kind, _encode(ItemFailure(type_, message, failure.stack, failure.site, _now()))


def main() -> None:
    """Be the process that the command line asks for."""
    ignore_signals()
    # Inherited, as from a server that ignores it, each death would look like an end in good order.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    Child(msgspec.json.decode(sys.argv[1], type=Start)).main()
