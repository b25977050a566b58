"""Verbs as steps: what they want of their store, so that threads and event loops run the same code."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

import msgspec

from lazaretto.store.contract.store_contract import Store
from lazaretto.store.contract.transaction_contract import Operation, Transaction

T = TypeVar("T")


class Do(msgspec.Struct, frozen=True, gc=False):
    """Run an operation. `give_back`: returns what undoes an answer that nobody waits for any more."""

    operation: Operation[Any]
    give_back: Callable[[Any], Operation[Any] | None] | None = None


class Look(msgspec.Struct, frozen=True, gc=False):
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
                answer = store.run(step.operation) if isinstance(step, Do) else _look_or_wait(store, step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        found: T = done.value
        return found


def _look_or_wait(store: Store, step: Look | Wait) -> Any:
    if isinstance(step, Look):
        return store.read(step.query)
    return store.wait(*step)
