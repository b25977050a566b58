"""Processes of tests that begin warm: each is forked from one that has imported the package and runs nothing.

Hundreds of them are killed, and an interpreter of its own takes each longer to begin than to be killed.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Final, Self

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([
    "lazaretto.broker", "lazaretto.host.host",
    "lazaretto.store.postgres.store", "lazaretto.store.sqlite.store",
])  # fmt: skip


def _run(environment: dict[str, str], function: Callable[..., object], words: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    function(*words)


class Forked:
    """A process that runs a function and ends with it, or with the block that it is opened in."""

    def __init__(self, function: Callable[..., object], *words: Any) -> None:
        self._process: BaseProcess = _CONTEXT.Process(
            target=_run, args=(dict(os.environ), function, words), daemon=True
        )
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
