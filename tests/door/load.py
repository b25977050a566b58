"""Azure's clients at work, and a network between them and a door that fails."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

import lazaretto
from lazaretto import Broker, ManualClock

T = TypeVar("T")

QUEUE = "work"
#: How long a client waits for messages, in seconds.
_WAIT = 0.3
#: How long a test waits for work to be done, in seconds.
_PATIENCE = 120


class Load:
    """Threads with Azure's clients that send and complete, whatever happens, and know what they were told.

    `address`: returns where the next client connects.
    """

    def __init__(self, address: Callable[[], str]) -> None:
        self._address = address
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.sending: set[str] = set()
        self.sent: set[str] = set()
        self.completing: set[str] = set()
        self.completed: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._work, args=(one,))
                         for one in (self._send, self._receive, self._receive)]  # fmt: skip

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_PATIENCE)
            assert not thread.is_alive()

    def wait_for(self, more: int) -> None:
        """Wait until so many more messages are completed."""
        wanted, end = len(self.completed) + more, time.monotonic() + _PATIENCE
        while len(self.completed) < wanted:
            assert time.monotonic() < end, (len(self.completed), wanted, self.errors)
            time.sleep(0.01)

    def _work(self, work: Callable[[ServiceBusClient], None]) -> None:
        while not self._stop.is_set():
            try:
                # A client that tries again would send some messages twice.
                with ServiceBusClient.from_connection_string(self._address(), retry_total=0) as client:
                    work(client)
            except (ServiceBusError, OSError) as error:
                self._note(error)

    def _note(self, error: Exception) -> None:
        with self._lock:
            self.errors[type(error).__name__] += 1

    def _send(self, client: ServiceBusClient) -> None:
        with client.get_queue_sender(QUEUE) as sender:
            while not self._stop.is_set():
                number = len(self.sending)
                names = [f"m{number + n}" for n in range(1 + number % 5)]
                self.sending.update(names)
                body = b"x" * (number % 3000)
                sender.send_messages([ServiceBusMessage(body, message_id=name) for name in names])
                self.sent.update(names)

    def _receive(self, client: ServiceBusClient) -> None:
        with client.get_queue_receiver(QUEUE) as receiver:
            while not self._stop.is_set():
                for message in receiver.receive_messages(10, _WAIT):
                    name = str(message.message_id)
                    self.completing.add(name)
                    try:
                        receiver.complete_message(message)
                    except MessageLockLostError as error:
                        self._note(error)
                    else:
                        self.note_completed(name)

    def note_completed(self, *names: str) -> None:
        """Note messages that the store says are completed."""
        with self._lock:
            self.completing.update(names)
            self.completed.update(names)

    def check(self, url: str) -> None:
        """What was sent is there, or was completed; what was completed is gone, and was so once."""
        with lazaretto.connect(url, clock=ManualClock(time.time() + 3600)) as broker:
            assert broker.check() == []
            left = {message.message_id for message in broker.peek(QUEUE, 100_000)}
            dead = {letter.message_id for letter in broker.dead_letters(QUEUE)}
        assert max(self.completed.values()) == 1
        assert not left & set(self.completed)
        assert left | dead <= self.sending
        assert self.sent - left - dead <= self.completing


def take_what_comes_back(broker: Broker, load: Load) -> None:
    """Complete messages, among them at least one whose lock has expired."""
    expired, end = 0, time.monotonic() + _PATIENCE
    with broker.receiver(QUEUE) as receiver:
        while not expired:
            assert time.monotonic() < end
            found = receiver.receive(50, max_wait=1.0)
            expired += sum(message.delivery_count > 0 for message in found)
            receiver.complete(found)
            load.note_completed(*(message.message_id for message in found))


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
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

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
