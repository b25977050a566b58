"""An emulator at work: its ports, its namespaces, and what controls them."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from lazaretto.aio import AsyncBroker
from lazaretto.emulator.namespaces import FIRST, EmulatedNamespaces
from lazaretto.emulator.template import Template
from lazaretto.model.clock import MovableClock
from lazaretto.model.limits import Tier
from lazaretto.servicebus.grants import ROOT_POLICY, AccessPolicy, connection_string
from lazaretto.servicebus.limits import DoorLimits
from lazaretto.servicebus.listening import check_address, listen
from lazaretto.servicebus.server import Door
from lazaretto.serving.guard import Guard

if TYPE_CHECKING:
    from lazaretto.emulator.control import Control


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorOptions:
    """How an emulator serves.

    `ports`: 0 for a free one; all serve the same. `policies`: whose keys clients need; none: any key does.
    `store`: the address of the first namespace's store, which is kept; None: a temporary one. `each_name`:
    whether each key's name, or host's label, is a namespace that is made when a client first uses it.
    `console`: whether pages for people are served, too. `tier`: of Service Bus, whose limits hold; None:
    those of the premium tier, under the name of the standard one.
    """

    host: str = "127.0.0.1"
    ports: Sequence[int] = (0,)
    policies: Sequence[AccessPolicy] = ()
    tls: ssl.SSLContext | None = None
    insecure: bool = False
    host_names: Sequence[str] = ()
    store: str | None = None
    each_name: bool = False
    console: bool = False
    tier: Tier | None = None


class Emulator:
    """A running emulator. `port`: where clients connect first."""

    def __init__(self, namespaces: EmulatedNamespaces, options: EmulatorOptions) -> None:
        self.port = 0
        self.namespaces = namespaces
        self._options = options

    def connection_string(self, name: str) -> str:
        """Return how clients connect to a namespace by the name of their key."""
        options = self._options
        key, plain = "KEY" if options.policies else "any", options.tls is None
        return connection_string("localhost", self.port, name or ROOT_POLICY, key=key, plain=plain)


@contextlib.asynccontextmanager
async def open_emulator(template: Template, options: EmulatorOptions) -> AsyncIterator[Emulator]:
    """Serve namespaces while the context lasts; those whose store is temporary are gone afterwards.

    Raises InvalidOption, OSError for a port that another program has.
    """
    check_address(options.host, None, options.policies, insecure=options.insecure)
    limits = DoorLimits()
    guard = Guard(limits)

    def make_door(
        broker: AsyncBroker, clock: MovableClock, name: str, namespaces: EmulatedNamespaces
    ) -> Door:
        return Door(
            broker, _policies_of(options, name), limits, insecure=options.insecure,
            host_names=options.host_names, guard=guard, clock=clock, namespaces=namespaces, tier=options.tier,
        )  # fmt: skip

    namespaces = EmulatedNamespaces(template, make_door, options.store, each_name=options.each_name)
    try:
        door = (await namespaces.open(FIRST)).door
        emulator = Emulator(namespaces, options)
        control = _control(emulator, options)
        serving = listen(
            door, host=options.host, ports=options.ports, tls=options.tls, tls_only=False, control=control
        )
        async with serving:
            emulator.port = door.port
            yield emulator
    finally:
        await namespaces.end()


def _control(emulator: Emulator, options: EmulatorOptions) -> Control | None:
    """Return what answers those who run tests; None: the packages of HTTP are not installed."""
    if importlib.util.find_spec("uvicorn") is None:
        return None
    from lazaretto.emulator.control import Control

    consoles = None
    if options.console:
        from lazaretto.emulator.control import ConsoleDesk

        consoles = ConsoleDesk(options.host, options.host_names)
    return Control(emulator.namespaces, emulator.connection_string, consoles)


def _policies_of(options: EmulatorOptions, name: str) -> list[AccessPolicy]:
    """Return the policies of a namespace: its own name stands for the server's first key, too."""
    root = next((one for one in options.policies if one.name == ROOT_POLICY), None)
    own = [] if name == FIRST or root is None else [dataclasses.replace(root, name=name)]
    return [*options.policies, *own]
