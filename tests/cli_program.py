"""Runs the real program on a store of its own, as a person or a script would."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import selectors
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from forked import Forked, can_fork, fork_program

import lazaretto
from lazaretto import Message, PoisonPolicy, QueueOptions

_LONGEST_RUN = 120


class Result(NamedTuple):
    """How a run ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Program:
    """The command `lazaretto`, with LAZARETTO_STORE set to `store`."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.environment = {**os.environ, "LAZARETTO_STORE": str(store), "COLUMNS": "100", "TERM": "xterm"}
        for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"):
            self.environment.pop(name, None)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a run whose streams are pipes unless `options` say otherwise."""
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = options.pop("command", None) or [sys.executable, "-m", "lazaretto", *arguments]
        return subprocess.Popen(command, env=self.environment, **{**streams, **options})

    def __call__(self, *arguments: str, stdin: str | bytes = b"") -> Result:
        """Run to the end."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        if can_fork(self.environment):
            code, out, err = _run_forked(arguments, given, self.environment)
        else:
            with self.start(*arguments) as process:
                out, err = process.communicate(given, timeout=_LONGEST_RUN)
            code = process.returncode
        return Result(code, out.decode(), err.decode())

    def ok(self, *arguments: str, stdin: str | bytes = b"") -> Result:
        """Run to the end; it must succeed and complain of nothing."""
        result = self(*arguments, stdin=stdin)
        assert (result.code, result.err) == (0, ""), result
        return result

    def fails(self, code: int, kind: str, *arguments: str, stdin: str | bytes = b"") -> str:
        """Run to the end; it must end with an exit code and one line that says error[kind]. Returns it.

        What `run` logs of failures before is left out.
        """
        result = self(*arguments, stdin=stdin)
        assert result.code == code, result
        lines = result.err.splitlines(keepends=True)
        assert lines and (len(lines) == 1 or arguments[0] == "run"), result
        assert lines[-1].startswith(f"error[{kind}]: "), result
        return lines[-1]

    def on_terminal(
        self, *arguments: str, typed: bytes = b"", command: list[str] | None = None
    ) -> tuple[int, str]:
        """Run on a terminal, with what a person types there; return exit code and what it showed.

        `command` is run instead of `lazaretto` with its arguments.
        """
        ours, theirs = pty.openpty()
        process: subprocess.Popen[bytes] | Forked
        if command is None and can_fork(self.environment):
            process = fork_program(arguments, [theirs, os.dup(theirs), os.dup(theirs)], self.environment)
        else:
            process = self.start(*arguments, stdin=theirs, stdout=theirs, stderr=theirs, command=command)
            os.close(theirs)
        os.write(ours, typed)
        shown = b""
        # A terminal whose last user has gone answers with an error instead of an end.
        with contextlib.suppress(OSError):
            while select.select([ours], [], [], _LONGEST_RUN)[0] and (read := os.read(ours, 65_536)):
                shown += read
        os.close(ours)
        code = process.wait(_LONGEST_RUN)
        assert code is not None, f"lazaretto {arguments} has not ended"
        return code, shown.decode()

    @contextlib.contextmanager
    def terminal(self, *arguments: str, columns: int | None = None) -> Iterator[Terminal]:
        """Start a run in the foreground of a terminal of its own, which is so wide."""
        ours, theirs = pty.openpty()
        if columns is not None:
            self.environment.pop("COLUMNS", None)
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = self.start(
            *arguments,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        terminal = Terminal(process, ours)
        try:
            yield terminal
        finally:
            process.kill()
            process.wait()
            os.close(ours)

    @contextlib.contextmanager
    def broker(self) -> Iterator[lazaretto.Broker]:
        """Open the same store in this process."""
        with lazaretto.connect(self.store) as broker:
            yield broker


def _run_forked(
    arguments: Sequence[str], stdin: bytes, environment: dict[str, str]
) -> tuple[int, bytes, bytes]:
    """Run the program in a process that begins warm; return its exit code and what it wrote."""
    (given, to), (source, written), (errors, complaints) = (os.pipe() for _ in range(3))
    with fork_program(arguments, (given, written, complaints), environment) as process:
        out, err = _communicate(to, stdin, [source, errors])
        code = process.wait(_LONGEST_RUN)
    assert code is not None, f"lazaretto {arguments} has not ended"
    return code, out, err


def _communicate(to: int, stdin: bytes, sources: Sequence[int]) -> tuple[bytes, ...]:
    """Write to a process and read what it writes until it has ended. Closes all of these descriptors."""
    read = {source: bytearray() for source in sources}
    left, end = memoryview(stdin), time.monotonic() + _LONGEST_RUN
    os.set_blocking(to, False)
    with selectors.DefaultSelector() as selector:
        for source in sources:
            selector.register(source, selectors.EVENT_READ)
        selector.register(to, selectors.EVENT_WRITE)
        while selector.get_map():
            ready = selector.select(end - time.monotonic())
            assert ready, f"it has not ended; it wrote {[bytes(one) for one in read.values()]}"
            for key, _ in ready:
                if key.fd == to:
                    try:
                        left = left[os.write(to, left) :]
                    except BrokenPipeError:
                        # A program that has ended reads no more.
                        left = left[:0]
                    done = not left
                else:
                    some = os.read(key.fd, 65_536)
                    read[key.fd] += some
                    done = not some
                if done:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    return tuple(bytes(one) for one in read.values())


class Terminal:
    """A terminal with a program in its foreground."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self._fd = fd
        self.shown = b""

    def type(self, keys: bytes) -> None:
        """Press keys; b"\\x03" is Control-C, which goes to every process in the foreground."""
        os.write(self._fd, keys)

    def signal(self, number: int) -> None:
        """Send a signal to every process in the foreground."""
        os.killpg(self.process.pid, number)

    def read(self, seconds: float = 0.05) -> bool:
        """Read what is shown now; return False once the program has ended."""
        # A terminal whose last user has gone answers with an error instead of an end.
        with contextlib.suppress(OSError):
            while select.select([self._fd], [], [], seconds)[0] and (read := os.read(self._fd, 65_536)):
                self.shown += read
        return self.process.poll() is None

    def wait(self, seconds: float = _LONGEST_RUN) -> int:
        """Wait for the program's end; return its exit code."""
        end = time.monotonic() + seconds
        while self.read():
            assert time.monotonic() < end, self.shown.decode()
        self.read(0.0)
        return self.process.returncode


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Do what Control-C does."""
    process.send_signal(signal.SIGINT)


def program_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Return a program that runs in a folder; its store there has the queue `q`."""
    monkeypatch.chdir(folder)
    program = Program(folder / "store.db")
    program.ok("queue", "create", "q")
    return program


def fill(broker: lazaretto.Broker, queue: str, bodies: list[bytes], **options: Any) -> list[int]:
    """Create a queue and send messages to it."""
    broker.create_queue(queue, QueueOptions(**options))
    with broker.sender(queue) as sender:
        return sender.send([Message(body) for body in bodies])


def set_aside(broker: lazaretto.Broker, queue: str, bodies: list[bytes]) -> None:
    """Create a queue and make every message of it a dead letter: bodies with "no" fail with KeyError."""

    def handle(message: lazaretto.ReceivedMessage) -> None:
        raise (KeyError if b"no" in message.body else ValueError)(message.body.decode("utf-8", "replace"))

    fill(broker, queue, bodies, policy=PoisonPolicy(receive_retry_count=1))
    broker.consume(queue, handle, stop_when_idle=True)
