"""The server: one store, one event loop, any number of clients."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import logging
import ssl
import time
from collections.abc import AsyncIterator, Collection, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from lazaretto.aio import AsyncBroker, AsyncReceiver
from lazaretto.aio.driver import Then
from lazaretto.aio.posting import Settling, hold_for_clients
from lazaretto.errors import BrokerClosed, EntityNotFound, InvalidOption, LazarettoError, NotAllowed
from lazaretto.model.clock import Clock, SystemClock, to_datetime
from lazaretto.model.entities import EntityPath, QueueOptions, Subqueue, TopicOptions
from lazaretto.model.limits import Tier
from lazaretto.model.loopback import is_loopback
from lazaretto.model.messages import ReceivedMessage
from lazaretto.servicebus.answers import Settlement, verb_of
from lazaretto.servicebus.keys import Keys
from lazaretto.servicebus.limits import DoorLimits
from lazaretto.servicebus.losses import Losses
from lazaretto.servicebus.peer import Peer
from lazaretto.servicebus.promises import Promises
from lazaretto.servicebus.reception import Newcomer
from lazaretto.servicebus.signatures import AccessPolicy
from lazaretto.servicebus.trials import Trials
from lazaretto.serving.guard import Guard
from lazaretto.serving.listener import Listener

if TYPE_CHECKING:
    from datetime import datetime

    from lazaretto.serving.http import Application, HttpServer

_log = logging.getLogger("lazaretto.door")
#: Seconds without a word after which a client is told that the server is there. Clients that wait in a read
#: hold a lock of theirs until something comes.
_SILENCE: Final = 5.0
#: Seconds that requests over HTTP have to end when the server does.
_GRACE: Final = 10.0


#: Seconds after which deleted entities are looked for again if that has failed, and between two looks.
_AGAIN, _GATHERING = 1.0, 0.02


_WANTS_SESSION: Final = (
    "It is not possible for an entity that requires sessions to create a non-sessionful message receiver."
)
_HAS_NO_SESSIONS: Final = (
    "A sessionful message receiver cannot be created on an entity that does not require sessions. Ensure "
    "RequiresSession is set to true when creating a Queue or Subscription to enable sessionful behavior."
)


class Namespaces(Protocol):
    """The namespaces of a server that has several, each with a door of its own."""

    def doors(self) -> Iterable[Door]:
        """Return the doors of all that are open."""
        ...

    async def door_of(self, host: str, key_name: str) -> Door:
        """Return the door that clients mean who ask for a host and have a key of a name."""
        ...


class Door:
    """The broker and the access policies that all connections share.

    `clock`: the broker's, if that is not the machine's. `namespaces`: where it is one of several. `tier`: of
    Service Bus, whose limits hold; None: those of the premium tier, under the name of the standard one.
    """

    def __init__(
        self,
        broker: AsyncBroker,
        policies: Iterable[AccessPolicy] = (),
        limits: DoorLimits | None = None,
        *,
        insecure: bool = False,
        host_names: Iterable[str] = (),
        guard: Guard | None = None,
        clock: Clock | None = None,
        namespaces: Namespaces | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.broker = broker
        self.tier = tier
        self._clock = clock or SystemClock()
        self._namespaces = namespaces
        hold_for_clients(broker)
        #: Whether it serves other machines without keys or TLS.
        self.insecure = insecure
        #: Names in `Host`, beside those that nobody else has, by which it is asked where it asks for no key.
        self.host_names = frozenset(host_names)
        self.keys = Keys(broker, policies)
        self.limits = limits or DoorLimits()
        self.guard = guard or Guard(self.limits)
        self.promises = Promises()
        self.peers: set[Peer] = set()
        #: Connections on which nothing has been said.
        self.newcomers: set[asyncio.Transport] = set()
        #: Where clients connect: the port that was asked for, or a free one.
        self.port = 0
        #: How many messages clients were seen to work on at once, and who tries suspects, by path.
        self.widths: dict[str, int] = {}
        self.claims: dict[str, Trials] = {}
        self.losses = Losses()
        self._settlers: dict[str, AsyncReceiver] = {}
        self._settlings: dict[str, Settling] = {}
        self._sleepers: set[asyncio.Future[None]] = set()

    async def of(self, host: str, key_name: str) -> Door:
        """Return the door that a client means by the host that it asks for and the name of its key."""
        return self if self._namespaces is None else await self._namespaces.door_of(host, key_name)

    def doors(self) -> Iterable[Door]:
        """Return the doors of all namespaces of the server."""
        return (self,) if self._namespaces is None else self._namespaces.doors()

    def now(self) -> datetime:
        """Return the time of the broker."""
        return to_datetime(self._clock.now())

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds, or until the clock was moved."""
        moved = asyncio.get_running_loop().create_future()
        self._sleepers.add(moved)
        try:
            await asyncio.wait([moved], timeout=seconds)
        finally:
            self._sleepers.discard(moved)

    def wake(self) -> None:
        """Let those look at the clock again who wait for a time: it was moved."""
        for moved in self._sleepers:
            if not moved.done():
                moved.set_result(None)

    def settler(self, path: str) -> AsyncReceiver:
        """Return a receiver that settles, renews and peeks for everybody on a path."""
        found = self._settlers.get(path)
        if found is None:
            found = self._settlers[path] = self.broker.receiver(path)
        return found

    async def settle(self, path: str, messages: list[ReceivedMessage], wanted: Settlement) -> None:
        """Do with messages what a settlement says, with all or none. Raises SettlementError."""
        verb, details = verb_of(wanted)
        await getattr(self.settler(path), verb)(messages, **details)

    def begin_to_settle(
        self, path: str, messages: list[ReceivedMessage], wanted: Settlement, then: Then
    ) -> None:
        """Do the same; `then` is called with None, or with an error."""
        settling = self._settlings.get(path)
        if settling is None:
            settling = self._settlings[path] = Settling(self.settler(path))
        verb, details = verb_of(wanted)
        settling.settle(verb, messages, then, **details)

    async def size_of_messages(self, path: str) -> int:
        """Return how large a message can come for an entity, in bytes. Raises EntityNotFound, InvalidPath."""
        options: QueueOptions | TopicOptions
        try:
            options = (await self.broker.queue(path)).options
        except (EntityNotFound, NotAllowed):
            options = (await self.broker.topic(path)).options
        # A client that is told of more than its connection may hold in part sends it, and loses its link.
        return min(options.max_message_size, self.limits.partial_size)

    async def check_receivable(self, path: str, *, of_session: bool) -> QueueOptions:
        """Return the options of what can be received from.

        Raise EntityNotFound, or NotAllowed if a receiver of a session, or of none, cannot be had there."""
        found = EntityPath.parse(path)
        options = (await self.broker.queue(found.queue)).options
        requires = options.requires_session and found.subqueue is Subqueue.MAIN
        if of_session and found.subqueue is not Subqueue.MAIN:
            raise NotAllowed(f"Cannot create a MessageSession for a sub-queue. It is {path!r}")
        if requires != of_session:
            # As Service Bus says it: programs look for the words.
            wanted = _WANTS_SESSION if requires else _HAS_NO_SESSIONS
            raise NotAllowed(f"{wanted} It is {path!r}")
        return options

    async def check_exists(self, path: str) -> None:
        """Raise EntityNotFound, InvalidPath for a path at which there is nothing."""
        try:
            await self.broker.queue(EntityPath.parse(path).queue)
        except NotAllowed:
            await self.broker.topic(path)

    async def watch_deletions(self, last: int) -> None:
        """Detach the links of entities that are deleted, by whatever process. `last`: the last old event."""
        while True:
            try:
                found = await self.broker.events(last, max_wait=None)
            except BrokerClosed:
                return
            except LazarettoError as error:
                _log.error("deleted entities cannot be looked for: %s", error)
                await asyncio.sleep(_AGAIN)
                continue
            for event in found:
                last = event.position
                if event.kind == "queue_deleted":
                    await self._end_deleted(event.queue)
            # Events may come thick and fast.
            await asyncio.sleep(_GATHERING)

    async def _end_deleted(self, path: str) -> None:
        """Detach the links of an entity that was deleted; if there is one again, they go on with that."""
        anew = False
        with contextlib.suppress(LazarettoError):
            await self.check_exists(path)
            anew = True
        for peer in list(self.peers):
            (peer.links.look_anew if anew else peer.links.end_deleted)(path)
            peer.flush()

    async def check_access(self) -> None:
        """Detach links whose token has expired, or was signed with an entity's key that is gone."""
        scopes = {policy.scope for peer in self.peers for policy in peer.grants.policies()}
        try:
            current = [policy for scope in scopes for policy in await self.keys.of_entity(scope)]
        except LazarettoError as error:
            # A store that cannot be reached for a moment takes no rights away.
            _log.error("keys of entities cannot be read: %s", error)
            current = None
        for peer in list(self.peers):
            if current is not None:
                peer.grants.keep(current)
            peer.check_access()

    async def keep(self) -> None:
        """Tell silent clients that the server is there, and hang up on those who are slow or may not stay."""
        while True:
            await asyncio.sleep(_SILENCE)
            await self.check_access()
            now = time.monotonic()
            for peer in list(self.peers):
                peer.check_time(now)
                if now - peer.last_sent >= _SILENCE:
                    peer.beat()

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[Door]:
        """Look after the clients while the context lasts; at its end they are told to go."""
        last = await self.broker.last_event()
        keeping = asyncio.gather(self.keep(), self.watch_deletions(last))
        try:
            yield self
        finally:
            keeping.cancel()
            peers = list(self.peers)
            self.close_clients()
            await asyncio.gather(*(peer.finish() for peer in peers), keeping, return_exceptions=True)

    def close_clients(self) -> None:
        """Tell all clients that the door closes."""
        for peer in list(self.peers):
            peer.close()


@contextlib.asynccontextmanager
async def open_door(
    broker: AsyncBroker,
    *,
    host: str = "127.0.0.1",
    port: int = 5672,
    policies: Iterable[AccessPolicy] = (),
    tls: ssl.SSLContext | None = None,
    insecure: bool = False,
    limits: DoorLimits | None = None,
    tls_only: bool = True,
    more_ports: Iterable[int] = (),
    host_names: Iterable[str] = (),
    guard: Guard | None = None,
) -> AsyncIterator[Door]:
    """Serve clients of Service Bus and of AMQP 1.0 while the context lasts.

    One port serves AMQP, AMQP in web sockets, and administration over HTTP; the last two need the packages
    of `lazaretto[serve]`. `port`: 0 for a free one, which is in `Door.port` then. `policies`: whose keys
    clients sign their tokens with, or log in with; without any, everybody may do everything. `tls`: with
    the server's certificate; None: nothing is encrypted. `tls_only`: with a certificate, who does not
    encrypt is hung up on. `more_ports`: where the same is served. `host_names`: further names of the server
    that requests over HTTP may give in `Host` if there are no policies. `guard`: that of a server with other
    doors, whose limits hold for all of them; None: one of its own. Raises InvalidOption for an address
    beyond this machine, unless there are policies and TLS, or `insecure` is said.
    """
    policies = list(policies)
    check_address(host, tls if tls_only else None, policies, insecure=insecure)
    door = Door(broker, policies, limits, insecure=insecure, host_names=host_names, guard=guard)
    async with (
        door.at_work(),
        listen(door, host=host, ports=[port, *more_ports], tls=tls, tls_only=tls_only),
    ):
        yield door


@contextlib.asynccontextmanager
async def listen(
    door: Door,
    *,
    host: str,
    ports: Iterable[int],
    tls: ssl.SSLContext | None = None,
    tls_only: bool = True,
    control: Application | None = None,
) -> AsyncIterator[None]:
    """Let clients connect to a door, and to those of its namespaces, while the context lasts.

    `control`: what answers requests over HTTP below `/$emulator/`; None: nothing does.
    """
    http = _http(door, control)
    listener = Listener(door.guard, functools.partial(Newcomer, door, http), tls, tls_only=tls_only)
    door.port = listener.listen(host, ports)
    async with door.guard.watching():
        try:
            yield
        finally:
            for one in door.doors():
                one.close_clients()
            await listener.close()
            for transport in list(door.newcomers):
                transport.abort()
            if http is not None:
                await http.close(_GRACE)


def _http(door: Door, control: Application | None) -> HttpServer | None:
    """Return what speaks HTTP; None: its packages are not installed."""
    if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("websockets") is None:
        return None
    from lazaretto.servicebus.http import http_server

    return http_server(door, control)


def check_address(
    host: str, tls: ssl.SSLContext | None, policies: Collection[AccessPolicy], *, insecure: bool = False
) -> None:
    """Raise InvalidOption if others than this machine would be served without TLS or without keys."""
    if insecure or is_loopback(host) or (tls is not None and policies):
        return
    raise InvalidOption(
        f"expected an address of this machine, such as 127.0.0.1, got {host!r}: "
        "beyond it clients need TLS and a key"
    )
