"""`consume` for asyncio: a thread that receives and settles, and a handler on the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from lazaretto.broker.broker import Broker
from lazaretto.broker.consume import ConsumeReport, OwnLoop, Stop, awaited


class _Left(BaseException):
    """Whoever awaited the consumer was cancelled: its handler was, too, and has not failed."""


class LoopCalls(OwnLoop):
    """Runs coroutines on an event loop for a consumer in another thread. `stop`: the caller's own."""

    works = True

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: Stop | None) -> None:
        super().__init__()
        self._loop = loop
        self._stop = stop
        self._left = False
        self._running: concurrent.futures.Future[object] | None = None

    def __call__(self, returned: Awaitable[object]) -> object:
        self._running = asyncio.run_coroutine_threadsafe(awaited(returned), self._loop)
        if self._left:
            self._running.cancel()
        try:
            return self._running.result()
        except concurrent.futures.CancelledError:
            if self._left:
                raise _Left from None
            raise

    def is_set(self) -> bool:
        """Return whether the consumer is to stop."""
        return self._left or (self._stop is not None and self._stop.is_set())

    def leave(self) -> None:
        """Stop the consumer, and cancel the handler that runs."""
        self._left = True
        if self._running is not None:
            self._running.cancel()


async def _called(function: Callable[[ConsumeReport], object], report: ConsumeReport) -> None:
    returned = function(report)
    if inspect.isawaitable(returned):
        await returned


async def consume(broker: Broker, *arguments: Any, **named: Any) -> ConsumeReport:
    """Consume until stopped or cancelled. A cancelled handler's message is released."""
    loop = asyncio.get_running_loop()
    call = inspect.signature(broker.consume).bind(*arguments, **named)
    call.apply_defaults()
    options = call.arguments
    stop, on_batch = options["stop"], options["on_batch"]
    calls = LoopCalls(loop, stop)
    if stop is None or callable(getattr(stop, "is_set", None)):
        options["stop"] = calls
    if callable(on_batch):
        options["on_batch"] = lambda report: calls(_called(on_batch, report))
    run = partial(broker.consume, **options)
    pool = ThreadPoolExecutor(1, thread_name_prefix="lazaretto-consume")
    working = loop.run_in_executor(pool, partial(copy_context().run, run))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        calls.leave()
        await asyncio.wait([working])
        with contextlib.suppress(BaseException):
            working.result()
        raise
    finally:
        pool.shutdown(wait=False)
