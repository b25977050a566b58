"""Namespaces of an emulator: each a store, a broker, a clock and a door of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from lazaretto import aio
from lazaretto.aio.driver import driver_of
from lazaretto.emulator.template import Template
from lazaretto.engine.entities.queues import Recreate
from lazaretto.errors import EntityNotFound, InvalidOption, NotAllowed, QuotaExceeded
from lazaretto.model.checks import shown
from lazaretto.model.clock import MovableClock
from lazaretto.model.entities import EntityPath
from lazaretto.model.loopback import host_name
from lazaretto.servicebus.grants import ROOT_POLICY
from lazaretto.servicebus.server import Door

#: The name of a namespace: a label of a host's name.
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")
#: The first namespace, whose clients name none.
FIRST: Final = ""
#: Whom the audit log names.
_ACTOR: Final = "emulator"
#: Namespaces at the same time, beside the first.
MOST: Final = 500

#: Makes a door of a namespace: of its broker, its clock, and the name that is its own.
DoorMaker = Callable[[aio.AsyncBroker, MovableClock, str, "EmulatedNamespaces"], Door]


class OpenNamespace:
    """A namespace that clients use. `file`: its store's, which goes with it; None: the store is kept."""

    def __init__(self, door: Door, clock: MovableClock, file: Path | None) -> None:
        self.door = door
        self.clock = clock
        self.file = file
        self._stack = contextlib.AsyncExitStack()

    async def begin(self) -> None:
        """Look after its clients."""
        self.clock.watch(self.door.wake)
        await self._stack.enter_async_context(self.door.at_work())

    async def clear(self, path: str) -> None:
        """Empty a queue, a subscription, or a topic with all of its own, whatever state messages are in.

        Raises EntityNotFound, InvalidPath.
        """
        await driver_of(self.door.broker).perform(Recreate(EntityPath.parse(path), _ACTOR))

    def at_end(self, call: Callable[[], object]) -> None:
        """Have something called before its clients are told to go."""
        self._stack.callback(call)

    async def end(self) -> None:
        """Tell its clients to go, and throw its messages away unless its store is kept."""
        try:
            await self._stack.aclose()
        finally:
            await self.door.broker.close()
            if self.file is not None:
                await asyncio.to_thread(Template.remove, self.file)


class EmulatedNamespaces:
    """The namespaces of an emulator by their names.

    `store`: the first one's; None: a copy of the template, as of all others. `each_name`: whether a host's
    label or a key's name that no namespace has makes one.
    """

    def __init__(
        self, template: Template, make_door: DoorMaker, store: str | None = None, *, each_name: bool = False
    ) -> None:
        self._template = template
        self._make_door = make_door
        self._store = store
        self._each_name = each_name
        self._open: dict[str, OpenNamespace] = {}
        #: What is opened or ended is not opened or ended by others meanwhile.
        self._changing = asyncio.Lock()
        self._numbers = itertools.count(1)

    def names(self) -> list[str]:
        """Return the names of those beside the first."""
        return sorted(name for name in self._open if name != FIRST)

    def doors(self) -> Iterable[Door]:
        """Return the doors of all."""
        return [one.door for one in self._open.values()]

    async def door_of(self, host: str, key_name: str) -> Door:
        """Return the door of the namespace that a host's label names, else a key's name, else the first."""
        key_name = "" if key_name == ROOT_POLICY else key_name.lower()
        names = [name for name in (label_of(host), key_name) if _NAME.fullmatch(name)]
        name = next((name for name in names if name in self._open), None)
        if name is not None:
            return self._open[name].door
        if names and self._each_name:
            return (await self.open(names[0])).door
        return self._open[FIRST].door

    def named(self, name: str) -> OpenNamespace:
        """Return a namespace. Raises EntityNotFound."""
        namespace = self._open.get(name.lower())
        if namespace is None:
            raise EntityNotFound(f"no namespace is named {name!r}: PUT /$emulator/namespaces/{name} makes it")
        return namespace

    async def open(self, name: str) -> OpenNamespace:
        """Return a namespace, which is made if there is none. Raises InvalidOption, QuotaExceeded."""
        name = name.lower()
        if name != FIRST and not _NAME.fullmatch(name):
            raise InvalidOption(
                f"expected a namespace's name to be up to 50 letters, digits and -, got {shown(name)}"
            )
        async with self._changing:
            namespace = self._open.get(name)
            if namespace is None:
                if len(self._open) > MOST:
                    raise QuotaExceeded(f"expected at most {MOST} namespaces: delete some that are not used")
                namespace = self._open[name] = await self._make(name)
        return namespace

    async def _make(self, name: str) -> OpenNamespace:
        clock = MovableClock()
        file = None
        if name != FIRST or self._store is None:
            file = await asyncio.to_thread(self._template.copy, next(self._numbers))
        address = str(self._store if file is None else file)
        broker = await aio.connect(address, create=False, clock=clock)
        made = OpenNamespace(self._make_door(broker, clock, name, self), clock, file)
        await made.begin()
        return made

    async def close(self, name: str) -> None:
        """Throw a namespace away. Raises EntityNotFound, NotAllowed for the first."""
        if name == FIRST:
            raise NotAllowed("expected the name of a namespace that was made, got none: the first one stays")
        async with self._changing:
            namespace = self.named(name)
            del self._open[name.lower()]
            await namespace.end()

    async def reset(self, name: str) -> None:
        """Make a namespace anew, as it was in the beginning, its clock too; its clients connect again.

        Raises EntityNotFound, NotAllowed if its store is kept.
        """
        async with self._changing:
            namespace = self.named(name)
            if namespace.file is None:
                raise NotAllowed("expected a temporary store, got one that --store names, which is kept")
            made = await self._make(name.lower())
            made.door.port = namespace.door.port
            self._open[name.lower()] = made
            await namespace.end()

    async def end(self) -> None:
        """Throw all away."""
        async with self._changing:
            ends = [one.end() for one in self._open.values()]
            self._open.clear()
            await asyncio.gather(*ends)


@functools.lru_cache(1024)
def label_of(host: str) -> str:
    """Return the first label of a host's name that may name a namespace; "": it has none.

    Addresses and names without a dot, such as those of containers, name none.
    """
    name = host_name(host)
    first, _, rest = name.partition(".")
    return first if rest and not name.rpartition(".")[2].isdigit() else ""
