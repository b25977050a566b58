"""The verbs of coroutines, on every store: they share commits, wait without threads, and can be cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import lazaretto
import lazaretto.aio
from lazaretto import (
    NEXT_SESSION,
    BrokerClosed,
    EntityNotFound,
    Message,
    MessageLockLost,
    QueueOptions,
    SessionCannotBeLocked,
    StoreError,
)
from lazaretto.aio import AsyncBroker

PATIENCE = 120.0


def run(url: str, work: Callable[[AsyncBroker], Awaitable[None]]) -> None:
    """Run a coroutine on a new store with a queue `q`."""

    async def main() -> None:
        async with await lazaretto.aio.connect(url) as broker:
            await broker.create_queue("q")
            async with asyncio.timeout(PATIENCE):
                await work(broker)

    asyncio.run(main())


def test_each_verb(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        sender = broker.sender("q")
        one = await sender.send(Message(b"1"))
        assert await sender.send([Message(b"2"), Message(b"3"), Message(b"4")]) == [one + 1, one + 2, one + 3]
        async with broker.receiver("q") as receiver:
            first, second, third, fourth = await receiver.receive(9)
            await receiver.complete(first)
            await receiver.dead_letter(second, reason="wrong")
            await receiver.defer(third)
            await receiver.renew_lock(fourth)
            await receiver.release(fourth)
            with pytest.raises(MessageLockLost):
                await receiver.complete(fourth)
            (again,) = await receiver.receive_deferred(third.sequence_number)
            await receiver.abandon(again, error="Error: why")
            assert [m.body for m in await receiver.peek(9)] == [b"3", b"4"]
        assert [d.reason async for d in broker.dead_letters("q")] == ["wrong"]
        assert (await broker.resubmit("q", [second.sequence_number])).resubmitted == {
            second.sequence_number: 5
        }
        assert (await broker.queue("q")).counts.total == 3
        with pytest.raises(EntityNotFound):
            await broker.sender("none").send(Message(b""))
        events = await broker.events()
        assert events
        late = asyncio.create_task(broker.events(await broker.last_event(), max_wait=120))
        await asyncio.sleep(0)
        await broker.create_queue("other")
        assert [event.queue for event in await late] == ["other"]

    run(url, work)


def test_transactions(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        await broker.create_queue("out")
        await broker.sender("q").send(Message(b"in"))
        async with broker.transaction() as tx:
            (message,) = await tx.receive("q", 1, None)
            await tx.execute("CREATE TABLE seen (body TEXT)")
            await tx.send("out", Message(message.body))
        with contextlib.suppress(ZeroDivisionError):
            async with broker.transaction() as tx:
                await tx.execute("INSERT INTO seen VALUES ('x')")
                await tx.send("out", Message(b"never"))
                raise ZeroDivisionError
        assert (await broker.queue("q")).counts.total == 0
        assert [m.body for m in await broker.peek("out", 9)] == [b"in"]
        async with broker.transaction() as tx:
            assert (await tx.execute("SELECT count(*) FROM seen")).fetchone()[0] == 0

    run(url, work)


def test_sessions(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        await broker.create_queue("s", QueueOptions(requires_session=True))
        async with broker.receiver("s", session=NEXT_SESSION) as receiver:
            waiting = [asyncio.create_task(receiver.receive(1, None)) for _ in range(2)]
            await asyncio.sleep(0)
            await broker.sender("s").send([Message(b"%d" % n, session_id="a") for n in range(2)])
            found = [message for task in waiting for message in await task]
            assert sorted(message.body for message in found) == [b"0", b"1"]
            assert receiver.session_id == "a"
            await receiver.set_session_state(b"state")
            assert await receiver.get_session_state() == b"state"
            with pytest.raises(SessionCannotBeLocked):
                async with broker.receiver("s", session="a"):
                    pass
            await receiver.complete(found)
        async with broker.receiver("s", session="a") as receiver:
            assert receiver.session_id == "a"

    run(url, work)


def test_dialogs(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        for side in ("near", "far"):
            await broker.dialogs.create_service(side, side, ["DEFAULT"])
        async with broker.dialogs.transaction() as tx:
            handle = await tx.begin_dialog("near", "far")
            await tx.send(handle, body=b"hello")
        async with broker.dialogs.transaction("far") as tx:
            cancelled = asyncio.create_task(tx.receive(conversation=None, max_wait=None))
            (message,) = await cancelled
            assert message.body == b"hello"
        late = broker.dialogs.transaction("near")
        waiting = asyncio.create_task(late.receive(max_wait=None))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await late.rollback()

    run(url, work)


def test_coroutines_share_commits_and_each_gets_its_answer(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        sender = broker.sender("q")
        numbers = await asyncio.gather(*[sender.send(Message(b"%d" % n)) for n in range(2000)])
        assert sorted(numbers) == list(range(min(numbers), min(numbers) + 2000))
        found = {m.sequence_number: m.body for m in await broker.peek("q", 2000)}
        assert [found[number] for number in numbers] == [b"%d" % n for n in range(2000)]

    run(url, work)


def test_a_thousand_that_wait_hold_no_threads_and_each_is_woken(url: str) -> None:
    # Other tests of this process may have left some, as Spark's callbacks do.
    before = threading.active_count()

    async def work(broker: AsyncBroker) -> None:
        async def wait() -> bytes:
            async with broker.receiver("q") as receiver:
                (message,) = await receiver.receive(1, None)
                await receiver.complete(message)
                return message.body

        tasks = [asyncio.create_task(wait()) for _ in range(1000)]
        notifier = broker._inner._store.notifier  # type: ignore[attr-defined]
        while notifier.waiting < 1000:
            await asyncio.sleep(0.01)
        assert threading.active_count() < before + 20
        await broker.sender("q").send([Message(b"%d" % n) for n in range(1000)])
        assert {await task for task in tasks} == {b"%d" % n for n in range(1000)}
        assert (await broker.queue("q")).counts.total == 0

    run(url, work)


def test_a_cancelled_send_was_sent_or_not(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        sender, chance = broker.sender("q"), random.Random(7)

        async def send(n: int) -> None:
            await sender.send([Message(b"%d" % n), Message(b"%d" % n)])

        tasks = [asyncio.create_task(send(n)) for n in range(600)]
        for task in chance.sample(tasks, 400):
            if chance.random() < 0.1:
                await asyncio.sleep(0.001)
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        # Commits come one after the other: what was taken before is done after this one.
        await sender.send(Message(b"last"))
        bodies = [m.body for m in await broker.peek("q", 2000)]
        for n, end in enumerate(ends):
            count = bodies.count(b"%d" % n)
            assert count == 2 if end is None else count in (0, 2)

    run(url, work)


def test_a_cancelled_receive_gives_its_messages_back_uncharged(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        await broker.sender("q").send([Message(b"%d" % n) for n in range(500)])
        chance, kept = random.Random(11), []
        async with broker.receiver("q") as receiver:

            async def receive() -> None:
                for message in await receiver.receive(5, chance.choice([0, 0.01, None])):
                    kept.append(message)

            for _ in range(5):
                tasks = [asyncio.create_task(receive()) for _ in range(100)]
                for task in tasks:
                    if chance.random() < 0.1:
                        await asyncio.sleep(0.001)
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            end = time.monotonic() + PATIENCE
            while (await broker.queue("q")).counts.locked > len(kept):
                assert time.monotonic() < end, "they are not given back"
                await asyncio.sleep(0.01)
            await receiver.release(kept)
        # A commit that was under way when its receive was cancelled may lock some later, and gives them back.
        while (await broker.queue("q")).counts.locked:
            assert time.monotonic() < end, "they are not given back"
            await asyncio.sleep(0.01)
        left = await broker.peek("q", 1000)
        assert len(left) == 500
        assert {(m.state.value, m.delivery_count) for m in left} == {("active", 0)}

    run(url, work)


def test_a_cancelled_wait_wakes_another(url: str) -> None:
    async def work(broker: AsyncBroker) -> None:
        async def wait() -> bytes:
            async with broker.receiver("q") as receiver:
                (message,) = await receiver.receive(1, None)
                return message.body

        for n in range(20):
            tasks = [asyncio.create_task(wait()) for _ in range(2)]
            while broker._inner._store.notifier.waiting < 2:  # type: ignore[attr-defined]
                await asyncio.sleep(0.001)
            await broker.sender("q").send(Message(b"%d" % n))
            tasks[0].cancel()
            # Whichever of them was woken.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert await tasks[tasks[0].cancelled() or not tasks[0].done()] == b"%d" % n
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(url, work)


def test_closing_ends_those_who_wait(url: str) -> None:
    async def main() -> None:
        broker = await lazaretto.aio.connect(url)
        await broker.create_queue("q")
        tasks = [asyncio.create_task(broker.receiver("q").receive(1, None)) for _ in range(20)]
        while broker._inner._store.notifier.waiting < 20:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        await broker.close()
        assert all(
            isinstance(end, BrokerClosed) for end in await asyncio.gather(*tasks, return_exceptions=True)
        )
        with pytest.raises(BrokerClosed):
            await broker.sender("q").send(Message(b""))

    asyncio.run(main())


def test_another_event_loop_is_refused_before_anything_is_done_but_can_close(url: str) -> None:
    async def connect() -> AsyncBroker:
        broker = await lazaretto.aio.connect(url)
        await broker.create_queue("q")
        return broker

    async def use(broker: AsyncBroker) -> None:
        with pytest.raises(StoreError, match="another event loop"):
            await broker.sender("q").send(Message(b"1"))
        with pytest.raises(StoreError, match="another event loop"):
            await broker.queue("q")
        await broker.close()
        with pytest.raises(BrokerClosed):
            broker._inner.queue("q")  # type: ignore[attr-defined]

    asyncio.run(use(asyncio.run(connect())))
    with lazaretto.connect(url) as broker:
        assert broker.queue("q").counts.total == 0


def test_a_cancelled_connect_leaves_no_broker_open(url: str) -> None:
    def maintained() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "lazaretto-maintenance"]

    async def main() -> None:
        for _ in range(5):
            opening = asyncio.create_task(lazaretto.aio.connect(url))
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening

    before = maintained()
    # Its end waits until all are opened.
    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name == "lazaretto-closing":
            thread.join(PATIENCE)
    assert maintained() == before


def test_a_cancelled_connect_is_silent_about_a_store_that_cannot_be_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        opening = asyncio.create_task(lazaretto.aio.connect(tmp_path / "none.db", create=False))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(main())
    gc.collect()
    assert caplog.records == []
