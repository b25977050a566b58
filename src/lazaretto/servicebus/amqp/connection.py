"""A connection of AMQP 1.0: bytes in, events out. No socket, no clock, no thread."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from lazaretto.servicebus.amqp.composites import Composite
from lazaretto.servicebus.amqp.conditions import (
    FRAMING_ERROR,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
    AmqpError,
)
from lazaretto.servicebus.amqp.events import (
    Closed,
    Event,
    Failed,
    Opened,
    SaslAnswered,
    SaslStarted,
    SessionBegun,
    SessionEnded,
)
from lazaretto.servicebus.amqp.frames import (
    AMQP_HEADER,
    HEADER_SIZE,
    HEARTBEAT,
    LEAST_FRAME_SIZE,
    SASL_HEADER,
    Frame,
    FrameType,
    frame,
    read_frame,
)
from lazaretto.servicebus.amqp.handles import Names
from lazaretto.servicebus.amqp.performatives import (
    Begin,
    Close,
    Disposition,
    End,
    Error,
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Transfer,
)
from lazaretto.servicebus.amqp.session import Session
from lazaretto.servicebus.amqp.states import (
    CONNECTION,
    ConnectionEvent,
    ConnectionState,
    SessionState,
    next_state,
)
from lazaretto.servicebus.amqp.values import Symbol

_S, _E = ConnectionState, ConnectionEvent
_AWAITS_HEADER: Final = frozenset(
    {_S.START, _S.SASL_HEADER_SENT, _S.AUTHENTICATED, _S.HEADER_SENT, _S.OPEN_SENT_EARLY}
)
#: States in which the peer is told by a close what it did wrong.
_TELLS: Final = frozenset({_S.HEADERS_EXCHANGED, _S.OPEN_SENT, _S.OPEN_RECEIVED, _S.OPENED})
#: The largest frame that this end sends, whatever the peer takes.
_MOST_SENT_FRAME: Final = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one end of a connection.

    Options:
        max_frame_size: Maximum size of a frame, in bytes.
        channel_max: Highest number of a channel, and so of sessions less one.
        handle_max: Highest handle of a link, and so of links of a session less one.
        window: Frames of a session that may come before this end says more.
        partial: Maximum size of messages that have come in part, of all links, in bytes.
    """

    max_frame_size: int = 65_536
    channel_max: int = 255
    handle_max: int = 255
    window: int = 5_000
    partial: int = 64 << 20


class Connection:
    """One end of a connection.

    `receive` takes bytes and returns events; what must be sent gathers until `take`. A peer that breaks the
    protocol is told so by a detach, an end or a close, as the specification has it. `idle_time_out`:
    milliseconds without a frame after which this end hangs up, said in its open. `mechanisms`: what a server
    offers. `sasl`: the mechanism and the first answer of a client; None: no SASL.
    """

    def __init__(
        self,
        *,
        server: bool,
        container_id: str,
        hostname: str | None = None,
        idle_time_out: int | None = None,
        limits: ConnectionLimits | None = None,
        mechanisms: tuple[str, ...] = ("ANONYMOUS",),
        sasl: tuple[str, bytes | None] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        self.server = server
        self.limits = limits or ConnectionLimits()
        self.state = ConnectionState.START
        self.handle_max = self.limits.handle_max
        self._names = Names()
        self.partial_size = 0
        #: Frames so far that carried neither a message nor what became of one.
        self.flows = 0
        self.most_partial_size = self.limits.partial
        self.remote_max_frame_size = LEAST_FRAME_SIZE
        #: What the peer said when it opened the connection.
        self.remote_open: Open | None = None
        self._open = Open(
            container_id,
            hostname,
            self.limits.max_frame_size,
            self.limits.channel_max,
            idle_time_out,
            properties=properties,
        )
        self._mechanisms = mechanisms
        self._sasl = sasl
        #: Whether the client has chosen a mechanism.
        self._chosen = False
        self._challenged = False
        #: Sessions by this end's channels, and by the peer's.
        self.sessions: dict[int, Session] = {}
        self._remote: dict[int, Session] = {}
        #: Channels on which the peer has ended a session: some peers go on talking there.
        self._ended: set[int] = set()
        self._buffer = b""
        #: Whether bytes are left that `receive` has not looked at yet.
        self.unread = False
        self._out: list[bytes] = []
        self._events: list[Event] = []
        if not server:
            self._begin_as_client()

    # Bytes.

    def take(self) -> bytes:
        """Return what must be sent, once."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def receive(self, data: bytes, most: int | None = None) -> list[Event]:
        """Return what bytes from the peer mean. After Closed or Failed, nothing more is read.

        `most`: frames to look at; `unread` tells whether others are left, for the next call. Default: all.
        """
        events: list[Event] = []
        self._events = events
        data, place = self._buffer + data if self._buffer else data, 0
        rest = -1 if most is None else most
        try:
            while self.state is not _S.CLOSED and rest:
                rest -= 1
                if self.state is not _S.OPENED and self.state in _AWAITS_HEADER:
                    end = self._take_header(data, place)
                else:
                    frame = read_frame(data, place, self.limits.max_frame_size)
                    end = None if frame is None else frame.end
                    if frame is not None:
                        self._take_frame(frame)
                if end is None:
                    break
                place = end
        except AmqpError as error:
            self._fail(error)
        self._buffer = b"" if self.state is _S.CLOSED else data[place:]
        self.unread = rest == 0 and bool(self._buffer)
        # Events are not seen by the collector of cycles: kept here they would keep the connection for ever.
        self._events = []
        return events

    def send(self, channel: int, body: Composite) -> None:
        """Send a performative: for sessions."""
        self._out.append(frame(channel, body))

    def write(self, data: bytes) -> None:
        """Send a frame that is encoded: for sessions."""
        self._out.append(data)

    def amend(self, frame: bytes, instead: bytes) -> bool:
        """Send another frame in place of this one, if it is the last and not taken: for sessions."""
        if not self._out or self._out[-1] is not frame:
            return False
        self._out[-1] = instead
        return True

    def emit(self, event: Event) -> None:
        """Add an event: for sessions."""
        self._events.append(event)

    def beat(self) -> None:
        """Send a frame that says nothing, so that the peer does not take this end for dead."""
        self._out.append(HEARTBEAT)

    def _advance(self, event: ConnectionEvent) -> None:
        self.state = next_state(CONNECTION, self.state, event)

    def _fail(self, error: AmqpError) -> None:
        if self.state in _TELLS:
            self.close(error.condition, str(error))
        self.state = _S.CLOSED
        self._events.append(Failed(error))

    # Headers and SASL.

    def _begin_as_client(self) -> None:
        if self._sasl is not None:
            self._advance(_E.SEND_SASL_HEADER)
            self._out.append(SASL_HEADER)
        else:
            self._begin_amqp()

    def _begin_amqp(self) -> None:
        """Send AMQP's own header, and as a client the open behind it."""
        self._advance(_E.SEND_HEADER)
        self._out.append(AMQP_HEADER)
        if not self.server:
            self._send_open()

    def _take_header(self, data: bytes, place: int) -> int | None:
        came = data[place : place + HEADER_SIZE]
        offers_sasl = self.state in (_S.START, _S.SASL_HEADER_SENT)
        if offers_sasl and came == SASL_HEADER:
            self._advance(_E.RECEIVE_SASL_HEADER)
            if self.server:
                self._advance(_E.SEND_SASL_HEADER)
                self._out.append(SASL_HEADER)
                self._send_sasl(SaslMechanisms([Symbol(name) for name in self._mechanisms]))
        elif self.state is not _S.SASL_HEADER_SENT and came == AMQP_HEADER:
            self._advance(_E.RECEIVE_HEADER)
            if self.server:
                self._begin_amqp()
        elif AMQP_HEADER.startswith(came) or (offers_sasl and SASL_HEADER.startswith(came)):
            return None
        else:
            if self.server:
                self._out.append(SASL_HEADER if self.state is _S.START else AMQP_HEADER)
            raise AmqpError(FRAMING_ERROR, "expected the header of AMQP 1.0, got other bytes")
        return place + HEADER_SIZE

    def _send_sasl(self, body: Composite) -> None:
        self._out.append(frame(0, body, FrameType.SASL))

    def challenge(self, challenge: bytes) -> None:
        """Ask the client something, as a server."""
        self._challenged = True
        self._send_sasl(SaslChallenge(challenge))

    def authenticate(self, outcome: int = 0) -> None:
        """Let the client in, as a server. Outcome 1: its credentials are wrong. The connection ends then.

        Does nothing if the connection has ended meanwhile.
        """
        if self.state is not _S.SASL:
            return
        self._send_sasl(SaslOutcome(outcome))
        if outcome == 0:
            self._advance(_E.AUTHENTICATE)
        else:
            self.state = _S.CLOSED

    def _take_sasl(self, body: Composite) -> None:
        if self.server and isinstance(body, SaslInit) and not self._chosen:
            self._chosen = True
            if body.mechanism not in self._mechanisms:
                self._send_sasl(SaslOutcome(1))
                raise AmqpError(UNAUTHORIZED_ACCESS, f"expected an offered mechanism, got {body.mechanism!r}")
            self._events.append(SaslStarted(body))
        elif self.server and isinstance(body, SaslResponse) and self._challenged:
            self._challenged = False
            self._events.append(SaslAnswered(body.response))
        elif not self.server and isinstance(body, SaslMechanisms) and self._sasl is not None:
            mechanism, response = self._sasl
            if mechanism not in body.mechanisms:
                raise AmqpError(
                    UNAUTHORIZED_ACCESS, f"expected the peer to offer {mechanism}, got {body.mechanisms}"
                )
            self._send_sasl(SaslInit(mechanism, response, self._open.hostname))
        elif not self.server and isinstance(body, SaslChallenge):
            self._events.append(SaslAnswered(body.challenge))
        elif not self.server and isinstance(body, SaslOutcome):
            if body.outcome != 0:
                raise AmqpError(UNAUTHORIZED_ACCESS, f"expected the outcome 0 of SASL, got {body.outcome}")
            self._advance(_E.AUTHENTICATE)
            self._begin_amqp()
        else:
            raise AmqpError(NOT_ALLOWED, f"expected a step of SASL, got {type(body).__name__}")

    # The connection.

    def _send_open(self) -> None:
        self._advance(_E.SEND_OPEN)
        self._out.append(frame(0, self._open))

    def close(self, condition: str | None = None, description: str = "") -> None:
        """Close the connection, with an error or without. Does nothing if it is closed."""
        if (self.state, _E.SEND_OPEN) in CONNECTION:
            self._send_open()
        if self.state is _S.OPEN_RECEIVED:
            self._send_open()
        if (self.state, _E.SEND_CLOSE) not in CONNECTION:
            return
        self._advance(_E.SEND_CLOSE)
        self._out.append(frame(0, Close(None if condition is None else Error(condition, description))))

    def _take_frame(self, frame: Frame) -> None:
        body = frame.body
        if isinstance(body, Transfer | Disposition):
            # Nearly all that comes.
            session = self._remote.get(frame.channel) if self.state is _S.OPENED else None
            if session is not None and frame.type is FrameType.AMQP:
                session.receive(body, frame.payload)
                return
        else:
            self.flows += 1
        if body is None:
            return
        if frame.type is FrameType.SASL or self.state is _S.SASL:
            if frame.type is not FrameType.SASL or self.state is not _S.SASL:
                raise AmqpError(NOT_ALLOWED, f"expected no {type(body).__name__} now, got one")
            self._take_sasl(body)
            return
        if isinstance(body, Open):
            self._take_open(body)
        elif isinstance(body, Close):
            self._take_close(body)
        elif self.state is _S.CLOSE_SENT:
            return
        elif self.state is not _S.OPENED:
            raise AmqpError(NOT_ALLOWED, f"expected an open first, got {type(body).__name__}")
        elif isinstance(body, Begin):
            self._take_begin(frame.channel, body)
        elif isinstance(body, End):
            self._take_end(frame.channel, body)
        else:
            session = self._remote.get(frame.channel)
            if session is not None:
                session.receive(body, frame.payload)
            elif frame.channel not in self._ended:
                raise AmqpError(
                    FRAMING_ERROR, f"expected a channel with a session, got channel {frame.channel}"
                )

    def _take_open(self, body: Open) -> None:
        self._advance(_E.RECEIVE_OPEN)
        self.remote_open = body
        size = _MOST_SENT_FRAME if body.max_frame_size is None else body.max_frame_size
        self.remote_max_frame_size = max(LEAST_FRAME_SIZE, min(size, _MOST_SENT_FRAME))
        if self.state is _S.OPEN_RECEIVED:
            self._send_open()
        if self.state is _S.OPENED:
            self._events.append(Opened(body))

    def _take_close(self, body: Close) -> None:
        if self.state is _S.OPENED:
            self._out.append(frame(0, Close()))
        self._advance(_E.RECEIVE_CLOSE)
        self._events.append(Closed(body.error))

    # Sessions.

    def begin(self) -> Session:
        """Begin a session. Raises AmqpError if the peer takes no more."""
        session = self._add_session()
        session.send_begin()
        return session

    def _add_session(self) -> Session:
        assert self.remote_open is not None
        most = 65_535 if self.remote_open.channel_max is None else self.remote_open.channel_max
        free = next((at for at in range(most + 1) if at not in self.sessions), None)
        if free is None:
            raise AmqpError(RESOURCE_LIMIT_EXCEEDED, f"expected at most {most + 1} sessions, got one more")
        session = self.sessions[free] = Session(self, free, self.limits.window, self._names)
        return session

    def _take_begin(self, channel: int, begin: Begin) -> None:
        if channel > self.limits.channel_max:
            raise AmqpError(
                FRAMING_ERROR, f"expected a channel up to {self.limits.channel_max}, got {channel}"
            )
        if channel in self._remote:
            raise AmqpError(FRAMING_ERROR, f"expected a free channel, got {channel}")
        if begin.remote_channel is None:
            session = self._add_session()
            session.take_begin(channel, begin)
            session.send_begin()
        else:
            ours = self.sessions.get(begin.remote_channel)
            if ours is None:
                raise AmqpError(FRAMING_ERROR, f"expected the channel of a begin, got {begin.remote_channel}")
            session = ours
            session.take_begin(channel, begin)
        self._ended.discard(channel)
        self._remote[channel] = session
        if session.state is SessionState.MAPPED:
            self._events.append(SessionBegun(session))

    def _take_end(self, channel: int, body: End) -> None:
        session = self._remote.pop(channel, None)
        if session is None:
            if channel in self._ended:
                return
            raise AmqpError(FRAMING_ERROR, f"expected a channel with a session, got channel {channel}")
        self._ended.add(channel)
        session.take_end()
        del self.sessions[session.channel]
        self._events.append(SessionEnded(session, body.error))
