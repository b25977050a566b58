"""Long answers end whole, whenever their asker goes away or the server ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

import pytest

from lazaretto.web.routes import Call


class _Allowed:
    """A caller who keeps all rights."""

    async def authorize_again(self) -> None:
        pass


def test_a_part_that_takes_its_time_to_end_is_waited_for() -> None:
    """Cancelled again while what makes the next part still ends, the answer waits for it, and closes it."""
    happened: list[str] = []

    async def parts(asked: asyncio.Event, going: asyncio.Event) -> AsyncGenerator[bytes]:
        try:
            yield b"first"
            asked.set()
            await asyncio.Event().wait()
        finally:
            happened.append("ending")
            await going.wait()
            happened.append("ended")

    async def answer() -> None:
        asked, going = asyncio.Event(), asyncio.Event()
        answered = Call.while_allowed(cast("Call", _Allowed()), parts(asked, going))
        assert await anext(answered) == b"first"
        task = asyncio.ensure_future(anext(answered))
        await asked.wait()
        for _ in range(5):
            task.cancel()
            await asyncio.sleep(0)
        assert happened == ["ending"] and not task.done()
        going.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(answer())
    assert happened == ["ending", "ended"]
