"""Processes that do the same work at the same time, each fresh, and what they return."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

_READY_SECONDS = 120.0
_STOP_SECONDS = 45.0
_CONTEXT = multiprocessing.get_context("spawn")


class Crew:
    """Some processes. The work of each calls the function that it gets first when it is ready."""

    def __init__(self, count: int, work: Callable[..., Any], *arguments: object) -> None:
        self._ready, self._go = _CONTEXT.Semaphore(0), _CONTEXT.Event()
        self._members = []
        for _ in range(count):
            here, there = _CONTEXT.Pipe(duplex=False)
            given = (there, self._ready, self._go, work, arguments)
            process = _CONTEXT.Process(target=_be_member, args=given)
            process.start()
            there.close()
            self._members.append((process, here))

    def start(self) -> None:
        """Let all begin, when all are ready."""
        for _ in self._members:
            if not self._ready.acquire(timeout=_READY_SECONDS):
                raise RuntimeError("a process did not get ready")
        self._go.set()

    def answers(self, timeout: float) -> list[Any]:
        """Return what each returned. Raises RuntimeError with the error of one that failed."""
        return [self._answer(here, timeout) for _, here in self._members]

    def _answer(self, here: Connection, timeout: float) -> Any:
        if not wait([here], timeout):
            raise RuntimeError(f"gave up after {timeout:.0f} s")
        try:
            error, answer = here.recv()
        except EOFError:
            raise RuntimeError("a process ended without an answer") from None
        here.close()
        if error:
            raise RuntimeError(error)
        return answer

    def end(self) -> None:
        """Have all ended: asked first, so that they stop what they started, then with their sessions."""
        for process, here in self._members:
            # One that has answered ends by itself.
            if not here.closed:
                process.terminate()
                here.close()
        for process, _ in self._members:
            process.join(_STOP_SECONDS)
            if process.is_alive() and process.pid is not None:
                os.killpg(process.pid, signal.SIGKILL)
                process.join()


@contextlib.contextmanager
def crew(count: int, work: Callable[..., Any], *arguments: object) -> Iterator[Crew]:
    """Run some processes during a block: `work(ready, *arguments)` in each."""
    members = Crew(count, work, *arguments)
    try:
        yield members
    finally:
        members.end()


def in_process(work: Callable[..., Any], *arguments: object, timeout: float) -> Any:
    """Return what `work(ready, *arguments)` returns in a fresh process."""
    with crew(1, work, *arguments) as members:
        members.start()
        return members.answers(timeout)[0]


def _be_member(
    there: Connection, ready: Any, go: Any, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    # A session of its own: Ctrl-C reaches the first process alone, which then ends the others in good order.
    os.setsid()
    # An error comes with the answer. What else is printed, such as failures that are wanted, is for nobody.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGTERM, _stop)

    def begin() -> None:
        ready.release()
        go.wait()

    try:
        there.send(("", work(begin, *arguments)))
    except Exception:
        there.send(("\n".join(traceback.format_exc().splitlines()[-12:]), None))
        ready.release()


def _stop(number: int, _frame: FrameType | None) -> None:
    # As an exception, so that servers are stopped on the way out.
    raise SystemExit(128 + number)
