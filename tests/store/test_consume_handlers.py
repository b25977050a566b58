"""What `consume` calls: handlers of every form run, and what would not run is refused."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import lazaretto.aio
from lazaretto import (
    NEXT_SESSION,
    Broker,
    HandlerError,
    InvalidMessage,
    Message,
    PoisonPolicy,
    PoisonSession,
    QueueOptions,
    ReceivedMessage,
)
from lazaretto.host import Handler, HandlerContext
from lazaretto.host.handler_calls import Caller

BODIES = [b"%d" % n for n in range(5)]


@pytest.fixture
def queue(broker: Broker) -> str:
    broker.create_queue("q", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
    broker.create_queue("out")
    broker.sender("q").send([Message(body) for body in BODIES])
    return "q"


class Recorder:
    """Handlers of all forms, which record what they were called with."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def plain(self, message: ReceivedMessage) -> None:
        self.seen.append(message.body)

    def with_context(self, message: ReceivedMessage, context: HandlerContext) -> None:
        assert context.attempt == 1
        self.seen.append(message.body)

    async def coroutine(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        self.seen.append(message.body)

    async def coroutine_with_context(self, message: ReceivedMessage, context: HandlerContext) -> None:
        await asyncio.sleep(0)
        self.with_context(message, context)

    def returns_a_coroutine(self, message: ReceivedMessage) -> Awaitable[None]:
        return self.coroutine(message)

    async def __call__(self, message: ReceivedMessage) -> None:
        await self.coroutine(message)

    def lazy(self, message: ReceivedMessage) -> Iterator[int]:
        self.seen.append(message.body)
        yield 1

    async def lazy_async(self, message: ReceivedMessage) -> AsyncIterator[int]:
        self.seen.append(message.body)
        yield 1


FORMS: dict[str, Callable[[Recorder], Any]] = {
    "plain": lambda r: r.plain,
    "with context": lambda r: r.with_context,
    "coroutine": lambda r: r.coroutine,
    "coroutine with context": lambda r: r.coroutine_with_context,
    "partial": lambda r: functools.partial(r.coroutine),
    "object": lambda r: r,
    "returns a coroutine": lambda r: r.returns_a_coroutine,
    "handler": lambda r: Handler("other", r.with_context),
    "async handler": lambda r: Handler("other", r.coroutine),
}
REFUSED: dict[str, Callable[[Recorder], Any]] = {
    "generator": lambda r: r.lazy,
    "async generator": lambda r: r.lazy_async,
    "partial of a generator": lambda r: functools.partial(r.lazy),
    "no parameter": lambda r: lambda: None,
    "three parameters": lambda r: lambda message, context, more: None,
    "no function": lambda r: "shop:book",
}
#: What shows only when it is called.
LEFT: dict[str, Callable[[Recorder], Any]] = {
    "returns a generator": lambda r: lambda message: r.lazy(message),
    "returns an async generator": lambda r: lambda message: r.lazy_async(message),
    "returns a map": lambda r: lambda message: map(r.plain, [message]),
    "returns a coroutine of a coroutine": lambda r: lambda message: _later(lambda: r.coroutine(message)),
}


async def _later(call: Callable[[], Any]) -> Any:
    return call()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_runs(broker: Broker, queue: str, form: str) -> None:
    recorder = Recorder()
    report = broker.consume(queue, FORMS[form](recorder), stop_when_idle=True)
    assert (report.completed, recorder.seen) == (5, BODIES)


@pytest.mark.parametrize("form", REFUSED)
def test_what_would_not_run_is_refused_before_the_first_message(
    broker: Broker, queue: str, form: str
) -> None:
    handler = REFUSED[form](Recorder())
    with pytest.raises(HandlerError, match="expected a handler"):
        broker.consume(queue, handler, stop_when_idle=True)
    with pytest.raises(HandlerError, match="expected a handler"):
        Handler("q", handler)
    assert [m.deliveries for m in broker.peek(queue, 9)] == [0] * 5


@pytest.mark.parametrize("form", LEFT)
def test_what_has_not_run_is_not_completed(broker: Broker, queue: str, form: str) -> None:
    recorder = Recorder()
    handler = LEFT[form](recorder)
    with pytest.raises(HandlerError, match="nothing has run"):
        broker.consume(queue, handler, stop_when_idle=True)
    assert (broker.queue(queue).counts.active, recorder.seen) == (5, [])
    (message,) = broker.receiver(queue).receive()
    with closing(Caller(Handler("q", handler))) as call, pytest.raises(HandlerError, match="nothing has run"):
        call(message, None)


async def waits(message: ReceivedMessage) -> None: ...


async def surrounds(message: ReceivedMessage, context: HandlerContext, call_next: Any) -> None:
    await call_next()


def lazily(*arguments: object) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (print, {"middleware": surrounds}),
        (waits, {"middleware": [surrounds, lambda message, context, call_next: call_next()]}),
        (print, {"middleware": lazily}),
        (print, {"validator": waits}),
        (print, {"validator": lazily}),
        (print, {"on_poison": waits}),
    ],
)
def test_functions_beside_a_handler_that_would_not_run_are_refused(function: Any, options: Any) -> None:
    with pytest.raises(HandlerError, match="would not run"):
        Handler("q", function, **options)


def test_an_async_handler_within_an_event_loop_is_refused(broker: Broker, queue: str) -> None:
    async def consume() -> None:
        broker.consume(queue, waits, stop_when_idle=True)

    with pytest.raises(HandlerError, match=r"lazaretto\.aio"):
        asyncio.run(consume())
    assert broker.queue(queue).counts.active == 5


def test_a_coroutine_that_fails_has_failed(broker: Broker, queue: str) -> None:
    async def fail(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        if message.body == b"1":
            raise InvalidMessage("no")
        if message.body == b"2":
            raise asyncio.CancelledError
        if message.body == b"3":
            raise ValueError("out of order")

    report = broker.consume(queue, fail, stop_when_idle=True)
    assert (report.completed, report.invalid, report.failed) == (2, 1, 2)
    (letter,) = [one for one in broker.dead_letters(queue) if one.error_message == "out of order"]
    assert "asyncio" not in (broker.attempts(queue, letter.sequence_number)[-1].stack or "asyncio")


def test_what_a_context_is_asked_takes_effect_in_the_same_commit(broker: Broker, queue: str) -> None:
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE lamps (n INTEGER CHECK (n < 3))")
    mark = "?" if tx.paramstyle == "qmark" else "%s"

    def ask(message: ReceivedMessage, context: HandlerContext) -> None:
        context.execute(f"INSERT INTO lamps VALUES ({mark})", [int(message.body)])
        context.send("out", Message(b"of " + message.body))
        if message.body == b"0":
            context.dead_letter("Stale")
        if message.body == b"1":
            context.defer()

    report = broker.consume(queue, ask, stop_when_idle=True)
    # 3 and 4 break the constraint: they alone have failed, and nothing of them took effect.
    assert (report.completed, report.failed, report.deferred, report.dead_lettered) == (1, 2, 1, 1)
    assert [m.body for m in broker.peek("out", 9)] == [b"of 0", b"of 1", b"of 2"]
    with broker.transaction() as tx:
        assert [row[0] for row in tx.execute("SELECT n FROM lamps ORDER BY n").fetchall()] == [0, 1, 2]
    assert broker.queue(queue).counts.dead_letter == 3


def test_a_context_knows_what_failed_before(broker: Broker) -> None:
    broker.create_queue("again", QueueOptions(policy=PoisonPolicy(receive_retry_count=1)))
    broker.sender("again").send(Message(b"x"))
    errors: list[str | None] = []

    def fail_once(message: ReceivedMessage, context: HandlerContext) -> None:
        errors.append(None if context.last_error is None else context.last_error.message)
        if context.attempt == 1:
            raise ValueError("once")

    broker.consume("again", fail_once, stop_when_idle=True, max_wait=5)
    assert errors == [None, "once"]


def test_a_session_that_is_one_unit_keeps_nothing_of_a_context_that_cannot_be(broker: Broker) -> None:
    options = QueueOptions(
        requires_session=True,
        on_poison_session=PoisonSession.WHOLE,
        policy=PoisonPolicy(receive_retry_count=0),
    )
    broker.create_queue("steps", options)
    broker.create_queue("out")
    broker.sender("steps").send([Message(b"%d" % n, session_id="a") for n in range(3)])

    def ask(message: ReceivedMessage, context: HandlerContext) -> None:
        context.send("nowhere" if message.body == b"1" else "out", Message(message.body))

    report = broker.consume("steps", ask, session=NEXT_SESSION, stop_when_idle=True)
    assert (report.completed, broker.peek("out", 9)) == (0, [])


class TestAio:
    @pytest.mark.parametrize("form", FORMS)
    def test_every_form_runs(self, place: str, form: str) -> None:
        async def consume() -> tuple[int, list[bytes], list[int]]:
            recorder, counts = Recorder(), []
            async with await lazaretto.aio.connect(place) as broker:
                await broker.create_queue("q")
                await broker.sender("q").send([Message(body) for body in BODIES])
                report = await broker.consume(
                    "q",
                    FORMS[form](recorder),
                    stop_when_idle=True,
                    on_batch=lambda r: counts.append(r.completed),
                )
            return report.completed, recorder.seen, counts

        assert asyncio.run(consume()) == (5, BODIES, [5])

    def test_it_runs_on_the_loop_and_stops(self, place: str) -> None:
        async def consume() -> None:
            loop, stop, threads = asyncio.get_running_loop(), asyncio.Event(), set()

            async def handle(message: ReceivedMessage) -> None:
                assert asyncio.get_running_loop() is loop
                threads.add(threading.current_thread())
                await broker.sender("out").send(Message(message.body))
                stop.set()

            async with await lazaretto.aio.connect(place) as broker:
                await broker.create_queues(["q", "out"])
                await broker.sender("q").send(Message(b"x"))
                report = await broker.consume("q", handle, stop=stop)
                assert (report.completed, threads) == (1, {threading.current_thread()})
                assert len(await broker.peek("out", 2)) == 1

        asyncio.run(consume())

    def test_what_is_cancelled_is_released(self, place: str) -> None:
        async def consume() -> None:
            begun = asyncio.Event()

            async def hang(message: ReceivedMessage) -> None:
                begun.set()
                await asyncio.Event().wait()

            async with await lazaretto.aio.connect(place) as broker:
                await broker.create_queue("q")
                await broker.sender("q").send([Message(b"1"), Message(b"2")])
                task = asyncio.create_task(broker.consume("q", hang))
                await begun.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                messages = await broker.receiver("q").receive(5)
                assert [(m.body, m.delivery_count) for m in messages] == [(b"1", 0), (b"2", 0)]

        asyncio.run(consume())

    def test_what_would_not_run_is_refused(self, place: str) -> None:
        async def consume() -> None:
            async with await lazaretto.aio.connect(place) as broker:
                await broker.create_queue("q")
                handler = REFUSED["generator"](Recorder())
                await broker.consume("q", handler, stop_when_idle=True)

        with pytest.raises(HandlerError, match="generator"):
            asyncio.run(consume())
