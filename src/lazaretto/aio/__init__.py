"""The API for asyncio: thousands of coroutines share one commit, and no thread waits for messages."""

from __future__ import annotations

import asyncio
import functools
import threading
from types import TracebackType
from typing import Any

from lazaretto.aio.consuming import consume
from lazaretto.aio.driver import Driver
from lazaretto.aio.mirrors import Mirror, OwnThread, mirror
from lazaretto.broker import broker as _sync
from lazaretto.broker.receiver import Receiver
from lazaretto.broker.repairs import Repair
from lazaretto.broker.sender import Sender
from lazaretto.broker.settling import NextSession
from lazaretto.broker.steps import steps_of
from lazaretto.broker.transaction import BrokerTransaction
from lazaretto.dialogs import Dialogs
from lazaretto.dialogs.dialog_transaction import DialogTransaction

__all__ = [
    "AsyncBroker",
    "AsyncDialogTransaction",
    "AsyncDialogs",
    "AsyncReceiver",
    "AsyncRepair",
    "AsyncSender",
    "AsyncTransaction",
    "connect",
]


async def connect(*arguments: Any, **named: Any) -> AsyncBroker:
    """Open the broker whose store is at `url`, for the running event loop. See lazaretto.connect."""
    loop = asyncio.get_running_loop()
    opening = loop.run_in_executor(None, functools.partial(_sync.connect, *arguments, **named))
    try:
        inner = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unused)
        raise
    return AsyncBroker(inner, Driver(inner._store))


def _close_unused(opening: asyncio.Future[_sync.Broker]) -> None:
    # In a thread of its own: a loop that ends has no executor any more.
    if opening.exception() is None:
        threading.Thread(target=opening.result().close, name="lazaretto-closing").start()


@mirror(Sender)
class AsyncSender(Mirror):
    """Sends to a queue or topic. Coroutines can share it. An async context manager."""


@mirror(
    Receiver,
    settles="ReceivedMessage",
    leaves_out=("take",),
)
class AsyncReceiver(Mirror):
    """Receives from a queue, a subqueue, or one session. Coroutines can share it. An async context manager.

    A receive that is cancelled gives its messages back, without an attempt counted.
    """

    def __init__(self, inner: Receiver, driver: Driver) -> None:
        super().__init__(inner, driver)
        self._accepting = asyncio.Lock()

    async def receive(self, *arguments: Any, **named: Any) -> Any:
        if self._inner._needs_session:
            # One of the coroutines locks the session for all of them.
            async with self._accepting:
                return await self._driver.run(steps_of(self._inner.receive, *arguments, **named))
        return await self._driver.run(steps_of(self._inner.receive, *arguments, **named))

    async def __aenter__(self) -> AsyncReceiver:
        if self._inner._needs_session and not isinstance(self._inner._wanted, NextSession):
            async with self._accepting:
                await self._driver.run(self._inner._accepting(0.0))
        return self


@mirror(BrokerTransaction, settles="ReceivedMessage")
class AsyncTransaction(OwnThread):
    """A unit of work. An async context manager: commits at the end, rolls back if an exception is raised.

    It has a thread of its own until it ends.
    """


@mirror(
    DialogTransaction,
    wraps={"messages": AsyncTransaction},
    settles="DialogMessage",
)
class AsyncDialogTransaction(OwnThread):
    """A transaction of dialogs. It has a thread of its own until it ends."""

    @property
    def messages(self) -> AsyncTransaction:
        return AsyncTransaction(self._inner.messages, self._driver, self._thread)


@mirror(
    Dialogs,
    wraps={"transaction": AsyncDialogTransaction},
    iterates=("conversations",),
    leaves_out=("activate",),
)
class AsyncDialogs(Mirror):
    """Dialogs: conversations between services. Offered by a broker as `broker.dialogs`."""


@mirror(Repair, iterates=("letters",), leaves_out=("run",))
class AsyncRepair(Mirror):
    """A repair of a broker. A service host or `lazaretto repair run` does its work."""


@mirror(
    _sync.Broker,
    wraps={"sender": AsyncSender, "receiver": AsyncReceiver, "transaction": AsyncTransaction},
    gives={"plan_repair": AsyncRepair, "repair": AsyncRepair},
    iterates=("dead_letters",),
    leaves_out=("run_repairs",),
)
class AsyncBroker(Mirror):
    """A store and all its operations, for the coroutines of one event loop. An async context manager."""

    def __init__(self, inner: _sync.Broker, driver: Driver) -> None:
        super().__init__(inner, driver)
        self.dialogs = AsyncDialogs(inner.dialogs, driver)

    def receiver(self, *arguments: Any, **named: Any) -> AsyncReceiver:
        return AsyncReceiver(self._inner._receiver(*arguments, **named, accept=False), self._driver)

    async def consume(self, *arguments: Any, **named: Any) -> Any:
        self._driver.refuse_other_loop()
        return await consume(self._inner, *arguments, **named)

    async def close(self) -> None:
        await self._driver.close(self._inner.close)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._driver.store.forked:
            self._inner.close()
        else:
            await asyncio.shield(self.close())
