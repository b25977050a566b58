"""One client's connection: its transport, its login, and what is under way for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, cast

from lazaretto.errors import LazarettoError
from lazaretto.servicebus.amqp import Connection
from lazaretto.servicebus.amqp.conditions import CONNECTION_FORCED, NOT_ALLOWED, RESOURCE_LIMIT_EXCEEDED
from lazaretto.servicebus.amqp.events import (
    Event,
    Opened,
    SaslStarted,
)
from lazaretto.servicebus.amqp.states import ConnectionState
from lazaretto.servicebus.attached import Attached
from lazaretto.servicebus.consumer import Consumer
from lazaretto.servicebus.grants import Grants, Unauthorized, name_of_login
from lazaretto.servicebus.limits import DoorLimits
from lazaretto.servicebus.nodes import Browser
from lazaretto.servicebus.server import Door
from lazaretto.servicebus.transactions import Transactions
from lazaretto.servicebus.trials import Trials
from lazaretto.serving.guard import Seat

#: Seconds over which frames without a message are counted.
_SPAN = 1.0
T = TypeVar("T")
_log = logging.getLogger("lazaretto.door")
#: Seconds of silence that a client has to bear at least, and those after which it is told anyway that the
#: server is there.
_SHORTEST_IDLE: Final = 1.0
_LONG_IDLE: Final = 30.0
#: Seconds until a client is read again whose messages must be stored first.
_CROWDED: Final = 0.01
#: How long the end of a connection waits for what was begun on it, in seconds.
_LONGEST_END: Final = 10.0
#: Random numbers, which clients put into what they call themselves.
_RANDOM: Final = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")


class Watch:
    """Activity of one client. Times are on the monotonic clock."""

    def __init__(self, limits: DoorLimits, now: float) -> None:
        self._limits = limits
        self._opened = False
        self._linked = now
        self._heard = now
        self._received = 0
        self._read = 0
        self._moved = now
        self._flows = 0
        self._total = 0
        self._span = now

    def take(self, size: int, flows: int, now: float, *, opened: bool) -> float:
        """Note bytes that came, and frames without a message so far. Return for how long to read nothing."""
        self._heard = now
        self._received += size
        self._total = flows
        if opened and not self._opened:
            self._opened, self._linked = True, now
        if now - self._span >= _SPAN:
            self._span, self._flows = now, flows
        return max(0.0, self._span + _SPAN - now) if flows - self._flows > self._limits.flows else 0.0

    @property
    def overfull(self) -> bool:
        """Whether the client has sent more than it may before it has logged in."""
        return self._received > self._limits.opening_size or self._total > self._limits.opening_frames

    def overdue(self, now: float, *, linked: bool, read: int, waiting: int) -> str | None:
        """Return what the client should have done by now; None: nothing.

        `linked`: whether it has links. `read`: the bytes that it has read so far. `waiting`: those that wait.
        """
        limits = self._limits
        if linked:
            self._linked = now
        if not waiting or read != self._read:
            self._read, self._moved = read, now
        for since, allowed, what in (
            (self._heard, limits.idle_seconds, "was inactive"),
            (self._linked, limits.linking_seconds, "had no link"),
            (self._moved, limits.stalled_seconds, "read nothing"),
        ):
            if now - since > allowed:
                return f"the connection {what} for more than the allowed {allowed * 1000:.0f} milliseconds"
        return None


class Peer(asyncio.Protocol):
    """A connection to one client. Everything happens on the loop; the store is asked by coroutines."""

    def __init__(self, door: Door, seat: Seat) -> None:
        self.door = door
        self._seat = seat
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
        self.grants = Grants(door.keys, door.guard, seat)
        #: What the client has said of the namespace that it means.
        self._host = self._key_name = ""
        self._entering: asyncio.Task[None] | None = None
        self.transactions = Transactions(lambda link: self.links.entities_beside(link))
        self._watch = Watch(door.limits, self.last_sent)
        #: What the last list of sessions was of, with where the next page begins, and its last session.
        self.last_listed: tuple[tuple[str, int, int], str] | None = None
        self._sent = 0
        #: Bytes of messages in part and in transactions, and of those on their way into the store.
        self._held = self._storing = 0
        #: Calls of the store that nobody awaits and that are not answered, and who waits for their end.
        self._begun = 0
        self._ended: asyncio.Future[None] | None = None
        #: Whether what there is to say is sent soon.
        self._flushing = False
        #: Whether nothing is read for now: others have their turn, or the client floods.
        self._resting = False
        #: When to say again that this end is there, to a client that waits only a short time for it.
        self._beating: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.links: Attached = Attached(self)
        self.trials = Trials(lambda: self.links.held(Consumer), door.claims)
        self._on: dict[type[Event], Callable[[Any], None]] = {
            SaslStarted: self._start_sasl,
            Opened: self._open,
            **self.links.on,
        }

    # The transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other event loops than asyncio's own do not derive theirs from its class.
        self._transport = cast("asyncio.Transport", transport)
        limits = self.door.limits
        self._seat.end = self._end
        self.door.peers.add(self)
        self._transport.set_write_buffer_limits(limits.write_buffer)

    def _end(self) -> None:
        """Hang up, as on a client that does not log in, or holds too much."""
        if self._transport is None:
            return
        if self._connection.state is ConnectionState.OPENED and not self._transport.get_write_buffer_size():
            if self._seat.known:
                text = (
                    "expected less of messages in part, or in transactions: the server holds too much of them"
                )
                self._connection.close(RESOURCE_LIMIT_EXCEEDED, text)
            else:
                self._connection.close(CONNECTION_FORCED, "expected a login in time, or a token")
            self.flush()
            self._transport.close()
        else:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._beating is not None:
            self._beating.cancel()
        self.door.peers.discard(self)
        self._seat.leave()
        # A client that says goodbye has settled what it was working on, or lets its locks expire.
        lost = self._connection.state is ConnectionState.OPENED
        if lost and any(one.holds for one in self.links.held(Consumer)):
            self.door.losses.note(self.grants.address, self)
        self.links.drop_all(lost=lost)

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

    def _hold(self) -> None:
        """Note what the client's messages take that are not stored."""
        size = self._connection.partial_size + self.transactions.size
        if size != self._held and self._transport is not None:
            self._held = size
            self.door.guard.hold(self._seat, size)

    @property
    def _waits_for_store(self) -> bool:
        """Whether nothing is read, since what was sent must be stored first."""
        return self._storing > 0 and self.door.guard.is_crowded

    @property
    def flows(self) -> int:
        """Frames so far that carried neither a message nor what became of one."""
        return self._connection.flows

    def _note(self, size: int) -> float:
        """Return for how long to read nothing."""
        opened = self._connection.state is ConnectionState.OPENED
        pause = self._watch.take(size, self.flows, time.monotonic(), opened=opened)
        if not self._seat.known and self._watch.overfull and self._transport is not None:
            self._transport.abort()
        return max(pause, _CROWDED) if self._waits_for_store else pause

    def _read_on(self) -> None:
        self._resting = False
        if self._transport is None:
            return
        if self._connection.unread or self._waits_for_store:
            self._take(b"", self.door.limits.frames)
        if not self._resting and not self._transport.is_closing():
            self._transport.resume_reading()

    def check_time(self, now: float) -> None:
        """Hang up on a client that does nothing for too long."""
        if self._transport is None or self._connection.state is not ConnectionState.OPENED:
            return
        waiting = self._transport.get_write_buffer_size()
        linked = self.links.any
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
        links: list[Consumer | Browser] = [*self.links.held(Consumer), *self.links.held(Browser)]
        for one in links:
            one.look()

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
        self._hold()
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
        self._host = event.open.hostname or ""
        self._entering = self.start(self.enter())
        if not self.door.keys.wanted:
            self.grants.know()
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
        self.links.drop_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_END):
                while self._tasks:
                    await asyncio.wait(list(self._tasks))
                if self._begun:
                    self._ended = asyncio.get_running_loop().create_future()
                    await self._ended

    def begin(self, size: int = 0) -> None:
        """Note that a call of the store begins that nobody awaits. `size`: bytes of what it stores."""
        self._begun += 1
        self._storing += size
        self.door.guard.storing += size

    def end(self, size: int = 0) -> None:
        """Note that such a call is answered."""
        self._begun -= 1
        self._storing -= size
        self.door.guard.storing -= size
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

    async def entered(self) -> None:
        """Wait until the client is in the namespace that it asked for as it connected."""
        if self._entering is not None:
            # Of several who wait, one may be cancelled.
            await asyncio.shield(self._entering)

    async def enter(self, key_name: str | None = None) -> None:
        """Let the client into the namespace that it means. Raises Unauthorized if it is at work in another.

        `key_name`: the name of a key that it has; None: as before.
        """
        self._key_name = self._key_name if key_name is None else key_name
        door = await self.door.of(self._host, self._key_name)
        if door is self.door or self._transport is None:
            return
        if self.links.entities:
            raise Unauthorized("expected a key of the namespace that this connection uses, got another's")
        self.door.peers.discard(self)
        door.peers.add(self)
        self.door, self.grants = door, Grants(door.keys, door.guard, self._seat)

    def name_on(self, path: str) -> str:
        """Return a name for the client by which people know it: as it calls itself, and where it is."""
        opened = self._connection.remote_open
        own = _RANDOM.sub("", opened.container_id).strip(" -_:.") if opened is not None else ""
        return self.grants.name_on(path, own)

    def _start_sasl(self, event: SaslStarted) -> None:
        # The other mechanisms give no right: that is for tokens.
        if event.init.mechanism == "PLAIN":
            self.start(self._log_in(event.init.initial_response or b""))
        else:
            self._connection.authenticate()

    async def _log_in(self, response: bytes) -> None:
        outcome = 0
        try:
            await self.enter(name_of_login(response))
            await self.grants.log_in(response)
        except LazarettoError as error:
            if not isinstance(error, Unauthorized):
                self.log_fault(error)
            outcome = 1
        self._connection.authenticate(outcome)
        self.flush()

    def check_access(self) -> None:
        """Detach the links whose token has expired."""
        self.links.check_access()
        self.flush()
