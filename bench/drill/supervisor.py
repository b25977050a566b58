"""The supervisor of a drill: keeps one worker running, and kills it when the drill says so."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

#: A worker that ends so often before any task started is not a worker.
_FALSE_STARTS = 5
_TAIL = 600


class Supervisor:
    """Starts a worker, and starts it again whenever it ended. `exits` counts its ends but not the kills."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.exits = 0
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the worker, in a session of its own."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def tend(self, started: bool) -> None:
        """Start the worker again if it ended. `started`: whether any task has run yet.

        Raises RuntimeError with the end of its log if it ends again and again without a task.
        """
        if self._process is None or self._process.poll() is None:
            return
        self.exits += 1
        # Children that outlived it would go on working beside the next one.
        self._end()
        if not started and self.exits >= _FALSE_STARTS:
            tail = self._log.read_text(errors="replace").strip()[-_TAIL:]
            raise RuntimeError(f"the worker ended {self.exits} times before any task started: {tail}")
        self.start()

    def kill(self) -> None:
        """Kill the worker and all its processes at once, and start it again."""
        self._end()
        self.start()

    def stop(self) -> None:
        """Kill the worker and all its processes."""
        self._end()
        self._process = None

    def _end(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
