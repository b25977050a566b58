"""Processes of tests that begin warm: each is forked from one that has imported the package and runs nothing.

Tests kill hundreds of them and run thousands of commands: an interpreter of its own takes each ten times as
long to begin.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import pkgutil
import runpy
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import lazaretto.cli

_TESTS: Final = Path(__file__).parent
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([
    "lazaretto.broker.broker", "lazaretto.host.host", "lazaretto.servicebus.http",
    "lazaretto.servicebus.server",
    "lazaretto.store.postgres.store", "lazaretto.store.sqlite.store", "uvicorn", "uvloop",
    *(f"lazaretto.cli.{module.name}" for module in pkgutil.iter_modules(lazaretto.cli.__path__)),
])  # fmt: skip


#: The environment before any test has changed it.
_OURS: Final = dict(os.environ)


def _become(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


@functools.cache
def started_with() -> Mapping[str, str]:
    """Return the environment of the process that all are forked from, which is started if need be.

    What the first test that needs it has set is not in it: it would stay for all tests behind that.
    """
    now = dict(os.environ)
    _become(_OURS)
    try:
        forkserver.ensure_running()
    finally:
        _become(now)
    return _OURS


def _run(environment: dict[str, str], function: Callable[..., object], words: tuple[Any, ...]) -> None:
    _become(environment)
    function(*words)


class Forked:
    """A process that runs a function and ends with it, or with the block that it is opened in."""

    def __init__(
        self, function: Callable[..., object], *words: Any, environment: dict[str, str] | None = None
    ) -> None:
        started_with()
        given = dict(os.environ) if environment is None else environment
        self._process: BaseProcess = _CONTEXT.Process(target=_run, args=(given, function, words))
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended: 0, or the number of a signal with a minus; None while it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        """Kill it, unless it has ended, and wait until it is dead."""
        self._process.kill()
        self._process.join()

    def wait(self, seconds: float) -> int | None:
        """Wait until it has ended, but no longer than so many seconds; return how it ended."""
        self._process.join(seconds)
        return self._process.exitcode


# -- the program ---------------------------------------------------------------------------------


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a run of the program can be forked: not where Python has read another one."""
    before, now = (
        {name: value for name, value in each.items() if name.startswith(("LANG", "LC_", "PYTHON"))}
        for each in (started_with(), environment)
    )
    return before == now


def fork_program(
    arguments: Sequence[str], streams: Sequence[int | None], environment: Mapping[str, str]
) -> Forked:
    """Start a process that is `python -m lazaretto` with arguments.

    `streams`: descriptors that become its input, output and errors, and are closed here. None: as ours.
    """
    given = [None if fd is None else Connection(fd, writable=number > 0) for number, fd in enumerate(streams)]
    try:
        return Forked(_be_program, list(arguments), str(Path.cwd()), given, environment=dict(environment))
    finally:
        for one in given:
            if one is not None:
                one.close()


def _be_program(arguments: list[str], folder: str, streams: list[Connection | None]) -> None:
    for number, stream in enumerate(streams):
        if stream is not None:
            os.dup2(stream.fileno(), number)
            stream.close()
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering, closefd=False)  # noqa: SIM115 - they stay open
        for number, mode, buffering in ((0, "r", -1), (1, "w", -1), (2, "w", 1))
    )
    os.chdir(folder)
    # Nothing that only tests can import is found.
    sys.path[:] = [folder, *(each for each in sys.path if not Path(each).is_relative_to(_TESTS))]
    sys.argv = ["lazaretto", *arguments]
    try:
        runpy.run_module("lazaretto", run_name="__main__", alter_sys=True)
    finally:
        # A process that is forked so ends without them.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
