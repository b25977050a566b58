"""Processes of tests that begin warm: each is forked from one that has imported the package and runs nothing.

Tests kill hundreds of them and run thousands of commands: an interpreter of its own takes each ten times as
long to begin.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import pkgutil
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Final, Self

import lazaretto.cli

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([
    "lazaretto.broker", "lazaretto.host.host",
    "lazaretto.store.postgres.store", "lazaretto.store.sqlite.store",
    *(f"lazaretto.cli.{module.name}" for module in pkgutil.iter_modules(lazaretto.cli.__path__)),
])  # fmt: skip


@functools.cache
def started_with() -> Mapping[str, str]:
    """Return the environment of the process that all are forked from, which is started if need be."""
    forkserver.ensure_running()
    return dict(os.environ)


def _run(environment: dict[str, str], function: Callable[..., object], words: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
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
