"""A sandbox: runs a function over items in another process, so that an item fails and nothing else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import cloudpickle
import msgspec

from lazaretto.errors import InvalidOption, SandboxError, SandboxSetupError
from lazaretto.failure import Failure
from lazaretto.isolation import child
from lazaretto.isolation.memory import (
    CURSOR,
    END,
    NEXT,
    PAGE,
    ROUND,
    STOP,
    Record,
    Segment,
    get_records,
    put_items,
)
from lazaretto.isolation.options import SandboxOptions
from lazaretto.isolation.verdict import DONE, NOT_RUN, Death, Status, Verdict, blame
from lazaretto.isolation.worker import CAN_FORK, Worker
from lazaretto.options import shown

Setup = Callable[[], Callable[[bytes], bytes | None]]

#: Items of one round at most: bounds how far ahead a command's numbers go.
_MOST_ITEMS = 100_000
#: How long a round is awaited without sleeping, in seconds.
_SPIN = 0.0005
#: How often deadlines are looked at, in seconds: at most, and as a share of the deadline.
_LOOK, _SHARE = 0.05, 0.1


_yield: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Sandbox:
    """Runs a function over batches of items in a process of its own. A context manager; one thread.

    `setup` is sent to that process (by cloudpickle), called there once, and returns the function of
    bytes that is called with each item and returns bytes or None. An item that raises, hangs,
    crashes the process or uses too much memory gets a verdict that says so; the items after it go on
    in a fresh process; no item is run twice. `on_output` gets what is printed there, bounded;
    without it that goes to standard error. `stopping` is asked while processes start: once it returns
    True, that is given up with a SandboxError.

    Raises SandboxSetupError when the setup fails, SandboxError when no process can be started.
    """

    def __init__(
        self,
        setup: Setup,
        options: SandboxOptions | None = None,
        *,
        on_output: Callable[[bytes], object] | None = None,
        stopping: Callable[[], bool] | None = None,
    ) -> None:
        self._options = options or SandboxOptions()
        if not callable(setup):
            raise InvalidOption(f"expected setup to be a function, got {shown(setup)}")
        if self._options.mode == "fork" and not CAN_FORK:
            raise InvalidOption("mode='fork' needs Linux: give mode='auto' or 'spawn'")
        try:
            pickled = cloudpickle.dumps(setup)
        except Exception as error:
            raise SandboxSetupError(f"the setup cannot be sent: {type(error).__name__}: {error}") from error
        self._on_output = on_output or to_stderr
        self._stopping = stopping or _never
        # The setup by itself, because it is read again whenever a process is started anew.
        self._segments = Segment.create_all((PAGE, len(pickled), 1_048_576, 1_048_576))
        self._control, self._setup, self._items, self._records = self._segments
        self._setup.put(0, pickled)
        self._numbers = self._control.numbers()
        self._replaced = False
        self._closed = False
        self._batch: Sequence[bytes] = ()
        self._base = self._count = self._sent = self._read = self._status = 0
        self._stop_on_failure = False
        self._stop_at: float | None = None
        self._printed = 0
        self._seen_at = 0.0
        #: How many processes have died at work.
        self.deaths = 0
        try:
            self._worker = Worker(self._options, self._segments, self._take_output, self._gives_up)
        except BaseException:
            self._close_memory()
            raise

    @property
    def mode(self) -> str:
        """Return "fork" or "spawn": how a dead process is replaced."""
        return "fork" if self._worker.forks else "spawn"

    # -- batches --------------------------------------------------------------------------------

    def run(self, items: Sequence[bytes], *, stop_on_failure: bool = False) -> list[Verdict]:
        """Run a batch; return one verdict for each item, in order."""
        self.start(items, stop_on_failure=stop_on_failure)
        return self.collect()

    def start(self, items: Sequence[bytes], *, stop_on_failure: bool = False) -> None:
        """Begin with a batch and return at once; `collect` waits for it.

        `stop_on_failure`: no item is run after the first that is not DONE.
        """
        self._refuse_closed()
        self._batch = items
        self._base = 0
        self._stop_on_failure = stop_on_failure
        self._printed = 0
        self._next_round()

    def collect(self) -> list[Verdict]:
        """Wait for the batch, and return its verdicts."""
        verdicts: list[Verdict] = []
        while self._count:
            verdicts += self._round()
            self._base += self._count
            over = self._numbers[STOP] or (
                self._stop_on_failure and any(v.status is not Status.DONE for v in verdicts)
            )
            if over:
                self._count = 0
            else:
                self._next_round()
        missing = len(self._batch) - len(verdicts)
        self._batch = ()
        if self._printed > self._options.max_output:
            left_out = self._printed - self._options.max_output
            self._on_output(b"\n(%d bytes of output left out)\n" % left_out)
        return verdicts + [NOT_RUN] * missing if missing else verdicts

    def stop(self, grace: float = 0.0) -> None:
        """Start no further item; the one at work gets `grace` seconds more. Any thread may call it.

        It is then killed, and its verdict is NOT_RUN, as for all those that were not started.
        """
        self._stop_at = time.monotonic() + grace
        if not self._closed:
            self._numbers[STOP] = 1

    def _gives_up(self) -> bool:
        return self._stopping() or (self._stop_at is not None and time.monotonic() >= self._stop_at)

    def _next_round(self) -> None:
        """Send as many of the items that are left as fit in one round."""
        first, items = self._base, self._batch
        self._count = 0
        if first >= len(items) or self._numbers[STOP]:
            return
        end, size = first, 0
        while end < len(items) and end - first < _MOST_ITEMS and (size < ROUND or end == first):
            size += len(items[end])
            end += 1
        if end - first > 1 and size > ROUND:
            end -= 1
        self._count = end - first
        self._items.shrink(2 * ROUND)
        self._sent = put_items(self._items, items[first:end])
        self._read = self._numbers[END] = 0
        self._numbers[CURSOR] = -1
        if not self._command(0):
            self._count = 0

    def _command(self, start: int) -> bool:
        """Have the items run from `start`; return whether that is so: not if all is to stop."""
        try:
            if self._replaced:
                self._replaced = False
                self._worker.await_replacement()
            elif not self._worker.ready:
                self._worker.recover()
        except SandboxError:
            if self._gives_up():
                return False
            raise
        self._numbers[NEXT] = start
        self._worker.command(child.COMMAND.pack(self._count, start, self._sent, self._stop_on_failure))
        return True

    def _round(self) -> list[Verdict]:
        """Wait for a round, through the deaths of however many processes."""
        verdicts = [NOT_RUN] * self._count
        start = 0
        while True:
            death = self._wait()
            done = self._numbers[CURSOR]
            if death is None or done < 0:
                done = self._numbers[NEXT]
            verdicts[start:done] = [DONE] * (done - start)
            recorded = self._take_records(verdicts)
            if death is None:
                start = done
            else:
                culprit = self._numbers[CURSOR]
                self._numbers[CURSOR] = -1
                start = done
                if culprit >= 0:
                    if culprit not in recorded:
                        verdicts[culprit] = self._blame(death)
                    start = culprit + 1
            stopped = self._numbers[STOP] or (
                self._stop_on_failure and any(v.status is not Status.DONE for v in verdicts[:start])
            )
            if start >= self._count or stopped or not self._command(start):
                return verdicts

    def _take_records(self, verdicts: list[Verdict]) -> set[int]:
        end, found = self._numbers[END], set()
        for record in get_records(self._records, self._read, end):
            verdicts[record.item] = _verdict(record)
            found.add(record.item)
        self._read = end
        if end > 2 * ROUND:
            # Only between rounds: whoever writes looks up where to go on.
            self._read = self._numbers[END] = 0
        return found

    def _blame(self, death: Death) -> Verdict:
        elapsed = time.monotonic() - self._seen_at
        status = self._status
        return blame(
            death, status, self._worker.take_stack(), deadline=self._options.deadline, elapsed=elapsed
        )

    # -- waiting --------------------------------------------------------------------------------

    def _wait(self) -> Death | None:
        """Wait until the round is over: None, or the process has died: why."""
        deadline, numbers = self._options.deadline, self._numbers
        seen, self._seen_at = -1, time.monotonic()
        # A short round is over before this thread would have been put to sleep and woken again.
        while not self._worker.is_ready() and time.monotonic() - self._seen_at < _SPIN:
            _yield()
        look = _LOOK if deadline is None else min(_LOOK, deadline * _SHARE)
        why = Death.OWN
        while True:
            kind, number = self._worker.notice(look)
            if kind == child.ROUND_OVER:
                self._replaced = bool(number)
                if why is Death.OWN:
                    return None
                # It finished while it was being killed: the death is still to come.
                continue
            if kind == child.DIED:
                self._status = number
                self.deaths += numbers[CURSOR] >= 0
                return why
            if why is not Death.OWN:
                continue
            if self._stop_at is not None and numbers[STOP] and time.monotonic() >= self._stop_at:
                why = Death.STOP
                self._worker.kill(stack=False)
            elif numbers[CURSOR] != seen:
                # Looked at here, so that the items need no clock.
                seen, self._seen_at = numbers[CURSOR], time.monotonic()
            elif deadline is not None and seen >= 0 and time.monotonic() - self._seen_at > deadline:
                why = Death.DEADLINE
                self._worker.kill(stack=True)

    def _take_output(self, text: bytes) -> None:
        room = self._options.max_output - self._printed
        self._printed += len(text)
        if room > 0 and text:
            self._on_output(text[:room])

    # -- ending ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End the processes and give up the memory."""
        if self._closed:
            return
        self._closed = True
        self._worker.close()
        self._close_memory()

    def _close_memory(self) -> None:
        self._numbers.release()
        for segment in self._segments:
            segment.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SandboxError("this sandbox is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _verdict(record: Record) -> Verdict:
    if record.kind == child.RESULT:
        return Verdict(Status.DONE, record.payload)
    failure = msgspec.msgpack.decode(record.payload, type=Failure)
    status = Status.MEMORY if record.kind == child.MEMORY else Status.ERROR
    return Verdict(status, None, failure.type, failure.message, failure.stack)


def _never() -> bool:
    return False


def to_stderr(text: bytes) -> None:
    """Write what was printed in a sandbox to standard error."""
    sys.stderr.write(text.decode("utf-8", "backslashreplace"))
