"""Verbs as steps: what they want of their store, so that threads and event loops run the same code."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec

from lazaretto.model.entities import EntityPath
from lazaretto.model.keys import lower_bound
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")

#: How often one who waits asks again, in seconds, so that a queue is seen to be in use.
_ASK_AGAIN = 60.0


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
        result: T = done.value
        return result


def verb(steps: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Make a method of its steps, of an object with a `_store`: it runs them in its caller's thread.

    `steps_of` returns the steps themselves. The mirrors of `lazaretto.aio` run them in the event loop.
    """

    @functools.wraps(steps)
    def method(*arguments: P.args, **named: P.kwargs) -> T:
        holder: Any = arguments[0]
        return run_steps(holder._store, steps(*arguments, **named))

    made: Any = method
    signature = inspect.signature(steps)
    answer = str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
    made.__signature__ = signature.replace(return_annotation=answer)
    made.__annotations__ = {**steps.__annotations__, "return": answer}
    made.steps = steps
    return method


def steps_of(method: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Steps[T]:
    """Return the steps of a verb of an object, not begun."""
    bound: Any = method
    steps: Steps[T] = bound.steps(bound.__self__, *arguments, **named)
    return steps


def _look_or_wait(store: Store, step: Look | Wait) -> Any:
    if isinstance(step, Look):
        return store.read(step.query)
    return store.wait(*step)


def outcome_of(step: Do) -> Steps[Any]:
    """Run an operation whose answer may be an error."""
    return return_or_raise((yield step))


def return_or_raise(answer: T | Exception) -> T:
    """Return an operation's result, or raise it if it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer


def place_of(tx: Transaction, path: EntityPath) -> int | None:
    """Return a key within a subqueue, to wait for it; None if the queue does not exist."""
    queue = tx.queues.by_path(path.key)
    return None if queue is None else lower_bound(queue.queue_id, path.subqueue) + 1


def waiting_for(
    store: Store,
    place: int,
    attempt: Callable[[], Steps[T | None]],
    end: float | None,
    check: Callable[[], None],
    alike: str | None,
) -> Steps[T | None]:
    """Return the steps of `attempt`, repeated whenever the subqueue may have changed, until `end`.

    `end`: on the monotonic clock, or None. `check` raises if nobody waits any more. `alike`: callers that
    wait with the same word would find the same, so only one of them is woken.
    """
    woken = False
    while True:
        try:
            if woken:
                check()
            seen = store.changes(place)
            answer = yield from attempt()
        except BaseException:
            if woken:
                store.pass_on(place, alike)
            raise
        if answer:
            if woken:
                store.pass_on(place, alike)
            return answer
        rest = _ASK_AGAIN if end is None else end - time.monotonic()
        woken = rest > 0 and (yield Wait(place, seen, min(rest, _ASK_AGAIN), alike))
        if not woken:
            if end is not None and rest <= _ASK_AGAIN:
                return None
            check()
