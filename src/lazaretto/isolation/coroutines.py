"""Runs several coroutines of a batch at the same time on one event loop, and knows whose step runs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Whose step runs, where it is no item's: the loop waits; a task runs whose item has ended.
WAITS, LEFT = -2, -3
#: How often it is looked what has ended and what does not end, in seconds.
_TICK = 0.1
#: How long an item has after its deadline to end as it was told, in seconds.
_STUBBORN = 0.5


class DeadlineExceeded(Exception):
    """A coroutine took longer than its deadline, and was cancelled."""


class _Flight:
    """An item at work."""

    __slots__ = ("index", "number", "since", "task")

    def __init__(self, number: int) -> None:
        #: Whose step it is if one of its tasks runs: LEFT once the item has ended.
        self.index = self.number = number
        self.since = time.monotonic()
        self.task: asyncio.Task[None] | None = None


#: The item that a task was started for.
_flight: contextvars.ContextVar[_Flight | None] = contextvars.ContextVar("lazaretto_item", default=None)


class _Steps(Coroutine[Any, Any, T]):
    """A coroutine that tells whose step runs."""

    def __init__(self, inner: Coroutine[Any, Any, T], flight: _Flight, crew: Crew[Any]) -> None:
        self._inner = inner
        self._flight = flight
        self._crew = crew

    def send(self, value: Any) -> Any:
        crew = self._crew
        before = crew.current
        crew.step(self._flight.index)
        try:
            return self._inner.send(value)
        finally:
            crew.step(before)

    def throw(self, *error: Any) -> Any:
        crew = self._crew
        before = crew.current
        crew.step(self._flight.index)
        try:
            return self._inner.throw(*error)
        finally:
            crew.step(before)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        # What asyncio and debuggers want to know of a coroutine: its name, its frame.
        return getattr(self._inner, name)


class Crew(Generic[T]):
    """Runs batches of coroutines, one batch at a time, on an event loop of its own that it keeps.

    `on_step` is called with the number of the item whose step begins, WAITS or LEFT when it is over.
    `deadline`: seconds for each item, after which it is cancelled; None for no limit.
    """

    def __init__(self, on_step: Callable[[int], None], deadline: float | None) -> None:
        self._on_step = on_step
        self._deadline = deadline
        self._runner = asyncio.Runner()
        self._flying: dict[int, _Flight] = {}
        self._stopped = False
        self.current = WAITS
        #: Whether a task is left that did not end when it was cancelled.
        self.stubborn = False

    def step(self, index: int) -> None:
        """Note whose step runs."""
        self.current = index
        self._on_step(index)

    def run(
        self,
        calls: Sequence[Callable[[], Awaitable[T]]],
        on_end: Callable[[int, T | None, BaseException | None], None],
        *,
        may_start: Callable[[int], bool],
        on_tick: Callable[[], Awaitable[None]],
        stops: Callable[[], bool] = lambda: False,
        at_once: int | None = None,
    ) -> None:
        """Run a batch until all that was started has ended.

        `on_end` gets what each returned or raised; DeadlineExceeded if it was cancelled. `may_start` tells
        whether an item may still be started. `on_tick` runs about ten times a second. Once `stops` returns
        True, all are cancelled, and of those `on_end` is not called. `at_once`: how many run together.
        """
        loop = self._runner.get_loop()
        loop.set_task_factory(self._make_task)
        self._on_end, self._stops, self._on_tick = on_end, stops, on_tick
        self._flying.clear()
        self._stopped = False
        self._ended = asyncio.Event()
        main = loop.create_task(self._main(calls, may_start, at_once or len(calls)))
        while True:
            try:
                loop.run_until_complete(main)
                return
            except (KeyboardInterrupt, SystemExit):
                # Raised by a task that an item has started; the item itself hears of it when it awaits it.
                if main.done():
                    raise

    def _make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        flight = _flight.get()
        return asyncio.Task(work if flight is None else _Steps(work, flight, self), loop=loop, **options)

    async def _main(
        self, calls: Sequence[Callable[[], Awaitable[T]]], may_start: Callable[[int], bool], most: int
    ) -> None:
        for number, call in enumerate(calls):
            while len(self._flying) >= most:
                await self._look()
            if self._stopped or not may_start(number):
                break
            self._start(number, call)
            # An item that does not wait has ended before the next one starts, and its time is its own.
            await asyncio.sleep(0)
        while self._flying:
            await self._look()

    def _start(self, number: int, call: Callable[[], Awaitable[T]]) -> None:
        flight = self._flying[number] = _Flight(number)
        context = contextvars.copy_context()
        context.run(_flight.set, flight)
        work = _Steps(self._one(flight, call), flight, self)
        flight.task = asyncio.Task(work, loop=self._runner.get_loop(), context=context)

    async def _one(self, flight: _Flight, call: Callable[[], Awaitable[T]]) -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            async with asyncio.timeout(self._deadline) as limit:
                result = await call()
        except GeneratorExit:
            raise
        except BaseException as caught:
            error = caught
            if isinstance(caught, TimeoutError) and limit.expired():
                error = self._exceeded()
                error.__cause__ = caught
        self._end(flight, result, error)

    def _exceeded(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"no answer within {self._deadline:g} s")

    def _end(self, flight: _Flight, result: T | None, error: BaseException | None) -> None:
        if self._flying.get(flight.number) is not flight:
            # It was not waited for any more.
            return
        del self._flying[flight.number]
        if not (self._stopped and isinstance(error, asyncio.CancelledError)):
            self._on_end(flight.number, result, error)
        flight.index = LEFT
        self._ended.set()

    async def _look(self) -> None:
        """Wait until something has ended, or for a moment; end what is to end."""
        self._ended.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICK):
                await self._ended.wait()
        await self._on_tick()
        if not self._stopped and self._stops():
            self._stopped, self._stopped_at = True, time.monotonic()
            for flight in self._flying.values():
                if flight.task is not None:
                    flight.task.cancel()
        now = time.monotonic()
        for flight in list(self._flying.values()):
            if self._stopped and now - self._stopped_at > _STUBBORN:
                self._leave(flight, asyncio.CancelledError())
            elif self._deadline is not None and now - flight.since > self._deadline + _STUBBORN:
                self._leave(flight, self._exceeded())

    def _leave(self, flight: _Flight, error: BaseException) -> None:
        self.stubborn = True
        self._end(flight, None, error)

    def close(self) -> None:
        """End the event loop, and the tasks that are left on it."""
        self._runner.close()
