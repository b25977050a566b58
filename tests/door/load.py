"""Azure's clients at work, and a network between them and a door that fails."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError
from load import PATIENCE, QUEUE, Load

from lazaretto import Broker

T = TypeVar("T")

#: How long a client waits for messages, in seconds.
_WAIT = 0.3


class SdkLoad(Load):
    """Azure's clients at work. `address`: returns where the next client connects."""

    def __init__(self, address: Callable[[], str]) -> None:
        super().__init__()
        self._address = address

    def send(self) -> None:
        self._with_clients(self._send)

    def receive(self) -> None:
        self._with_clients(self._receive)

    def _with_clients(self, work: Callable[[ServiceBusClient], None]) -> None:
        while not self.stopped:
            try:
                # A client that tries again would send some messages twice.
                with ServiceBusClient.from_connection_string(self._address(), retry_total=0) as client:
                    work(client)
            except (ServiceBusError, OSError) as error:
                self.note(error)

    def _send(self, client: ServiceBusClient) -> None:
        with client.get_queue_sender(QUEUE) as sender:
            while not self.stopped:
                number = len(self.sending)
                names = [f"m{number + n}" for n in range(1 + number % 5)]
                self.sending.update(names)
                body = b"x" * (number % 3000)
                sender.send_messages([ServiceBusMessage(body, message_id=name) for name in names])
                self.sent.update(names)

    def _receive(self, client: ServiceBusClient) -> None:
        with client.get_queue_receiver(QUEUE) as receiver:
            while not self.stopped:
                for message in receiver.receive_messages(10, _WAIT):
                    name = str(message.message_id)
                    self.completing.add(name)
                    try:
                        receiver.complete_message(message)
                    except MessageLockLostError as error:
                        self.note(error)
                    else:
                        self.note_completed([name])


def take_what_comes_back(broker: Broker, load: Load) -> int:
    """Complete all messages, also those that are locked, and return of how many the lock had expired."""
    expired, end = 0, time.monotonic() + PATIENCE
    with broker.receiver(QUEUE) as receiver:
        while broker.queue(QUEUE).counts.total:
            assert time.monotonic() < end
            found = receiver.receive(50, max_wait=1.0)
            expired += sum(message.delivery_count > 0 for message in found)
            receiver.complete(found)
            load.note_completed(message.message_id for message in found)
    return expired


class Network:
    """What is between clients and a door. It may freeze, so that nothing arrives, or be cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self.port = 0

    def __enter__(self) -> Network:
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._connect, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self.thaw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thaw()
        self.cut()
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def freeze(self) -> None:
        """Let nothing through; what is sent arrives later."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def thaw(self) -> None:
        """Let everything through."""
        self._loop.call_soon_threadsafe(self._flows.set)

    def cut(self) -> None:
        """End all connections; what was on its way is lost."""
        self._do(self._abort())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _abort(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError):
            from_door, to_door = await asyncio.open_connection("127.0.0.1", self._to)
            self._writers.add(to_door)
            await asyncio.gather(self._pass(reader, to_door), self._pass(from_door, writer))
            self._writers.discard(to_door)
        self._writers.discard(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
