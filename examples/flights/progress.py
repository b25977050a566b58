"""Progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

#: Lines a step writes where there is no terminal, its last one included.
_LINES = 4


class Step:
    """One step of the job, of a known size. A context manager; says how long it took at its end."""

    def __init__(self, console: Console, name: str, total: int) -> None:
        self._console = console
        self._name = name
        self._total = total
        self._done = 0
        self._written = 0
        self._started = 0.0
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description:<28}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(name, total=total)

    def reach(self, done: int) -> None:
        """Say that `done` are done by now."""
        self._done = done
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
            return
        quarter = done * _LINES // self._total if self._total else _LINES
        if self._written < quarter < _LINES:
            self._written = quarter
            self._console.print(f"{self._name}: {done:,} of {self._total:,}")

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        took = time.perf_counter() - self._started
        if self._bar is not None:
            self._bar.stop()
        if error is None:
            rate = self._done / took if took else 0.0
            self._console.print(f"{self._name}: {self._done:,} in {took:.1f} s ({rate:,.0f}/s)")
