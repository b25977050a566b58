"""A Service Bus for tests: an emulator in this process, and a namespace of it for each test."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from lazaretto.emulator import Emulator, EmulatorOptions, open_emulator
from lazaretto.emulator.template import Template

T = TypeVar("T")


class ServiceBus(str):
    """The connection string of a namespace, with what a test does to the namespace."""

    def __new__(cls, emulator: LocalEmulator, name: str) -> ServiceBus:
        """Return that of a namespace."""
        return super().__new__(cls, emulator.connection_string(name))

    def __init__(self, emulator: LocalEmulator, name: str) -> None:
        self._emulator, self._name = emulator, name

    def advance(self, seconds: float) -> None:
        """Move the clock ahead: locks, schedules and times to live end, and who waits for them is woken."""
        self._emulator.advance(self._name, seconds)

    def clear(self, entity: str) -> None:
        """Take all messages out of a queue, a subscription, or a topic with all of its own."""
        self._emulator.clear(self._name, entity)

    def reset(self) -> None:
        """Make the namespace as it was in the beginning; its clients connect again by themselves."""
        self._emulator.reset(self._name)


class LocalEmulator:
    """An emulator in a thread of this process. `config`: a Config.json; None: no entities. A context manager.

    Raises InvalidOption for a wrong file.
    """

    def __init__(self, config: str | os.PathLike[str] | None = None) -> None:
        self._config = None if config is None else Path(config)
        self._stack = contextlib.ExitStack()
        self._numbers = itertools.count(1)

    def __enter__(self) -> LocalEmulator:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="lazaretto-")))
        try:
            template = Template.of_file(folder, self._config)
            template.prepare()
            ready: Future[Emulator] = Future()
            thread = threading.Thread(
                target=lambda: asyncio.run(self._serve(template, ready)),
                name="lazaretto-emulator",
                daemon=True,
            )
            thread.start()
            self._emulator = ready.result()
        except BaseException:
            self._stack.close()
            raise
        self._stack.callback(thread.join)
        self._stack.callback(lambda: self._loop.call_soon_threadsafe(self._ended.set))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    async def _serve(self, template: Template, ready: Future[Emulator]) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with open_emulator(template, EmulatorOptions()) as opened:
                ready.set_result(opened)
                await self._ended.wait()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @contextlib.contextmanager
    def namespace(self) -> Iterator[ServiceBus]:
        """Give a namespace of the entities that the file describes; it is thrown away afterwards."""
        name = f"test-{next(self._numbers)}"
        self._run(self._emulator.namespaces.open(name))
        try:
            yield ServiceBus(self, name)
        finally:
            self._run(self._emulator.namespaces.close(name))

    def connection_string(self, name: str) -> str:
        """Return how clients connect to a namespace."""
        return self._emulator.connection_string(name)

    def advance(self, name: str, seconds: float) -> None:
        """Move a namespace's clock ahead."""

        async def move() -> None:
            self._emulator.namespaces.named(name).clock.advance(seconds)

        self._run(move())

    def clear(self, name: str, entity: str) -> None:
        """Take all messages out of an entity of a namespace."""
        self._run(self._emulator.namespaces.named(name).clear(entity))

    def reset(self, name: str) -> None:
        """Make a namespace as it was in the beginning."""
        self._run(self._emulator.namespaces.reset(name))


class service_bus:  # noqa: N801 - used as the functions beside it
    """Give a Service Bus for one `with` or `async with` block: its connection string.

    `config`: the Config.json of Service Bus's own emulator; None: no entities. It is served by a thread of
    this process, at a free port, and gone afterwards.
    """

    def __init__(self, config: str | os.PathLike[str] | None = None) -> None:
        self._config = config
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ServiceBus:
        with contextlib.ExitStack() as stack:
            emulator = stack.enter_context(LocalEmulator(self._config))
            bus = stack.enter_context(emulator.namespace())
            self._stack = stack.pop_all()
        return bus

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    async def __aenter__(self) -> ServiceBus:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)
