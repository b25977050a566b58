"""Verbs as steps: what they want of their store, so that threads and event loops run the same code."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from lazaretto.store.contract.transaction_contract import Operation, Store, Transaction

T = TypeVar("T")


class Do(NamedTuple):
    """Run an operation. `give_back`: returns what undoes an answer that nobody waits for any more."""

    operation: Operation[Any]
    give_back: Callable[[Any], Operation[Any] | None] | None = None


class Look(NamedTuple):
    """Read."""

    query: Callable[[Transaction], Any]


class Wait(NamedTuple):
    """Wait for news, as `Store.wait` does."""

    key: int
    seen: int
    seconds: float
    alike: str | None


Steps = Generator[Do | Look | Wait, Any, T]


def run_steps(store: Store, steps: Steps[T]) -> T:
    """Run a verb's steps in this thread; return what it returns."""
    try:
        step = next(steps)
        while True:
            try:
                answer = _perform(store, step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        found: T = done.value
        return found


def _perform(store: Store, step: Do | Look | Wait) -> Any:
    if isinstance(step, Do):
        return store.run(step.operation)
    if isinstance(step, Look):
        return store.read(step.query)
    return store.wait(*step)
