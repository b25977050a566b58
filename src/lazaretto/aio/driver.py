"""Runs methods on an event loop: thousands of coroutines share one commit, and no thread waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from lazaretto.broker.steps import Do, Look, Steps, Wait
from lazaretto.errors import BrokerClosed, StoreError
from lazaretto.store.records.messages import Again
from lazaretto.store.runtime.forks import at_work
from lazaretto.store.sql.group_commit import Ticket
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")

GiveBack = Callable[[Any], Operation[Any] | None]
#: Is told what steps returned, or the error that they raised.
Then = Callable[[Any, BaseException | None], object]

#: Number of threads for calls that are not on the hot path: administration and reads.
_THREADS = 8


class _Ticket(Ticket):
    """An operation whose answer a coroutine awaits."""

    __slots__ = ("driver", "future", "give_back")

    def __init__(
        self,
        driver: Driver,
        operation: Operation[Any],
        future: asyncio.Future[Any],
        give_back: GiveBack | None,
    ) -> None:
        super().__init__(operation, driver._told)
        self.driver = driver
        self.future = future
        self.give_back = give_back

    def settle(self) -> None:
        """Tell the coroutine, now that the operation is written."""
        future = self.future
        if future.cancelled():
            if self.error is None and not isinstance(self.answer, Again):
                self.driver._give_back(self.give_back, self.answer)
        elif self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.answer)


class _Course(Ticket):
    """An operation of steps that run without a coroutine, and what is told of their end."""

    __slots__ = ("driver", "steps", "then")

    def __init__(self, driver: Driver, operation: Operation[Any], steps: Steps[Any], then: Then) -> None:
        super().__init__(operation, driver._told)
        self.driver = driver
        self.steps = steps
        self.then = then

    def settle(self) -> None:
        """Go on with the steps, now that the operation is written."""
        driver, answer = self.driver, self.answer
        try:
            if self.error is None and isinstance(answer, Again):
                driver._submit(driver.store.again(self.operation, answer), self.steps, self.then)
            else:
                driver._go_on(self.steps, self.then, answer, self.error)
        except Exception as error:
            # Others of the same commit are still to be told.
            driver._loop.call_exception_handler({"message": "an answer was not taken", "exception": error})


class Driver:
    """One store, used by the coroutines of one event loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._loop = asyncio.get_running_loop()
        #: None once closed: what is asked then is refused at once, in any thread.
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(
            _THREADS, thread_name_prefix="lazaretto-aio"
        )
        #: Messages from other threads: the tickets of a commit, or callers to wake.
        self._inbox: deque[list[_Ticket | _Course] | asyncio.Future[bool]] = deque()
        self._posted = False
        #: Always the same object, so that one call reports all tickets of a commit.
        self._told = self._post
        #: Steps that coroutines do for those without one.
        self._aside: set[asyncio.Task[Any]] = set()
        #: Tasks that release messages whose receive was cancelled.
        self._giving_back: set[asyncio.Future[Any]] = set()

    async def run(self, steps: Steps[T]) -> T:
        """Run the steps of a method and return its result.

        If the call is cancelled, an operation that is not written yet is dropped, and received messages are
        released. Raises StoreError in another event loop.
        """
        self.refuse_other_loop()
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Do):
                        answer = await self._do(step.operation, step.give_back)
                    elif isinstance(step, Look):
                        answer = await self.read(step.query)
                    else:
                        answer = await self._wait(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result

    def begin(self, steps: Steps[Any], then: Then) -> None:
        """Run the steps of a method that only does operations, and call `then` with its result or its error.

        It begins at once, and costs no task. Nobody can cancel it.
        """
        self._go_on(steps, then, None, None)

    def _go_on(self, steps: Steps[Any], then: Then, answer: Any, error: BaseException | None) -> None:
        try:
            step = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as done:
            then(done.value, None)
        except Exception as raised:
            then(None, raised)
        else:
            if isinstance(step, Do):
                self._submit(step.operation, steps, then)
            else:
                self._step_aside(step, steps, then)

    def _submit(self, operation: Operation[Any], steps: Steps[Any], then: Then) -> None:
        try:
            self.store.submit(_Course(self, operation, steps, then))
        except Exception as error:
            self._go_on(steps, then, None, error)

    def _step_aside(self, step: Look | Wait, steps: Steps[Any], then: Then) -> None:
        """Go on once a step is done that a coroutine does."""
        doing = self.read(step.query) if isinstance(step, Look) else self._wait(step)
        task = asyncio.ensure_future(doing)
        self._aside.add(task)

        def go_on(task: asyncio.Task[Any]) -> None:
            self._aside.discard(task)
            if task.cancelled():
                self._go_on(steps, then, None, BrokerClosed("the event loop is closing"))
            else:
                error = task.exception()
                self._go_on(steps, then, None if error is not None else task.result(), error)

        task.add_done_callback(go_on)

    async def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call a function that may block, in a thread. Raises StoreError in another event loop."""
        self.refuse_other_loop()
        run = partial(copy_context().run, function, *arguments, **named)
        return await self._loop.run_in_executor(self._pool, _at_work, run)

    async def read(self, query: Callable[[Transaction], T]) -> T:
        """Return what a query reads, in a thread."""
        return await self.call(self.store.read, query)

    async def perform(self, operation: Operation[T]) -> T:
        """Run an operation in a thread, for what is not on the hot path."""
        return await self.call(self.store.run, operation)

    async def close(self, close: Callable[[], None]) -> None:
        """Wait until messages are released, close the store, and end the threads. Works in any event loop."""
        if self.store.forked:
            close()
            return
        loop = asyncio.get_running_loop()
        if self._giving_back and loop is self._loop:
            await asyncio.wait(self._giving_back, timeout=10.0)
        try:
            await loop.run_in_executor(self._pool, close)
        finally:
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown(wait=False)

    def refuse_other_loop(self) -> None:
        """Raise StoreError in another event loop, or in a forked child."""
        self.store.refuse_fork()
        # Before anything is done: the answer would find nobody here.
        if asyncio.get_running_loop() is not self._loop:
            raise StoreError(
                "this broker was connected in another event loop; await it there, or connect in each loop"
            )

    # -- operations -----------------------------------------------------------------------------

    async def _do(self, operation: Operation[Any], give_back: GiveBack | None) -> Any:
        while True:
            future = self._loop.create_future()
            ticket = _Ticket(self, operation, future, give_back)
            self.store.submit(ticket)
            try:
                answer = await future
            except asyncio.CancelledError:
                if future.cancelled():
                    # If it is written anyway, its messages are released when the answer arrives.
                    ticket.drop()
                elif future.exception() is None:
                    self._give_back(give_back, future.result())
                raise
            if not isinstance(answer, Again):
                return answer
            operation = self.store.again(operation, answer)

    def _give_back(self, give_back: GiveBack | None, answer: Any) -> None:
        operation = None if give_back is None else give_back(answer)
        if operation is None:
            return
        future = self._loop.create_future()
        try:
            self.store.submit(_Ticket(self, operation, future, None))
        except BrokerClosed:
            return
        self._giving_back.add(future)
        future.add_done_callback(self._given_back)

    def _given_back(self, future: asyncio.Future[Any]) -> None:
        self._giving_back.discard(future)
        # If the release fails, the locks expire.
        future.exception()

    # -- waiting --------------------------------------------------------------------------------

    async def _wait(self, step: Wait) -> bool:
        future: asyncio.Future[bool] = self._loop.create_future()
        caller = self.store.enlist(step.key, step.seen, partial(self._post, future), step.alike)
        if caller is None:
            return True
        timer = self._loop.call_later(step.seconds, _set, future, False)
        woken = False
        try:
            await future
        except BaseException:
            woken = self.store.notifier.leave(caller)
            if woken:
                # No other caller looks in its place.
                self.store.pass_on(step.key, step.alike)
            raise
        finally:
            timer.cancel()
        return self.store.notifier.leave(caller)

    # -- what other threads tell ----------------------------------------------------------------

    def _post(self, news: list[_Ticket | _Course] | asyncio.Future[bool]) -> None:
        """Post to the event loop; one wake-up covers everything posted before it looks."""
        self._inbox.append(news)
        if not self._posted:
            self._posted = True
            self._loop.call_soon_threadsafe(self._take_news)

    def _take_news(self) -> None:
        # Done first, so that later posts cause a wake-up of their own.
        self._posted = False
        while self._inbox:
            news = self._inbox.popleft()
            if isinstance(news, list):
                for ticket in news:
                    ticket.settle()
            else:
                _set(news, True)


def driver_of(broker: Any) -> Driver:
    """Return what runs the methods of an asynchronous broker, or of what it has made."""
    driver: Driver = broker._driver
    return driver


def _at_work(run: Callable[[], T]) -> T:
    with at_work():
        return run()


def _set(future: asyncio.Future[bool], news: bool) -> None:
    if not future.done():
        future.set_result(news)
