"""Ends of work: of all that waits when the server ends, and of a single task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from lazaretto.web.refusals import HttpError

T = TypeVar("T")


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
