"""Work begun at once, and mostly over at once: then there is nothing to wait for, and no limit to set."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

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
