"""Work that has begun, and how it ends: by itself, with the server, or cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

from lazaretto.web.refusals import HttpError

T = TypeVar("T")


class Begun(Generic[T]):
    """Something awaitable that has begun. `over`: it has ended, with `answer`; else await it, once.

    What it raises at once is raised here.
    """

    answer: T

    def __init__(self, work: Awaitable[T]) -> None:
        self._steps: Generator[Any, Any, T] = work.__await__()
        self.over = False
        try:
            #: What the event loop must wait for, before it goes on.
            self._waits = next(self._steps)
        except StopIteration as ended:
            self.over, self.answer = True, ended.value

    def __await__(self) -> Generator[Any, Any, T]:
        if not self.over:
            try:
                yield self._waits
            except BaseException:
                self._steps.close()
                raise
            self.answer = yield from self._steps
            self.over = True
        return self.answer


class Ending:
    """Tells those who wait that the server ends."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[Any]] = set()
        self._began = False

    def begin(self) -> None:
        """End every wait, now and later."""
        self._began = True
        for one in list(self._waiting):
            one.cancel()

    async def wait_for(self, work: Awaitable[T]) -> T:
        """Return what work comes to. Raises HttpError if the server ends first, and cancels the work."""
        task = asyncio.ensure_future(work)
        self._waiting.add(task)
        try:
            if self._began:
                task.cancel()
            return await task
        except asyncio.CancelledError:
            if self._began and task.cancelled():
                raise HttpError("server_ends", "the server ends; ask again when it has started") from None
            raise
        finally:
            self._waiting.discard(task)


async def end(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has ended, also if the waiting one is cancelled meanwhile."""
    task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
