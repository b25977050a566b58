"""A sandbox: runs a function over items in another process, so that a failing item affects only itself."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from lazaretto.errors import InvalidOption, SandboxError, SandboxSetupError
from lazaretto.isolation import child
from lazaretto.isolation.columns import Columns
from lazaretto.isolation.coroutines import LEFT
from lazaretto.isolation.memory import (
    AT_ONCE,
    CURSOR,
    END,
    LEAVES,
    NEXT,
    OVER,
    PAGE,
    ROUND,
    STEPS,
    STOP,
    THREADS,
    Corrupt,
    Segment,
    create_constant,
    put_items,
)
from lazaretto.isolation.pickling import pickle_value
from lazaretto.isolation.readings import read_ended, read_in_order
from lazaretto.isolation.verdict import NOT_RUN, Death, SandboxOptions, Status, Verdict, blame
from lazaretto.isolation.worker import ANSWER, CAN_FORK, Worker
from lazaretto.model.checks import shown
from lazaretto.model.failure import WORKER_CRASHED
from lazaretto.tools.closing import Closing
from lazaretto.tools.surroundings import why_no_sandbox

Setup = Callable[[], Callable[[Any], bytes | None] | Callable[[Any], Coroutine[Any, Any, bytes | None]]]
#: Bytes; or tuples, as Columns.
Items = Sequence[bytes] | Columns
#: Gets verdicts on items, by their places in the batch.
OnSome = Callable[[list[tuple[int, Verdict]]], object]
#: Gets the next verdicts of a batch, all from one process; returns whether nothing more is to be run.
IsOver = Callable[[list[Verdict]], bool]

#: Items of one round at most.
_MOST_ITEMS = 100_000
#: Room for what is written besides results, in bytes.
_ROOM = 1_048_576
#: How many items are run one at a time after one of several has overwritten the memory.
_ALONE = 10_000
#: How many rounds in a row may end before an item is run.
_MOST_BARREN = 3
#: How long a round of few items is awaited without sleeping, in seconds; and how many are few.
_SPIN, _FEW = 0.0005, 100
#: How often deadlines are looked at, in seconds: at most, and as a share of the deadline.
_LOOK, _SHARE = 0.05, 0.1
#: How long after a deadline a process is given to cancel an item, while it is not at work on any, in seconds.
_CANCEL = 1.0
#: How often it is told which items have ended while others of their round go on, in seconds.
_TELL = 0.2

_yield: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Sandbox(Closing):
    """Runs a function over batches of items in a process of its own. A context manager; one thread.

    cloudpickle sends `setup` to that process. It is called there once, and returns a function that takes
    each item, bytes or a tuple of Columns, and returns bytes or None; if that is a coroutine function,
    the items of a batch run at the same time, and each has the deadline for itself. An item that raises,
    hangs, crashes or uses too much memory gets a verdict with the reason; later items run in a new process.
    No item is run twice. `on_output` gets the output, up to a limit; by default it goes to standard error.
    `stopping` is called while processes start; once it returns True, the start is abandoned with a
    SandboxError.

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
            raise InvalidOption("mode='fork' needs Linux: pass mode='auto' or 'spawn'")
        why = why_no_sandbox()
        if why is not None:
            raise SandboxSetupError(why)
        try:
            pickled = pickle_value(setup)
        except Exception as error:
            raise SandboxSetupError(f"the setup cannot be sent: {type(error).__name__}: {error}") from error
        self._on_output = on_output or to_stderr
        self._stopping = stopping or _never
        with contextlib.ExitStack() as made:
            # By itself, because it is read again whenever a process is started anew.
            self._setup = create_constant(pickled)
            made.callback(os.close, self._setup)
            self._control = made.enter_context(contextlib.closing(Segment.create(PAGE)))
            self._items = made.enter_context(contextlib.closing(Segment.create(1_048_576, grows=True)))
            size = _page_up(ROUND + self._options.max_result + _ROOM)
            self._records = made.enter_context(contextlib.closing(Segment.create(size)))
            self._memory = made.pop_all()
        self._numbers = self._control.numbers()
        self._closed = False
        self._batch: Items = ()
        self._base = self._count = self._status = 0
        self._round_number = self._barren = self._alone = 0
        self._stopped = False
        self._stop_on_failure = False
        self._stop_at: float | None = None
        self._printed = 0
        self._seen_at = 0.0
        self._on_some: OnSome | None = None
        self._told: set[int] = set()
        self._tell_at = 0.0
        #: How many processes have died at work.
        self.deaths = 0
        try:
            segments = (self._control, self._items, self._records)
            self._worker = Worker(self._options, self._setup, segments, self._take_output, self._gives_up)
        except BaseException:
            self._close_memory()
            raise

    @property
    def mode(self) -> str:
        """Return "fork" or "spawn": how a dead process is replaced."""
        return "fork" if self._worker.forks else "spawn"

    # -- batches --------------------------------------------------------------------------------

    def run(
        self,
        items: Items,
        *,
        stop_on_failure: bool = False,
        is_over: IsOver | None = None,
    ) -> list[Verdict]:
        """Run a batch; return one verdict for each item, in order."""
        self.start(items, stop_on_failure=stop_on_failure)
        return self.collect(is_over=is_over)

    def start(self, items: Items, *, stop_on_failure: bool = False) -> None:
        """Start a batch and return at once; `collect` waits for it.

        `stop_on_failure`: run nothing after the first item that is not DONE, or whose result is a
        FailedResult.
        """
        self._refuse_closed()
        self._batch = items
        self._base = 0
        self._stop_on_failure = stop_on_failure
        self._printed = 0
        self._next_round()

    def collect(self, on_some: OnSome | None = None, is_over: IsOver | None = None) -> list[Verdict]:
        """Wait for the batch, and return its verdicts.

        `on_some` gets the verdicts on items that have ended a few times a second, while others of the batch
        that run at the same time go on. `is_over` gets all that were run, in order, and is asked before
        another process may take over: once it returns True, the rest is not run.
        """
        verdicts: list[Verdict] = []
        self._on_some = on_some
        while self._count:
            round_ = self._round()
            verdicts += round_
            self._base += len(round_)
            over = is_over is not None and is_over(round_)
            failed = self._stop_on_failure and any(v.failed or v.status is not Status.DONE for v in round_)
            if over or failed or self._stopped:
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
        """Start no further items; the running one gets `grace` seconds. Any thread can call it.

        After that it is killed. Its verdict, and that of all unstarted items, is NOT_RUN.
        """
        self._stop_at = time.monotonic() + grace
        self._stopped = True
        if not self._closed:
            self._numbers[STOP] = 1

    def _gives_up(self) -> bool:
        return self._stopping() or (self._stop_at is not None and time.monotonic() >= self._stop_at)

    def _next_round(self) -> None:
        """Send as many of the items that are left as fit in one round, unless all is to stop."""
        first, items = self._base, self._batch
        sizes = items.sizes if isinstance(items, Columns) else None
        self._count = 0
        if first >= len(items) or self._stopped or not self._has_runner():
            return
        most = 1 if self._alone else _MOST_ITEMS
        self._alone = max(0, self._alone - 1)
        if sizes is None:
            sizes = [len(item) for item in items[first : first + most]]
        else:
            sizes = sizes[first : first + most]
        fits = sum(sizes) <= ROUND
        self._count = (
            len(sizes) if fits else max(1, bisect.bisect_right([*itertools.accumulate(sizes)], ROUND))
        )
        end = first + self._count
        sent = put_items(self._items, items[first:end])
        numbers = self._numbers
        numbers[END] = numbers[NEXT] = numbers[LEAVES] = numbers[STOP] = numbers[AT_ONCE] = numbers[STEPS] = 0
        numbers[CURSOR] = -1
        if self._stopped:
            # Said by another thread while this one wrote here.
            numbers[STOP] = 1
        self._round_number += 1
        self._worker.command(sent, self._round_number, self._stop_on_failure)

    def _has_runner(self) -> bool:
        """Have a runner; return False if all is to stop before there is one."""
        try:
            if not self._worker.ready:
                self._worker.recover()
        except SandboxError:
            if self._gives_up():
                return False
            raise
        return True

    def _round(self) -> list[Verdict]:
        """Wait for a round; return the verdicts on the items that it came to."""
        self._told.clear()
        self._tell_at = time.monotonic() + _TELL
        death = self._wait()
        numbers = self._numbers
        if numbers[AT_ONCE]:
            return self._round_at_once(death)
        reading = read_in_order(numbers, self._records, self._count, died=death is not None)
        verdicts, at, recorded = reading.verdicts, reading.at, reading.recorded
        self._give_back(numbers[END])
        if reading.corrupt:
            return self._without(verdicts[: recorded + 1])
        progress = max(reading.done, recorded + 1)
        if death is not None and at >= 0 and recorded < at:
            verdicts[at] = self._blame(death)
            progress = at + 1
        self._note_progress(progress)
        return verdicts[:progress]

    def _note_progress(self, progress: int) -> None:
        """Notice when processes end again and again before they run anything."""
        self._barren = 0 if progress or self._stopped else self._barren + 1
        if self._barren == _MOST_BARREN:
            # Something is wrong with the processes that are copied.
            self._worker.give_up()
        elif self._barren == 2 * _MOST_BARREN:
            self._barren = 0
            raise SandboxError("no process can run items: each one ends before its first item")

    def _round_at_once(self, death: Death | None) -> list[Verdict]:
        """Return the verdicts on the items that a round has started, which ran at the same time."""
        numbers, count = self._numbers, self._count
        at, end, started = numbers[CURSOR], numbers[END], numbers[NEXT]
        try:
            if not 0 <= started <= count or not LEFT <= at < count:
                raise Corrupt("the control page is not valid")
            verdicts = read_ended(numbers, self._records, count)
        except Corrupt:
            self._give_back(end)
            return self._without([])
        self._give_back(end)
        flying = [index for index in range(started) if index not in verdicts]
        if death is not None and flying:
            # A thread may have done it while the step of another item ran.
            certain = at in flying and (len(flying) == 1 or not numbers[THREADS])
            culprit = at if certain else flying[0] if len(flying) == 1 and at != LEFT else None
            verdict = self._blame(death)
            if culprit is not None:
                verdicts[culprit] = verdict
            elif verdict.status is not Status.NOT_RUN:
                # Nobody knows which one it was. They will come again, each alone.
                self._alone = max(self._alone, len(flying))
        self._note_progress(started)
        return [verdicts.get(index, NOT_RUN) for index in range(started)]

    def _tell(self, now: float) -> None:
        """Tell which items have ended meanwhile."""
        self._tell_at = now + _TELL
        if self._on_some is None or not self._numbers[AT_ONCE]:
            return
        try:
            verdicts = read_ended(self._numbers, self._records, self._count)
        except Corrupt:
            # To be seen when the round is over.
            return
        some = [(self._base + i, verdict) for i, verdict in verdicts.items() if i not in self._told]
        self._told.update(verdicts)
        if some:
            self._on_some(some)

    def _without(self, verdicts: list[Verdict]) -> list[Verdict]:
        """Return verdicts on a whole round when nothing is known of all but these.

        One item has overwritten the memory. If there were others, it will be found when it comes again,
        because each is alone then; nobody is blamed before.
        """
        self._worker.give_up()
        if self._count == 1:
            return [Verdict(Status.CRASH, None, WORKER_CRASHED, "the item overwrote the sandbox's memory")]
        self._alone = _ALONE
        return verdicts + [NOT_RUN] * (self._count - len(verdicts))

    def _give_back(self, written: int) -> None:
        """Give back memory after an unusually large round."""
        if written > ROUND:
            self._records.free(ROUND)
        self._items.free(2 * ROUND)

    def _blame(self, death: Death) -> Verdict:
        elapsed = time.monotonic() - self._seen_at
        status = self._status
        return blame(
            death, status, self._worker.take_stack(), deadline=self._options.deadline, elapsed=elapsed
        )

    # -- waiting --------------------------------------------------------------------------------

    def _wait(self) -> Death | None:
        """Wait until the round is over: None, or the process has died: why."""
        deadline, numbers, worker, number = (
            self._options.deadline, self._numbers, self._worker, self._round_number,
        )  # fmt: skip
        seen, self._seen_at = (-1, 0), time.monotonic()
        # A round of few items is often over before this thread would have been put to sleep and woken again.
        spin = _SPIN if self._count <= _FEW else 0.0
        while numbers[OVER] != number and time.monotonic() - self._seen_at < spin:
            _yield()
        look = _LOOK if deadline is None else min(_LOOK, deadline * _SHARE)
        why, killed_at = Death.OWN, 0.0
        while True:
            over = numbers[OVER] == number
            if over and why is Death.OWN:
                self._finish_round()
                return None
            kind, status = worker.notice(look)
            if kind == child.DIED:
                if numbers[OVER] == number and why is Death.OWN:
                    return None
                self._status = status
                self.deaths += numbers[CURSOR] != -1
                return why
            now = time.monotonic()
            if why is not Death.OWN:
                if now - killed_at > ANSWER:
                    worker.give_up()
                    self._status = signal.SIGKILL
                    return why
                continue
            if not worker.dying:
                why = self._reason_to_kill(seen, now)
            if why is not Death.OWN:
                killed_at = now
                worker.kill(stack=why is Death.DEADLINE)
                continue
            if (numbers[CURSOR], numbers[STEPS]) != seen:
                # Looked at here, so that the items need no clock.
                seen, self._seen_at = (numbers[CURSOR], numbers[STEPS]), now
            if now >= self._tell_at:
                self._tell(now)

    def _reason_to_kill(self, seen: tuple[int, int], now: float) -> Death:
        """Return why the runner is to be killed, OWN if it is not."""
        deadline = self._options.deadline
        if self._stop_at is not None and now >= self._stop_at:
            return Death.STOP
        at = self._numbers[CURSOR]
        if (at, self._numbers[STEPS]) != seen:
            return Death.OWN
        if at == -1:
            return Death.SILENT if now - self._seen_at > ANSWER else Death.OWN
        late = deadline is not None and now - self._seen_at > deadline + (_CANCEL if at < 0 else 0.0)
        return Death.DEADLINE if late else Death.OWN

    def _finish_round(self) -> None:
        """Take what was printed in the round, and note whether its runner leaves."""
        if self._numbers[LEAVES]:
            self._worker.leave()
        self._worker.notice(0.0)

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
        self._memory.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SandboxError("this sandbox is closed")


def _page_up(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _never() -> bool:
    return False


def to_stderr(text: bytes) -> None:
    """Write what was printed in a sandbox to standard error."""
    sys.stderr.write(text.decode("utf-8", "backslashreplace"))
