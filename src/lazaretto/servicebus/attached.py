"""The links of one connection: what each is for, and what comes on it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from lazaretto.aio import AsyncReceiver
from lazaretto.aio.posting import introduce
from lazaretto.broker.receiver import LONGEST_NAME
from lazaretto.broker.settling import NEXT_SESSION, NextSession
from lazaretto.errors import EntityNotFound, InvalidPath, LazarettoError
from lazaretto.model.actors import AMQP_CLIENT
from lazaretto.model.entities import EntityPath, QueueOptions, Subqueue
from lazaretto.servicebus.amqp import AmqpError, Link
from lazaretto.servicebus.amqp.conditions import INVALID_FIELD, NOT_IMPLEMENTED
from lazaretto.servicebus.amqp.events import (
    CreditChanged,
    DeliveriesUpdated,
    Event,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    MessageRefused,
    SessionEnded,
)
from lazaretto.servicebus.amqp.link import LinkSession
from lazaretto.servicebus.amqp.performatives import Coordinator, Source, Target
from lazaretto.servicebus.amqp.values import Described, Symbol, ULong
from lazaretto.servicebus.answers import TIMEOUT, condition_of, description_of
from lazaretto.servicebus.consumer import Consumer
from lazaretto.servicebus.grants import Right, Unauthorized, entity_of
from lazaretto.servicebus.nodes import (
    COPY,
    Browser,
    Coordination,
    Producer,
    Replies,
    Requests,
    is_node,
    without_node,
)
from lazaretto.servicebus.order import ALL, Order
from lazaretto.servicebus.server import Client

if TYPE_CHECKING:
    from lazaretto.aio import AsyncBroker


#: What JMS's clients call a topic that the server would have to make.
_TOPICS: Final = frozenset({"topic", "temporary-topic"})
#: What is left of a server that was killed is deleted after that time.
_OPTIONS: Final = QueueOptions(auto_delete_on_idle=timedelta(days=1))
#: `delete-on-close`: the queue is deleted when the link that made it is.
_LIFETIME: Final = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}
T = TypeVar("T")
#: Links to queues and topics.
_Entities = Producer | Consumer | Browser
_SESSION_FILTER: Final = "com.microsoft:session-filter"
#: What .NET's clients ask for to share a session, with the code that the filter may have instead of its name.
_SHARED_FILTERS: Final = ("com.microsoft:non-exclusive-session-filter", 83_483_426_830)
_LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"
_DESTINATION: Final = "com.microsoft:transfer-destination-address"
_TIMEOUT: Final = "com.microsoft:timeout"
#: How long a client waits for a session at most, in seconds, as at Service Bus.
_LONGEST_ACCEPT: Final = 65.0
#: Settle modes of a sender: everything it sends is settled, or the receiver may choose.
_RECEIVE_AND_DELETE: Final = 1
_MIXED: Final = 2
#: Ticks of .NET: tenths of a microsecond since the year 1.
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS_IN_1970: Final = 621_355_968_000_000_000


class Temporary:
    """The queues that were made for links of one connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queues: dict[Link, tuple[AsyncBroker, str]] = {}

    async def make(self, link: Link) -> None:
        """Make the queue of a link that asks for a dynamic one, and name it as the link's end.

        Raises AmqpError for a topic, Unauthorized without the right to make entities.
        """
        end = link.source if link.sends else link.target
        if not isinstance(end, Source | Target) or not end.dynamic:
            return
        if not _TOPICS.isdisjoint(end.capabilities or ()):
            raise AmqpError(
                NOT_IMPLEMENTED,
                "expected a queue or the address of a topic, got a topic that is dynamic: this server makes "
                "queues alone that live as long as a link; use a temporary queue",
            )
        name = f"temporary-{secrets.token_hex(16)}"
        self._client.grants.require(name, Right.MANAGE)
        broker = self._client.door.broker
        self._queues[link] = broker, name
        await broker.create_queue(name, _OPTIONS, actor=self._client.grants.actor(name, Right.MANAGE))
        named = msgspec.structs.replace(end, address=name, dynamic_node_properties=_LIFETIME)
        if isinstance(named, Source):
            link.source = named
        else:
            link.target = named

    def end(self, link: Link) -> None:
        """Delete the queue of a link, if it has one."""
        made = self._queues.pop(link, None)
        if made is not None:
            self._client.start(self._delete(*made))

    async def _delete(self, broker: AsyncBroker, name: str) -> None:
        # Somebody may have deleted it before.
        with contextlib.suppress(EntityNotFound):
            await broker.delete_queue(name, actor=self._client.grants.actor(name, Right.MANAGE))


class Attached:
    """The links that a client has attached, and those that are being attached."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._links: dict[Link, Producer | Consumer | Browser | Requests | Replies | Coordination] = {}
        self._attaching: dict[Link, asyncio.Task[Any]] = {}
        self._orders: dict[LinkSession, Order] = {}
        self._temporary = Temporary(client)
        #: Links that were detached, until they have let go of what they held.
        self._ending: set[Consumer] = set()
        #: What is done about events of links.
        self.on: dict[type[Event], Callable[[Any], None]] = {
            LinkAttached: self._attach,
            LinkDetached: lambda event: self.drop(event.link),
            SessionEnded: self._end_session,
            MessageReceived: self._receive,
            MessageRefused: self._pass_over,
            CreditChanged: self._look,
            DeliveriesUpdated: self._update,
        }

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._links or self._attaching)

    @property
    def entities(self) -> bool:
        """Whether some are to entities."""
        return any(isinstance(one, _Entities) for one in self._links.values())

    def held(self, kind: type[T]) -> Iterator[T]:
        """Yield the links of a kind."""
        return (one for one in self._links.values() if isinstance(one, kind))

    def entities_beside(self, link: Link) -> bool:
        """Whether links to entities are on a link's session."""
        return any(
            one.session is link.session for one, user in self._links.items() if isinstance(user, _Entities)
        )

    def order(self, link: Link) -> Order:
        """Return what was said on a link's session and is not done."""
        return self._orders.setdefault(link.session, Order())

    def _attach(self, event: LinkAttached) -> None:
        self._attaching[event.link] = self._client.start(self._answer_attach(event.link))

    async def _answer_attach(self, link: Link) -> None:
        try:
            await self.order(link).turn(ALL)
            await self._client.entered()
            if not is_node(entity_of(_address(link.source if link.sends else link.target))):
                self._client.door.guard.refuse_new_work()
            await self._temporary.make(link)
            if link.sends:
                await self._attach_receiver(link)
            else:
                await self._attach_sender(link)
        except LazarettoError as error:
            link.session.refuse(link, condition_of(error), description_of(error, self._client.grants.sees))
        finally:
            self._attaching.pop(link, None)
        self._client.flush()

    async def _attach_sender(self, link: Link) -> None:
        """Attach a link on which the client sends."""
        if isinstance(link.target, Coordinator):
            coordination = self._links[link] = Coordination(self._client, link)
            link.session.accept(link, max_message_size=self._client.door.limits.partial_size)
            coordination.intake.open()
            return
        name = entity_of(link.target.address if link.target is not None else None)
        if is_node(name):
            requests = self._links[link] = Requests(self._client, link, name)
            link.session.accept(link, max_message_size=self._client.door.limits.partial_size)
            requests.intake.open()
            return
        self._client.grants.require(name, Right.SEND)
        size = await self._client.door.size_of_messages(name)
        destination = _destination_of(link)
        if destination is not None:
            self._client.grants.require(destination, Right.SEND)
        producer = Producer(self._client, link, name, destination)
        self._links[link] = producer
        link.session.accept(link, max_message_size=size)
        producer.intake.open()

    async def _attach_receiver(self, link: Link) -> None:
        """Attach a link on which the client receives."""
        source = link.source or Source()
        name = entity_of(source.address)
        if is_node(name):
            self._links[link] = Replies(link, name, _address(link.target))
            link.session.accept(link)
            return
        self._client.grants.require(name, Right.LISTEN)
        session = _session_of(source)
        if source.distribution_mode == COPY:
            await self._attach_browser(link, name, session)
            return
        options = await self._client.door.check_receivable(name, of_session=session is not None)
        deletes = link.snd_settle_mode == _RECEIVE_AND_DELETE
        receiver = self._client.door.broker.receiver(
            name, mode="receive_and_delete" if deletes else "peek_lock", session=session
        )
        properties, filters = {}, source.filter
        if session is not None:
            await self._await_ending(name)
            accepted = await self._accept_session(link, receiver)
            filters = {_SESSION_FILTER: _in_form_of((filters or {})[_SESSION_FILTER], accepted)}
            assert receiver.session_locked_until is not None
            properties = {_LOCKED_UNTIL: _ticks(receiver.session_locked_until)}
        if link.snd_settle_mode == _MIXED:
            link.snd_settle_mode = 0
        link.session.accept(
            link, source=msgspec.structs.replace(source, filter=filters), properties=properties
        )
        if link.attached:
            introduce(receiver, name, AMQP_CLIENT, self._client.name_on(name))
            in_main = EntityPath.parse(name).subqueue is Subqueue.MAIN
            blames = options.blame_clients and in_main and not deletes
            self._links[link] = Consumer(self._client, link, name, receiver, deletes=deletes, blames=blames)
        else:
            await receiver.close()

    async def _attach_browser(self, link: Link, name: str, session: str | NextSession | None) -> None:
        """Attach a link on which the client looks at messages."""
        if session is not None:
            raise AmqpError(
                NOT_IMPLEMENTED,
                f"expected a source of the distribution mode {COPY} without a session, got one with it: "
                "this server shows the messages of all sessions",
            )
        await self._client.door.broker.queue(EntityPath.parse(name).queue)
        link.session.accept(link)
        if link.attached:
            self._links[link] = Browser(self._client, link, name)

    async def _await_ending(self, path: str) -> None:
        """Wait for links that were detached: a client may ask for a session again at once."""
        ending = [one.closed for one in self._ending if one.path.lower() == path.lower()]
        if ending:
            await asyncio.wait(ending, timeout=_LONGEST_ACCEPT)

    async def _accept_session(self, link: Link, receiver: AsyncReceiver) -> str:
        """Wait as long as the client wants for the session. Raises LazarettoError."""
        wait = link.properties.get(_TIMEOUT)
        seconds = wait / 1000 if isinstance(wait, int) and wait > 0 else _LONGEST_ACCEPT
        # Whoever knows the link's name may use the lock at every door, as Service Bus's clients expect.
        name = link.name if 0 < len(link.name) <= LONGEST_NAME else None
        accepted = await receiver.accept_session(min(seconds, _LONGEST_ACCEPT), name=name)
        if accepted is None:
            raise AmqpError(TIMEOUT, "expected a free session with messages, got none in time")
        return accepted

    def drop(self, link: Link, *, lost: bool = False) -> None:
        """Forget a link, and end what was begun for it."""
        attaching = self._attaching.pop(link, None)
        if attaching is not None:
            attaching.cancel()
        user = self._links.pop(link, None)
        if isinstance(user, Consumer):
            user.lose() if lost else user.detach()
            self._client.trials.give_up(user)
            self._client.trials.settled()
            self._ending.add(user)
            user.closed.add_done_callback(lambda _: self._ending.discard(user))
        elif isinstance(user, Browser):
            user.detach()
        elif isinstance(user, Coordination):
            self._client.transactions.drop(link)
        self._temporary.end(link)

    def _end_session(self, event: SessionEnded) -> None:
        for link in [*self._links, *self._attaching]:
            if link.session is event.session:
                self.drop(link)
        self._orders.pop(event.session, None)

    def _look(self, event: CreditChanged) -> None:
        user = self._links.get(event.link)
        if isinstance(user, Consumer | Browser | Replies):
            user.look()

    def _update(self, event: DeliveriesUpdated) -> None:
        by_link: dict[Link, list[Any]] = {}
        for delivery in event.deliveries:
            by_link.setdefault(delivery.link, []).append(delivery)
        for link, deliveries in by_link.items():
            user = self._links.get(link)
            if isinstance(user, Consumer):
                user.settle(deliveries, event.state, settled=event.settled)

    def _receive(self, event: MessageReceived) -> None:
        user = self._links.get(event.link)
        if isinstance(user, Producer | Requests | Coordination):
            user.take(event)

    def _pass_over(self, event: MessageRefused) -> None:
        user = self._links.get(event.link)
        if isinstance(user, Producer | Requests | Coordination):
            user.intake.top_up()

    def check_access(self) -> None:
        """Detach the links whose token has expired."""
        for link, user in list(self._links.items()):
            if isinstance(user, _Entities):
                try:
                    self._client.grants.require(
                        user.path, Right.SEND if isinstance(user, Producer) else Right.LISTEN
                    )
                except Unauthorized as error:
                    link.session.detach(link, condition_of(error), description_of(error))
                    self.drop(link)

    def look_anew(self, path: str) -> None:
        """Let the links of an entity that was made anew hand over what comes to that."""
        for link, user in self._links.items():
            if isinstance(user, Consumer | Browser) and _is_of(link, path):
                user.look_anew()

    def end_deleted(self, path: str) -> None:
        """Detach all links of an entity that was deleted, and refuse those that are being attached."""
        error = EntityNotFound(f"{path!r} was deleted")
        condition, text = condition_of(error), description_of(error)
        for link in [one for one in (*self._links, *self._attaching) if _is_of(one, path)]:
            self.drop(link)
            link.session.refuse(link, condition, text)
            link.session.detach(link, condition, text)

    def drop_all(self, *, lost: bool = False) -> None:
        """Forget all links. `lost`: their client is gone without a goodbye."""
        self._client.trials.end()
        for link in [*self._links, *self._attaching]:
            self.drop(link, lost=lost)


def _is_of(link: Link, path: str) -> bool:
    """Whether a link is to an entity, one of its subqueues, or a node of it."""
    end = link.source if link.sends else link.target
    if not isinstance(end, Source | Target):
        return False
    try:
        return EntityPath.parse(without_node(entity_of(end.address))).queue.lower() == path.lower()
    except InvalidPath:
        return False


def _session_of(source: Source) -> str | NextSession | None:
    """Return the session that a source asks for; None: no session. Raises AmqpError."""
    filters = source.filter or {}
    for name, value in filters.items():
        if {name, value.descriptor if isinstance(value, Described) else None} & {*_SHARED_FILTERS}:
            raise AmqpError(
                NOT_IMPLEMENTED,
                f"expected a receiver that has its session alone, got the filter {_SHARED_FILTERS[0]}: "
                "this server has no sessions that several receivers share",
            )
        if name != _SESSION_FILTER:
            # Whoever asks for some messages and gets all settles what it should not.
            raise AmqpError(
                NOT_IMPLEMENTED,
                f"expected no filter but {_SESSION_FILTER}, got {name}: this server has no selectors of "
                "receivers; choose messages by the rules of a subscription",
            )
    if _SESSION_FILTER not in filters:
        return None
    session = filters[_SESSION_FILTER]
    if isinstance(session, Described):
        session = session.value
    if session is None:
        return NEXT_SESSION
    if not isinstance(session, str):
        raise AmqpError(INVALID_FIELD, f"expected a session's id to be text, got {type(session).__name__}")
    return session


def _in_form_of(asked: Any, session: str) -> Any:
    """Return a session in the form of the filter: clients read no other, be it described or not."""
    return Described(asked.descriptor, session) if isinstance(asked, Described) else session


def _destination_of(link: Link) -> str | None:
    """Return where messages of a link go that its target only passes on; None: nowhere else."""
    address = link.properties.get(_DESTINATION)
    return entity_of(address) if isinstance(address, str) and address else None


def _ticks(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 10 + _TICKS_IN_1970


def _address(terminus: Source | Target | Coordinator | None) -> str | None:
    return None if terminus is None or isinstance(terminus, Coordinator) else terminus.address
