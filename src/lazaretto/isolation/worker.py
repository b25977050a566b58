"""The processes of a sandbox as the parent sees them: started, listened to, killed, replaced."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from lazaretto.errors import SandboxError, SandboxSetupError
from lazaretto.failure import HANDLER_TIMEOUT, WORKER_CRASHED, Failure
from lazaretto.isolation import child
from lazaretto.isolation.memory import PAGE, Segment
from lazaretto.isolation.options import SandboxOptions
from lazaretto.isolation.verdict import Death, blame
from lazaretto.signals import ENDING

CAN_FORK = hasattr(os, "fork") and hasattr(os, "memfd_create") and sys.platform.startswith("linux")
#: How long a process that is to be killed for its deadline gets to write its stack, in seconds.
_STACK_WAIT = 0.2
_LONGEST_STACK = 65_536
#: How often in a row the processes may fail to start before it is given up.
_MOST_STARTS = 3
#: What the new interpreter is told: to look for modules where this one does, and to become a template.
_PROGRAM = (
    f"import json, sys; sys.path[:] = json.loads(sys.argv[2]); from {child.__name__} import main; main()"
)
#: The name in the environment that tells a sandbox's processes, and all that they start.
_MARK = "LAZARETTO_SANDBOX"

#: Numeric libraries start threads when they are imported, and a process with threads must not fork.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

_starter: tuple[int, ThreadPoolExecutor] | None = None


def _start_process(
    words: Sequence[str], descriptors: Sequence[int], output: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process from a thread that lives as long as this one.

    The kernel ends a child that wants to die with its parent when the thread ends that started it.
    """
    global _starter
    if _starter is None or _starter[0] != os.getpid():
        _starter = (os.getpid(), ThreadPoolExecutor(1, "lazaretto-sandbox-starter", _hold_signals_back))
    started = _starter[1].submit(
        subprocess.Popen,
        words,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=descriptors,
        close_fds=True,
        env=environment,
    )
    return started.result()


def _hold_signals_back() -> None:
    """Have the processes that this thread starts born with them held back: they ignore them a moment later.

    In this process another thread goes on to get them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def _pipes(count: int) -> list[int]:
    """Return the ends of so many pipes, or none if there is no room for all."""
    ends: list[int] = []
    try:
        for _ in range(count):
            ends += os.pipe()
    except OSError as error:
        for fd in ends:
            os.close(fd)
        raise SandboxError(f"no process can be started: {error}") from error
    return ends


def _kill_marked(mark: bytes) -> None:
    """Kill every process that has a mark in its environment, which is handed down from parent to child."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, AttributeError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                pidfd = os.pidfd_open(int(entry.name))
                try:
                    # Looked at again: the number may have become another's in between.
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)


class Worker:
    """A guard, a template and its runner, or a runner without one. `on_output` gets what they print.

    `segments`: control page, setup, items, records. `stopping`: whether not to wait for a start any more.
    Raises SandboxSetupError, SandboxError.
    """

    def __init__(
        self,
        options: SandboxOptions,
        segments: Sequence[Segment],
        on_output: Callable[[bytes], object],
        stopping: Callable[[], bool],
    ) -> None:
        self._options = options
        self._segments = segments
        self._records = segments[-1]
        self._on_output = on_output
        self._stopping = stopping
        self._mark = uuid.uuid4().hex
        self._stack = Segment.create(PAGE)
        os.ftruncate(self._stack.fd, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._runner: int | None = None
        self._pidfd: int | None = None
        self._gone = False
        #: Whether there is a runner, as far as is known.
        self.ready = False
        self._forks = True
        try:
            self._launch()
        except BaseException:
            self.close()
            raise

    @property
    def forks(self) -> bool:
        """Return whether a dead runner is replaced by a fork."""
        return self._forks

    # -- talking --------------------------------------------------------------------------------

    def command(self, words: bytes) -> None:
        """Send a command to the runner."""
        # Should it be dead already, waiting for its answer tells how.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, words)

    def is_ready(self) -> bool:
        """Return whether there is a notice, without waiting for one."""
        return bool(self._poll.poll(0))

    def notice(self, seconds: float) -> tuple[bytes, int]:
        """Return the next notice, b"" when none came in time. A dead template is a death too."""
        try:
            ready, _, _ = select.select([self._notices, self._output], [], [], seconds)
        except InterruptedError:
            return b"", 0
        if self._output in ready:
            with contextlib.suppress(BlockingIOError):
                self._on_output(os.read(self._output, 65_536))
        if self._notices in ready:
            words = os.read(self._notices, child.NOTICE.size)
            if len(words) == child.NOTICE.size:
                kind, number = child.NOTICE.unpack(words)
                self.ready = self.ready and kind != child.DIED
                return kind, number
        if not ready or self._notices in ready:
            assert self._process is not None
            code = self._process.poll()
            if code is not None:
                self._gone, self.ready = True, False
                return child.DIED, -code if code < 0 else code << 8
        return b"", 0

    def kill(self, *, stack: bool) -> None:
        """Kill the runner, after it has written its stack if that is asked for."""
        with contextlib.suppress(ProcessLookupError):
            if stack:
                self._signal(signal.SIGUSR1)
                end, size = time.monotonic() + _STACK_WAIT, 0
                # Written in small pieces: whole once it no longer grows.
                while time.monotonic() < end:
                    time.sleep(0.005)
                    now = os.fstat(self._stack.fd).st_size
                    if now and now == size:
                        break
                    size = now
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd is not None:
            signal.pidfd_send_signal(self._pidfd, number)
        elif self._runner is not None:
            os.kill(self._runner, number)

    def take_stack(self) -> str | None:
        """Return what the fault handler has written since it was last asked for."""
        fd = self._stack.fd
        text = os.pread(fd, min(os.fstat(fd).st_size, _LONGEST_STACK), 0)
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        return text.decode("utf-8", "replace") or None

    # -- starting -------------------------------------------------------------------------------

    def _launch(self) -> None:
        """Start the processes and wait until they are ready."""
        options = self._options
        command_read, self._commands, self._notices, notice_write, self._output, output_write = _pipes(3)
        os.set_blocking(self._output, False)
        self._gone = False
        self._poll = select.poll()
        for fd in (self._notices, self._output):
            self._poll.register(fd, select.POLLIN)
        control, setup, items, records = (segment.fd for segment in self._segments)
        start = child.Start(
            parent=os.getpid(),
            command_fd=command_read,
            notice_fd=notice_write,
            control_fd=control,
            setup_fd=setup,
            items_fd=items,
            records_fd=records,
            stack_fd=self._stack.fd,
            memory=options.memory,
            max_result=options.max_result,
            refork_every=options.refork_every,
            guard=CAN_FORK,
            fork=CAN_FORK and options.mode != "spawn",
        )
        arguments = (msgspec.json.encode(words).decode() for words in (start, sys.path))
        words = [sys.executable, "-u", "-c", _PROGRAM, *arguments]
        descriptors = (command_read, notice_write, control, setup, items, records, self._stack.fd)
        environment = {**_ONE_THREAD, **os.environ, _MARK: self._mark}
        try:
            self._process = _start_process(words, descriptors, output_write, environment)
        except BaseException as error:
            for fd in (self._commands, self._notices, self._output):
                os.close(fd)
            if isinstance(error, OSError | RuntimeError):
                raise SandboxError(f"no process can be started: {error}") from error
            raise
        finally:
            for fd in (command_read, notice_write, output_write):
                os.close(fd)
        self._await_ready(time.monotonic() + options.setup_timeout)

    def _await_ready(self, end: float) -> None:
        while True:
            kind, number = self.notice(min(0.05, max(0.0, end - time.monotonic())))
            if kind == child.READY:
                self._runner, self._forks = abs(number), number > 0
                self._close_pidfd()
                with contextlib.suppress(AttributeError, OSError):
                    self._pidfd = os.pidfd_open(self._runner)
                self.ready = True
                return
            if kind == child.FAILED:
                self._records.reach(number)
                failure = msgspec.msgpack.decode(self._records.get(0, number), type=Failure)
                text = f"the setup failed: {failure.type}: {failure.message}"
                raise SandboxSetupError(text, failure.type, failure.stack)
            if kind == child.DIED:
                stack = self.take_stack()
                how = blame(Death.OWN, number, stack, deadline=None, elapsed=0.0).error_message
                raise SandboxSetupError(f"the setup ended its process: {how}", WORKER_CRASHED, stack)
            if self._stopping():
                raise SandboxError("it was stopped before its process was ready")
            if time.monotonic() >= end:
                timeout = self._options.setup_timeout
                raise SandboxSetupError(f"the setup took longer than {timeout:g} s", HANDLER_TIMEOUT)

    def await_replacement(self) -> None:
        """Wait until a runner that has left is replaced."""
        while not self._gone:
            kind, _ = self.notice(0.05)
            if kind == child.DIED:
                self.recover()
                return

    def recover(self) -> None:
        """Have a runner again after one has died."""
        if not self._gone:
            # The template is alive, and has forked the next one; or an item has taken it along.
            with contextlib.suppress(SandboxSetupError):
                self._await_ready(time.monotonic() + self._options.setup_timeout)
                return
        for attempt in range(1, _MOST_STARTS + 1):
            self._end()
            try:
                self._launch()
                return
            except SandboxSetupError as error:
                if attempt == _MOST_STARTS:
                    raise SandboxError(f"no process can be started any more: {error}") from error

    # -- ending ---------------------------------------------------------------------------------

    def _end(self) -> None:
        if self._process is None:
            return
        alone = self._gone or not self.forks
        # Seen by the runner when it asks for more, and by the template when the runner is dead.
        os.close(self._commands)
        with contextlib.suppress(OSError):
            self._signal(signal.SIGKILL)
        self._close_pidfd()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            alone = True
        os.close(self._notices)
        os.close(self._output)
        if alone:
            # There was no template to end what the runner has left behind.
            _kill_marked(f"{_MARK}={self._mark}".encode())
        self._process = self._runner = None

    def _close_pidfd(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def close(self) -> None:
        """End the processes, and everything they have started."""
        self._end()
        self._stack.close()
