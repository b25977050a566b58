"""Sends and settlements of a server that awaits nothing: each is answered by a call, with its own error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import lazaretto.aio
from lazaretto import BrokerClosed, EntityNotFound, InvalidMessage, Message, MessageLockLost
from lazaretto.aio import AsyncBroker
from lazaretto.aio.posting import Posting, Settling
from lazaretto.broker.steps import steps_of

PATIENCE = 120.0


def run(url: str, work: Callable[[AsyncBroker], Awaitable[None]]) -> None:
    """Run a coroutine on a new store with a queue `q`."""

    async def main() -> None:
        async with await lazaretto.aio.connect(url) as broker:
            await broker.create_queue("q")
            async with asyncio.timeout(PATIENCE):
                await work(broker)

    asyncio.run(main())


class Answers:
    """What was told, in the order in which it came."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any, BaseException | None]] = []
        self._came = asyncio.Event()

    def of(self, name: str) -> Callable[[Any, BaseException | None], None]:
        def tell(answer: Any, error: BaseException | None) -> None:
            self.told.append((name, answer, error))
            self._came.set()

        return tell

    async def until(self, count: int) -> None:
        while len(self.told) < count:
            self._came.clear()
            await self._came.wait()

    def kinds(self) -> dict[str, type[BaseException] | None]:
        return {name: None if error is None else type(error) for name, _, error in self.told}


def test_each_send_has_its_own_answer(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        good, lost, answers = Posting(broker.sender("q")), Posting(broker.sender("none")), Answers()
        good.send([Message(b"1")], answers.of("one"))
        lost.send([Message(b"2")], answers.of("lost"))
        good.send([Message("text")], answers.of("wrong"))  # type: ignore[arg-type]
        good.send([Message(b"3"), Message(b"4")], answers.of("two"))
        good.send([], answers.of("none"))
        # Nothing is written yet; what can be told without a store is told at once.
        assert answers.kinds() == {"wrong": InvalidMessage, "none": None}
        await answers.until(5)
        assert answers.kinds() == {
            "one": None,
            "lost": EntityNotFound,
            "wrong": InvalidMessage,
            "two": None,
            "none": None,
        }
        assert sorted(n for _, answer, _ in answers.told for n in answer or ()) == [1, 2, 3]
        async with broker.receiver("q") as receiver:
            assert [m.body for m in await receiver.receive(9)] == [b"1", b"3", b"4"]

    run(url, work)


def test_each_settlement_has_its_own_answer(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        await broker.sender("q").send([Message(bytes((number,))) for number in range(4)])
        async with broker.receiver("q") as receiver:
            settling, answers = Settling(receiver), Answers()
            first, second, third, fourth = await receiver.receive(4)
            await receiver.release(fourth)
            settling.settle("complete", [first, second], answers.of("done"))
            settling.settle("complete", [fourth], answers.of("lost"))
            settling.settle("dead_letter", [third], answers.of("dead"), reason="wrong")
            settling.settle("defer", [third], answers.of("refused"), properties={"a": object()})
            await answers.until(4)
            assert answers.kinds() == {
                "done": None,
                "lost": MessageLockLost,
                "dead": None,
                "refused": InvalidMessage,
            }
            assert [m.body for m in await receiver.receive(9)] == [bytes((3,))]
        assert [letter.reason async for letter in broker.dead_letters("q")] == ["wrong"]

    run(url, work)


def test_one_answer_that_fails_does_not_keep_others_back(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        posting, answers = Posting(broker.sender("q")), Answers()

        def fail(answer: Any, error: BaseException | None) -> None:
            raise RuntimeError("of the one who is told")

        posting.send([Message(b"1")], fail)
        posting.send([Message(b"2")], answers.of("second"))
        await answers.until(1)
        assert answers.kinds() == {"second": None}
        assert [str(one["exception"]) for one in faults] == ["of the one who is told"]

    run(url, work)


def test_after_the_end_each_is_refused(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        posting, answers = Posting(broker.sender("q")), Answers()
        await broker.close()
        posting.send([Message(b"1")], answers.of("late"))
        await answers.until(1)
        assert answers.kinds() == {"late": BrokerClosed}

    run(url, work)


def test_steps_that_wait_are_taken_aside(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        inner: Any = broker.receiver("q")
        answers = Answers()
        inner._driver.begin(steps_of(inner._inner.receive, 1, PATIENCE), answers.of("came"))
        await broker.sender("q").send(Message(b"late"))
        await answers.until(1)
        ((_, messages, error),) = answers.told
        assert error is None
        assert [message.body for message in messages] == [b"late"]

    run(url, work)
