"""The processes of a sandbox from the parent's side: starts, monitors, kills and replaces them."""

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
from lazaretto.isolation import child
from lazaretto.isolation.memory import Segment, above_streams, create_file
from lazaretto.isolation.verdict import Death, SandboxOptions, blame
from lazaretto.model.failure import HANDLER_TIMEOUT, WORKER_CRASHED, Failure
from lazaretto.tools.signals import ENDING
from lazaretto.tools.surroundings import children_are_forgotten

CAN_FORK = hasattr(os, "fork") and hasattr(os, "memfd_create") and sys.platform.startswith("linux")
#: How long a process that is to be killed for its deadline gets to write its stack, in seconds: on a busy
#: machine it waits for its turn.
_STACK_WAIT = 1.0
_LONGEST_STACK = 65_536
#: How long the template gets to tell of a runner's death, and a fork or a runner to answer, in seconds.
#: One that was stopped never does.
_BURIAL = 2.0
ANSWER = 10.0
#: How often it is looked meanwhile, in seconds.
_SOON = 0.005
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
            ends += map(above_streams, os.pipe())
    except OSError as error:
        for fd in ends:
            os.close(fd)
        raise SandboxError(f"no process can be started: {error}") from error
    return ends


def _parent_of(pid: int) -> int:
    """Return the parent of a process, 0 if it is gone. Raises OSError if that cannot be looked up now."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
        return 0


def _status_of_dead(pid: int | None) -> int:
    """Return the wait status of a process that its parent has not asked for, SIGKILL if it is not known."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().split()[-1])
    except (OSError, ValueError, IndexError):
        return signal.SIGKILL


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
    """A guard, a template and its runner, or a guard and a runner. `on_output` gets what they print.

    `setup`: a file with what the template runs. `segments`: control page, items, records. `stopping`:
    whether not to wait for a start any more. Raises SandboxSetupError, SandboxError.
    """

    def __init__(
        self,
        options: SandboxOptions,
        setup: int,
        segments: Sequence[Segment],
        on_output: Callable[[bytes], object],
        stopping: Callable[[], bool],
    ) -> None:
        self._options = options
        self._setup = setup
        self._segments = segments
        self._records = segments[-1]
        self._on_output = on_output
        self._stopping = stopping
        self._mark = uuid.uuid4().hex
        self._stack = create_file()
        self._process: subprocess.Popen[bytes] | None = None
        self._template: int | None = None
        self._runner: int | None = None
        self._pidfd: int | None = None
        self._gone = False
        #: Whether processes may be left that no template ends.
        self._unswept = False
        self._dead_since: float | None = None
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

    def command(self, size: int, number: int, stop_on_failure: bool) -> None:
        """Have the runner run a round: so many bytes of items."""
        words = child.COMMAND.pack(self._runner, size, number, stop_on_failure)
        # Should it be dead already, waiting for its answer tells how.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, words)

    def notice(self, seconds: float) -> tuple[bytes, int]:
        """Wait; return the template's next notice, b"" for anything else that may have happened.

        That the template is dead, or does not tell of the death of its runner, is a death too.
        """
        if self._dead_since is not None:
            seconds = min(seconds, _SOON)
        ready = [fd for fd, _ in self._poll.poll(seconds * 1000)]
        if self._output in ready:
            self._take_output()
        if self._wakes in ready and not os.read(self._wakes, 65_536):
            self._poll.unregister(self._wakes)
        if self._pidfd in ready:
            self._poll.unregister(self._pidfd)
            self._dead_since = time.monotonic()
        if self._notices in ready:
            words = os.read(self._notices, child.NOTICE.size)
            if len(words) == child.NOTICE.size:
                kind, number = child.NOTICE.unpack(words)
                return self._heed(kind, number)
            # Nobody is left who could say more; what is shorter is none of ours.
            self._poll.unregister(self._notices)
        return self._look_after() if seconds else (b"", 0)

    def _take_output(self) -> None:
        with contextlib.suppress(BlockingIOError):
            text = os.read(self._output, 65_536)
            if text:
                self._on_output(text)
            else:
                self._poll.unregister(self._output)

    def _heed(self, kind: bytes, number: int) -> tuple[bytes, int]:
        if kind == child.BORN:
            # The first to say so is the template: nothing else runs there yet.
            self._template = self._template or number
        elif kind == child.READY:
            self._adopt(number)
        elif kind == child.DIED:
            self._forget()
        return kind, number

    def _look_after(self) -> tuple[bytes, int]:
        """Return a death that the template does not tell of."""
        assert self._process is not None
        if self._pidfd is None:
            # Nobody but the guard sees how the runner ends, and an item may have stopped it.
            self._process.send_signal(signal.SIGCONT)
        code = self._process.poll()
        if code is not None:
            # Where children are forgotten, nobody knows how this one ended: not well, or it would be here.
            status = signal.SIGKILL if children_are_forgotten() else -code if code < 0 else code << 8
            # Where the system does not end a runner with its guard, it would go on.
            with contextlib.suppress(OSError):
                self._signal(signal.SIGKILL)
        elif self._dead_since is not None and time.monotonic() - self._dead_since > _BURIAL:
            status = _status_of_dead(self._runner)
        else:
            return b"", 0
        self.give_up()
        return child.DIED, status

    def _adopt(self, number: int) -> None:
        """Have a new runner."""
        self._forget()
        pid, self._forks = abs(number), number > 0
        try:
            ours = self._is_ours(pid)
        except OSError:
            # As when no descriptor is left to look with. It will not introduce itself again.
            self.give_up()
            raise
        if not ours:
            # It has died since, or somebody else has said that: never kill a stranger.
            return
        self._runner, self.ready = pid, True
        with contextlib.suppress(AttributeError, OSError):
            self._pidfd = os.pidfd_open(pid)
            self._poll.register(self._pidfd, select.POLLIN)

    def _is_ours(self, pid: int) -> bool:
        # Looked up in any case: without a descriptor for that there is none to notice its death with.
        return self._template in (pid, _parent_of(pid))

    def _forget(self) -> None:
        """Have no runner any more."""
        if self._pidfd is not None:
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._pidfd)
            os.close(self._pidfd)
        self._runner = self._pidfd = self._dead_since = None
        self.ready = False

    def give_up(self) -> None:
        """Have all processes replaced before the next command: these are not to be trusted."""
        self._gone, self.ready = True, False

    def leave(self) -> None:
        """Expect the runner to leave by itself."""
        self.ready = False

    @property
    def dying(self) -> bool:
        """Return whether the runner is dead, and the template has not told yet how it died."""
        return self._dead_since is not None

    def kill(self, *, stack: bool) -> None:
        """Kill the runner, after it has written its stack if that is asked for."""
        with contextlib.suppress(ProcessLookupError):
            if stack:
                self._signal(signal.SIGUSR1)
                end, size = time.monotonic() + _STACK_WAIT, 0
                # Written in small pieces: whole once it no longer grows.
                while time.monotonic() < end:
                    time.sleep(0.005)
                    now = os.fstat(self._stack).st_size
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
        fd = self._stack
        text = os.pread(fd, min(os.fstat(fd).st_size, _LONGEST_STACK), 0)
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        return text.decode("utf-8", "replace").replace("\0", "") or None

    # -- starting -------------------------------------------------------------------------------

    def _launch(self) -> None:
        """Start the processes and wait until they are ready."""
        options = self._options
        command_read, self._commands, *answers = _pipes(4)
        self._notices, notice_write, self._wakes, wake_write, self._output, output_write = answers
        os.set_blocking(self._output, False)
        self._gone, self._template = False, None
        self._poll = select.poll()
        for fd in (self._notices, self._wakes, self._output):
            self._poll.register(fd, select.POLLIN)
        control, items, records = (segment.fd for segment in self._segments)
        start = child.Start(
            parent=os.getpid(),
            command_fd=command_read,
            notice_fd=notice_write,
            wake_fd=wake_write,
            control_fd=control,
            setup_fd=self._setup,
            items_fd=items,
            records_fd=records,
            stack_fd=self._stack,
            memory=options.memory,
            deadline=options.deadline,
            max_result=options.max_result,
            refork_every=options.refork_every,
            fork=CAN_FORK and options.mode != "spawn",
        )
        arguments = (msgspec.json.encode(words).decode() for words in (start, sys.path))
        words = [sys.executable, "-u", "-c", _PROGRAM, *arguments]
        pipes = (command_read, notice_write, wake_write)
        descriptors = (*pipes, control, self._setup, items, records, self._stack)
        environment = {**_ONE_THREAD, **os.environ, _MARK: self._mark}
        try:
            self._process = _start_process(words, descriptors, output_write, environment)
        except BaseException as error:
            for fd in (self._commands, self._notices, self._wakes, self._output):
                os.close(fd)
            if isinstance(error, OSError | RuntimeError):
                raise SandboxError(f"no process can be started: {error}") from error
            raise
        finally:
            for fd in (*pipes, output_write):
                os.close(fd)
        self._await_ready(time.monotonic() + options.setup_timeout)

    def _await_ready(self, end: float) -> None:
        while True:
            kind, number = self.notice(min(0.05, max(0.0, end - time.monotonic())))
            if self.ready:
                return
            if kind == child.FAILED:
                failure = self._failure(number)
                text = f"the setup failed: {failure.type}: {failure.message}"
                raise SandboxSetupError(text, failure.type, failure.stack)
            if kind == child.DIED and self._gone:
                stack = self.take_stack()
                how = blame(Death.OWN, number, stack, deadline=None, elapsed=0.0).error_message
                raise SandboxSetupError(f"the setup ended its process: {how}", WORKER_CRASHED, stack)
            self._refuse_stopped()
            if time.monotonic() >= end:
                timeout = self._options.setup_timeout
                raise SandboxSetupError(f"the setup took longer than {timeout:g} s", HANDLER_TIMEOUT)

    def _refuse_stopped(self) -> None:
        if self._stopping():
            raise SandboxError("stopped before the process was ready")

    def _failure(self, size: int) -> Failure:
        try:
            return msgspec.msgpack.decode(self._records.get(0, size), type=Failure)
        except msgspec.MsgspecError as error:
            return Failure(WORKER_CRASHED, f"its report cannot be read: {error}")

    def recover(self) -> None:
        """Have a runner again after one has died or left."""
        if not self._gone and self._forks:
            # The template is alive, and forks the next one; or an item has taken it along, or stopped it.
            end = time.monotonic() + ANSWER
            while not self.ready and not self._gone and time.monotonic() < end:
                self._refuse_stopped()
                self.notice(0.05)
            if self.ready:
                return
        self.give_up()
        for attempt in range(1, _MOST_STARTS + 1):
            self._end()
            try:
                self._launch()
                return
            except SandboxSetupError as error:
                if attempt == _MOST_STARTS:
                    raise SandboxError(f"further processes cannot be started: {error}") from error

    # -- ending ---------------------------------------------------------------------------------

    def _end(self) -> None:
        if self._process is not None:
            self._end_processes(self._process)
        if self._unswept:
            # Tried again by the next end, should it not be possible now.
            with contextlib.suppress(OSError):
                _kill_marked(f"{_MARK}={self._mark}".encode())
                self._unswept = False

    def _end_processes(self, process: subprocess.Popen[bytes]) -> None:
        self._unswept = self._unswept or self._gone or not self.forks
        # Seen by the runner when it asks for more, and by the template when the runner is dead.
        os.close(self._commands)
        with contextlib.suppress(OSError):
            self._signal(signal.SIGKILL)
        if self._gone:
            process.kill()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._unswept = True
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ANSWER)
        self._forget()
        for fd in (self._notices, self._wakes, self._output):
            os.close(fd)
        self._process = None

    def close(self) -> None:
        """End the processes, and everything they have started."""
        self._end()
        os.close(self._stack)
