"""The server: one store, one event loop, any number of clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from lazaretto.aio import AsyncBroker, AsyncReceiver
from lazaretto.aio.driver import Then
from lazaretto.aio.posting import Settling, hold_for_clients
from lazaretto.errors import BrokerClosed, EntityNotFound, LazarettoError, NotAllowed
from lazaretto.model.checks import shown
from lazaretto.model.clock import Clock, SystemClock, to_datetime
from lazaretto.model.entities import EntityPath, QueueOptions, Subqueue, TopicOptions
from lazaretto.model.limits import Tier
from lazaretto.model.loopback import address_of, host_name, is_loopback
from lazaretto.model.messages import ReceivedMessage
from lazaretto.servicebus.amqp import Link
from lazaretto.servicebus.answers import Settlement, verb_of
from lazaretto.servicebus.grants import AccessPolicy, Grants, Keys, Unauthorized
from lazaretto.servicebus.limits import DoorLimits
from lazaretto.servicebus.order import Order
from lazaretto.servicebus.plain_messages import Promises
from lazaretto.servicebus.transactions import Transactions
from lazaretto.servicebus.trials import Trials
from lazaretto.serving.guard import Guard

if TYPE_CHECKING:
    from datetime import datetime


#: Seconds within which the connections of a process that has died are lost.
_TOGETHER: Final = 0.5
T = TypeVar("T")
_log = logging.getLogger("lazaretto.door")
#: Seconds without a word after which a client is told that the server is there. Clients that wait in a read
#: hold a lock of theirs until something comes.
_SILENCE: Final = 5.0
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


class Links(Protocol):
    """The links of a client's connection. `Attached` says what each method does."""

    def order(self, link: Link) -> Order: ...

    def held(self, kind: type[T]) -> Iterator[T]: ...

    def drop(self, link: Link, *, lost: bool = False) -> None: ...

    def look_anew(self, path: str) -> None: ...

    def end_deleted(self, path: str) -> None: ...


class Client(Protocol):
    """A client's connection, as its links and the door see it. `Peer` says what each method does.

    `paused`: the client reads more slowly than it is sent to. `last_sent`: when it was, as `time.monotonic`
    has it.
    """

    door: Door
    grants: Grants
    transactions: Transactions
    trials: Trials
    paused: bool
    last_sent: float
    last_listed: tuple[tuple[str, int, int], str] | None

    @property
    def links(self) -> Links: ...

    def name_on(self, path: str) -> str: ...

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...

    def begin(self, size: int = 0) -> None: ...

    def end(self, size: int = 0) -> None: ...

    def flush(self) -> None: ...

    def flush_soon(self) -> None: ...

    def log_fault(self, error: BaseException) -> None: ...

    async def entered(self) -> None: ...

    async def enter(self, key_name: str | None = None) -> None: ...

    def check_access(self) -> None: ...

    def check_time(self, now: float) -> None: ...

    def beat(self) -> None: ...

    def close(self) -> None: ...

    async def finish(self) -> None: ...


def check_page(
    headers: Mapping[str, str], *, any_host: bool = False, host_names: Collection[str] = ()
) -> None:
    """Raise Unauthorized if a browser's page of another host makes a request, as its headers tell.

    A browser on this machine reaches the server for any page that it shows. Where keys are asked for, they
    keep such pages out; elsewhere the names of hosts do, also those that only now point to this machine.
    `any_host`: other machines may ask, too, by addresses or names without a dot, which no site has.
    `host_names`: further names of the server.
    """
    name = host_name(headers.get("host", ""))
    near = is_loopback(name) or (any_host and (address_of(name) is not None or "." not in name))
    if not near and name not in {one.lower() for one in host_names}:
        asked = "localhost, an address or a name without a dot" if any_host else "localhost"
        raise Unauthorized(
            f"expected {asked} in Host, because this server asks for no key, got {shown(name)}; "
            "name others with --host-name"
        )
    origin = headers.get("origin")
    if origin is None:
        return
    place = origin.partition("://")[2]
    if not (any_host and place == headers.get("host")) and not is_loopback(host_name(place)):
        raise Unauthorized("expected no page of another host, because this server asks for no key")


class Losses:
    """Connections that were lost a moment ago while their clients worked, by the address of these."""

    def __init__(self) -> None:
        self._lost: deque[tuple[float, str, object]] = deque()

    def note(self, address: str, connection: object) -> None:
        """Note that a connection was lost while its client had messages."""
        now = time.monotonic()
        self._lost.append((now, address, connection))
        # Longer than needed: who asks waits first.
        while self._lost[0][0] < now - 4 * _TOGETHER:
            self._lost.popleft()

    async def others(self, address: str, connection: object) -> bool:
        """Return whether another connection of an address is lost at about the same time as one just now."""
        lost = time.monotonic()
        await asyncio.sleep(_TOGETHER)
        return any(
            where == address and one is not connection and at >= lost - _TOGETHER
            for at, where, one in self._lost
        )


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
        self.peers: set[Client] = set()
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

    def check_page(self, headers: Mapping[str, str]) -> None:
        """Raise Unauthorized for a request of another host's page, which no key would keep out."""
        if not self.keys.wanted:
            check_page(headers, any_host=self.insecure, host_names=self.host_names)

    @property
    def is_alone(self) -> bool:
        """Whether all clients are in this namespace."""
        return self._namespaces is None

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
        receiver = self._settlers.get(path)
        if receiver is None:
            receiver = self._settlers[path] = self.broker.receiver(path)
        return receiver

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
        parsed = EntityPath.parse(path)
        options = (await self.broker.queue(parsed.queue)).options
        requires = options.requires_session and parsed.subqueue is Subqueue.MAIN
        if of_session and parsed.subqueue is not Subqueue.MAIN:
            raise NotAllowed(f"Cannot create a MessageSession for a sub-queue. It is {path!r}")
        if requires != of_session:
            # As Service Bus says it: programs look for the words.
            kind = _WANTS_SESSION if requires else _HAS_NO_SESSIONS
            raise NotAllowed(f"{kind} It is {path!r}")
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
                events = await self.broker.events(last, max_wait=None)
            except BrokerClosed:
                return
            except LazarettoError as error:
                _log.error("deleted entities cannot be looked for: %s", error)
                await asyncio.sleep(_AGAIN)
                continue
            for event in events:
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
