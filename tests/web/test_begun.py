"""What is begun at once: over at once, later, with an error, and cancelled."""

from __future__ import annotations

import asyncio

import pytest

from lazaretto.web.ending import Begun


async def give(event: asyncio.Event, cleaned: list[str]) -> str:
    try:
        await event.wait()
        await asyncio.sleep(0)
        return "answer"
    finally:
        cleaned.append("cleaned")


def test_over_at_once() -> None:
    async def run() -> None:
        event = asyncio.Event()
        event.set()

        async def at_once() -> str:
            await event.wait()
            return "answer"

        begun = Begun(at_once())
        assert begun.over
        assert begun.answer == "answer"
        assert await begun == "answer"

    asyncio.run(run())


def test_over_later() -> None:
    async def run() -> None:
        event, cleaned = asyncio.Event(), list[str]()
        begun = Begun(give(event, cleaned))
        assert not begun.over
        asyncio.get_running_loop().call_soon(event.set)
        async with asyncio.timeout(120):
            assert await begun == "answer"
        assert begun.over
        assert cleaned == ["cleaned"]

    asyncio.run(run())


def test_errors_at_once_and_later() -> None:
    async def fail(event: asyncio.Event | None) -> None:
        if event is not None:
            await event.wait()
        raise ValueError("no")

    async def run() -> None:
        with pytest.raises(ValueError, match="no"):
            Begun(fail(None))
        event = asyncio.Event()
        begun = Begun(fail(event))
        event.set()
        with pytest.raises(ValueError, match="no"):
            await begun

    asyncio.run(run())


@pytest.mark.parametrize("late", [False, True])
def test_what_waits_too_long_is_ended(late: bool) -> None:
    """It cleans up, whether it waited for the first thing or for the next."""

    async def run() -> None:
        event, cleaned = asyncio.Event(), list[str]()

        async def work() -> None:
            try:
                if late:
                    await asyncio.sleep(0)
                await event.wait()
            finally:
                cleaned.append("cleaned")

        begun = Begun(work())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await begun
        assert cleaned == ["cleaned"]

    asyncio.run(run())
