"""One client's connection: what it attaches, sends, receives and asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from lazaretto.aio import AsyncReceiver
from lazaretto.amqp import AmqpError, Connection, Link
from lazaretto.amqp.conditions import CONNECTION_FORCED, INVALID_FIELD, NOT_ALLOWED
from lazaretto.amqp.events import (
    CreditChanged,
    DeliveriesUpdated,
    Event,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    MessageRefused,
    Opened,
    SaslStarted,
    SessionEnded,
)
from lazaretto.amqp.performatives import Coordinator, Source, Target
from lazaretto.amqp.states import ConnectionState
from lazaretto.amqp.values import Described
from lazaretto.door.answers import TIMEOUT, condition_of, description_of
from lazaretto.door.consumer import Consumer
from lazaretto.door.grants import Grants
from lazaretto.door.nodes import Replies, Requests, is_node
from lazaretto.door.producer import Producer
from lazaretto.door.signatures import Right, Unauthorized, entity_of
from lazaretto.door.transactions import Coordination, Transactions
from lazaretto.door.watch import Watch
from lazaretto.errors import LazarettoError
from lazaretto.receiver import LONGEST_NAME, NEXT_SESSION, NextSession

if TYPE_CHECKING:
    from lazaretto.door.server import Door

T = TypeVar("T")

_log = logging.getLogger("lazaretto.door")
_SESSION_FILTER: Final = "com.microsoft:session-filter"
_LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"
_DESTINATION: Final = "com.microsoft:transfer-destination-address"
_TIMEOUT: Final = "com.microsoft:timeout"
#: How long a client waits for a session at most, in seconds, as at Service Bus.
_LONGEST_ACCEPT: Final = 65.0
#: Seconds of silence that a client has to bear at least, and those after which it is told anyway that the
#: server is there.
_SHORTEST_IDLE: Final = 1.0
_LONG_IDLE: Final = 30.0
#: How long the end of a connection waits for what was begun on it, in seconds.
_LONGEST_END: Final = 10.0
#: Settle modes of a sender: everything it sends is settled, or the receiver may choose.
_RECEIVE_AND_DELETE: Final = 1
_MIXED: Final = 2
#: Ticks of .NET: tenths of a microsecond since the year 1.
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS_IN_1970: Final = 621_355_968_000_000_000


class Peer(asyncio.Protocol):
    """A connection to one client. Everything happens on the loop; the store is asked by coroutines."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.paused = False
        self.last_sent = time.monotonic()
        self._connection = Connection(
            server=True,
            container_id="lazaretto",
            idle_time_out=round(door.limits.idle_seconds * 1000),
            limits=door.limits.of_connection(),
            mechanisms=("MSSBCBS", "PLAIN", "ANONYMOUS"),
        )
        self._transport: asyncio.Transport | None = None
        self.grants = Grants(door.keys, door.refusals)
        self.transactions = Transactions(self)
        self._watch = Watch(door.limits, self.last_sent)
        #: What the last list of sessions was of, with where the next page begins, and its last session.
        self.last_listed: tuple[tuple[str, int, int], str] | None = None
        self._sent = 0
        #: Calls of the store that nobody awaits and that are not answered, and who waits for their end.
        self._begun = 0
        self._ended: asyncio.Future[None] | None = None
        #: Whether what there is to say is sent soon.
        self._flushing = False
        #: Whether nothing is read for now: others have their turn, or the client floods.
        self._resting = False
        self._links: dict[Link, Producer | Consumer | Requests | Replies | Coordination] = {}
        self._opening: asyncio.TimerHandle | None = None
        #: When to say again that this end is there, to a client that waits only a short time for it.
        self._beating: asyncio.TimerHandle | None = None
        self._attaching: dict[Link, asyncio.Task[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on: dict[type[Event], Callable[[Any], None]] = {
            SaslStarted: self._start_sasl,
            Opened: self._open,
            LinkAttached: self._attach,
            LinkDetached: lambda event: self.drop(event.link),
            SessionEnded: self._end_session,
            MessageReceived: self._receive,
            MessageRefused: self._pass_over,
            CreditChanged: self._look,
            DeliveriesUpdated: self._update,
        }

    # The transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other event loops than asyncio's own do not derive theirs from its class.
        self._transport = cast("asyncio.Transport", transport)
        limits = self.door.limits
        address = transport.get_extra_info("peername")
        # The peer of a local socket has no address.
        self.grants.address = address[0] if isinstance(address, tuple) else ""
        if self._too_many():
            self._transport.abort()
            return
        self.door.peers.add(self)
        self._transport.set_write_buffer_limits(limits.write_buffer)
        self._opening = asyncio.get_running_loop().call_later(limits.opening_seconds, self._expect_open)

    def _too_many(self) -> bool:
        limits, peers, address = self.door.limits, self.door.peers, self.grants.address
        if len(peers) >= limits.connections:
            return True
        most = limits.connections_per_address
        return most < limits.connections and sum(one.grants.address == address for one in peers) >= most

    def _expect_open(self) -> None:
        if self._connection.state is not ConnectionState.OPENED and self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for timer in (self._opening, self._beating):
            if timer is not None:
                timer.cancel()
        self.door.peers.discard(self)
        for link in [*self._links, *self._attaching]:
            self.drop(link)

    def data_received(self, data: bytes) -> None:
        # Some transports go on for a moment after they were told to pause.
        self._take(data, 0 if self._resting else self.door.limits.frames)

    def _take(self, data: bytes, most: int) -> None:
        try:
            for event in self._connection.receive(data, most):
                act = self._on.get(type(event))
                if act is not None:
                    act(event)
        except Exception as error:
            self.log_fault(error)
            self._connection.close("amqp:internal-error", "see the server's log")
        pause = self._note(len(data))
        self.flush()
        transport = self._transport
        if transport is None or transport.is_closing() or self._resting:
            return
        if pause or self._connection.unread:
            self._resting = True
            transport.pause_reading()
            asyncio.get_running_loop().call_later(pause, self._read_on)

    @property
    def flows(self) -> int:
        """Frames so far that carried neither a message nor what became of one."""
        return self._connection.flows

    def _note(self, size: int) -> float:
        """Return for how long to read nothing."""
        opened = self._connection.state is ConnectionState.OPENED
        pause = self._watch.take(size, self.flows, time.monotonic(), opened=opened)
        if self._watch.overfull and self._transport is not None:
            self._transport.abort()
        return pause

    def _read_on(self) -> None:
        self._resting = False
        if self._transport is None:
            return
        if self._connection.unread:
            self._take(b"", self.door.limits.frames)
        if not self._resting and not self._transport.is_closing():
            self._transport.resume_reading()

    def check_time(self, now: float) -> None:
        """Hang up on a client that does nothing for too long."""
        if self._transport is None or self._connection.state is not ConnectionState.OPENED:
            return
        waiting = self._transport.get_write_buffer_size()
        linked = bool(self._links or self._attaching)
        overdue = self._watch.overdue(now, linked=linked, read=self._sent - waiting, waiting=waiting)
        if overdue is not None:
            self._connection.close(CONNECTION_FORCED, overdue)
            self.flush()
            # What it does not read would keep the socket open.
            self._transport.abort() if waiting else self._transport.close()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        for consumer in self.held(Consumer):
            consumer.look()

    def flush_soon(self) -> None:
        """Send what the connection has to say when all has been added that one commit answers.

        If nothing else is under way, that is now.
        """
        if self._begun == 0:
            self.flush()
        elif not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush_late)

    def _flush_late(self) -> None:
        if self._flushing:
            self.flush()

    def flush(self) -> None:
        """Send what the connection has to say."""
        self._flushing = False
        data = self._connection.take()
        if self._transport is None:
            return
        if data:
            self._transport.write(data)
            self._sent += len(data)
            self.last_sent = time.monotonic()
        if self._connection.state is ConnectionState.CLOSED:
            self._transport.close()

    def beat(self) -> None:
        """Say that this end is there, once the connection is open."""
        if self._connection.state is ConnectionState.OPENED:
            self._connection.beat()
            self.flush()

    def _open(self, event: Opened) -> None:
        """Promise to be heard of within the time that the client waits."""
        waits = (event.open.idle_time_out or 0) / 1000
        if 0 < waits < _SHORTEST_IDLE:
            text = f"expected idle-time-out to be at least {_SHORTEST_IDLE * 1000:.0f} milliseconds, or none"
            self._connection.close(NOT_ALLOWED, text)
        elif 0 < waits < _LONG_IDLE:
            self._beat_every(waits / 3)

    def _beat_every(self, seconds: float) -> None:
        if time.monotonic() - self.last_sent >= seconds / 2:
            self.beat()
        self._beating = asyncio.get_running_loop().call_later(seconds, self._beat_every, seconds)

    def close(self) -> None:
        """Tell the client that the door closes."""
        self._connection.close(CONNECTION_FORCED, "the server is stopping")
        self.flush()
        if self._transport is not None:
            self._transport.close()

    async def finish(self) -> None:
        """Wait for what was begun for the client: what it was promised is done, what waits is given back."""
        for link in [*self._links, *self._attaching]:
            self.drop(link)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_END):
                if self._tasks:
                    await asyncio.wait(list(self._tasks))
                if self._begun:
                    self._ended = asyncio.get_running_loop().create_future()
                    await self._ended

    def begin(self) -> None:
        """Note that a call of the store begins that nobody awaits."""
        self._begun += 1

    def end(self) -> None:
        """Note that such a call is answered."""
        self._begun -= 1
        if self._begun == 0 and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine beside the connection. A fault in it is logged, and the client hears nothing."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log_fault(error)

    def log_fault(self, error: BaseException) -> None:
        """Log what should not happen. Bodies and tokens are in no message of an error."""
        _log.error("a client's request failed: %s", type(error).__name__, exc_info=error)

    # Access.

    def _start_sasl(self, event: SaslStarted) -> None:
        # The other mechanisms give no right: that is for tokens.
        if event.init.mechanism == "PLAIN":
            self.start(self._log_in(event.init.initial_response or b""))
        else:
            self._connection.authenticate()

    async def _log_in(self, response: bytes) -> None:
        outcome = 0
        try:
            await self.grants.log_in(response)
        except LazarettoError as error:
            if not isinstance(error, Unauthorized):
                self.log_fault(error)
            await asyncio.sleep(self.door.limits.refusal_seconds)
            outcome = 1
        self._connection.authenticate(outcome)
        self.flush()

    def check_access(self) -> None:
        """Detach the links whose token has expired."""
        for link, held in list(self._links.items()):
            if isinstance(held, Producer | Consumer):
                try:
                    self.grants.require(held.path, Right.SEND if isinstance(held, Producer) else Right.LISTEN)
                except Unauthorized as error:
                    link.session.detach(link, condition_of(error), description_of(error))
                    self.drop(link)
        self.flush()

    # Links.

    def held(self, kind: type[T]) -> Iterator[T]:
        """Yield the links of a kind."""
        return (one for one in self._links.values() if isinstance(one, kind))

    def _attach(self, event: LinkAttached) -> None:
        self._attaching[event.link] = self.start(self._answer_attach(event.link))

    async def _answer_attach(self, link: Link) -> None:
        try:
            if link.sends:
                await self._attach_receiver(link)
            else:
                await self._attach_sender(link)
        except LazarettoError as error:
            link.session.refuse(link, condition_of(error), description_of(error))
        finally:
            self._attaching.pop(link, None)
        self.flush()

    async def _attach_sender(self, link: Link) -> None:
        """Attach a link on which the client sends."""
        if isinstance(link.target, Coordinator):
            coordination = self._links[link] = Coordination(self, link)
            link.session.accept(link)
            coordination.grant()
            return
        name = entity_of(link.target.address if link.target is not None else None)
        if is_node(name):
            requests = self._links[link] = Requests(self, link, name)
            link.session.accept(link)
            requests.grant()
            return
        self.grants.require(name, Right.SEND)
        size = await self.door.size_of_messages(name)
        destination = _destination_of(link)
        if destination is not None:
            self.grants.require(destination, Right.SEND)
        producer = Producer(self, link, name, destination)
        self._links[link] = producer
        link.session.accept(link, max_message_size=size)
        producer.grant()

    async def _attach_receiver(self, link: Link) -> None:
        """Attach a link on which the client receives."""
        source = link.source or Source()
        name = entity_of(source.address)
        if is_node(name):
            self._links[link] = Replies(link, name, _address(link.target))
            link.session.accept(link)
            return
        self.grants.require(name, Right.LISTEN)
        session = _session_of(source)
        await self.door.check_receivable(name, of_session=session is not None)
        deletes = link.snd_settle_mode == _RECEIVE_AND_DELETE
        receiver = self.door.broker.receiver(
            name, mode="receive_and_delete" if deletes else "peek_lock", session=session
        )
        properties, filters = {}, source.filter
        if session is not None:
            accepted = await self._accept_session(link, receiver)
            filters = {_SESSION_FILTER: accepted}
            assert receiver.session_locked_until is not None
            properties = {_LOCKED_UNTIL: _ticks(receiver.session_locked_until)}
        if link.snd_settle_mode == _MIXED:
            link.snd_settle_mode = 0
        link.session.accept(
            link, source=msgspec.structs.replace(source, filter=filters), properties=properties
        )
        if link.attached:
            self._links[link] = Consumer(self, link, name, receiver, deletes=deletes)
        else:
            await receiver.close()

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

    def drop(self, link: Link) -> None:
        """Forget a link, and end what was begun for it."""
        attaching = self._attaching.pop(link, None)
        if attaching is not None:
            attaching.cancel()
        held = self._links.pop(link, None)
        if isinstance(held, Consumer):
            held.detach()
        elif isinstance(held, Coordination):
            self.transactions.drop(link)

    def _end_session(self, event: SessionEnded) -> None:
        for link in [*self._links, *self._attaching]:
            if link.session is event.session:
                self.drop(link)

    def _look(self, event: CreditChanged) -> None:
        held = self._links.get(event.link)
        if isinstance(held, Consumer | Replies):
            held.look()

    def _update(self, event: DeliveriesUpdated) -> None:
        by_link: dict[Link, list[Any]] = {}
        for delivery in event.deliveries:
            by_link.setdefault(delivery.link, []).append(delivery)
        for link, deliveries in by_link.items():
            held = self._links.get(link)
            if isinstance(held, Consumer):
                held.settle(deliveries, event.state, settled=event.settled)

    def _receive(self, event: MessageReceived) -> None:
        held = self._links.get(event.link)
        if isinstance(held, Producer | Requests | Coordination):
            held.take(event)

    def _pass_over(self, event: MessageRefused) -> None:
        held = self._links.get(event.link)
        if isinstance(held, Producer):
            held.top_up()


def _session_of(source: Source) -> str | NextSession | None:
    """Return the session that a source asks for; None: no session. Raises AmqpError."""
    filters = source.filter or {}
    if _SESSION_FILTER not in filters:
        return None
    wanted = filters[_SESSION_FILTER]
    if isinstance(wanted, Described):
        wanted = wanted.value
    if wanted is None:
        return NEXT_SESSION
    if not isinstance(wanted, str):
        raise AmqpError(INVALID_FIELD, f"expected a session's id to be text, got {type(wanted).__name__}")
    return wanted


def _destination_of(link: Link) -> str | None:
    """Return where messages of a link go that its target only passes on; None: nowhere else."""
    given = link.properties.get(_DESTINATION)
    return entity_of(given) if isinstance(given, str) and given else None


def _ticks(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 10 + _TICKS_IN_1970


def _address(target: Target | Coordinator | None) -> str | None:
    return target.address if isinstance(target, Target) else None
