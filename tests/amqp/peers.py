"""Two ends of a connection, without a network between them."""

from __future__ import annotations

from typing import Any, TypeVar

from lazaretto.servicebus.amqp import Connection, ConnectionLimits, Link, Session
from lazaretto.servicebus.amqp.composites import Composite
from lazaretto.servicebus.amqp.events import Event, LinkAttached, Opened, SaslStarted, SessionBegun
from lazaretto.servicebus.amqp.frames import AMQP_HEADER, frame, read_frame
from lazaretto.servicebus.amqp.performatives import Begin, Open, Source, Target

E = TypeVar("E", bound=Event)


class Peers:
    """A server and a client, and what each was told. Bytes pass in pieces of `piece`, or whole."""

    def __init__(
        self,
        *,
        sasl: tuple[str, bytes | None] | None = ("ANONYMOUS", None),
        piece: int = 0,
        server: ConnectionLimits | None = None,
        client: ConnectionLimits | None = None,
        opened: bool = True,
    ) -> None:
        self.server = Connection(server=True, container_id="server", limits=server)
        self.client = Connection(server=False, container_id="client", limits=client, sasl=sasl)
        self.server_events: list[Event] = []
        self.client_events: list[Event] = []
        #: What the client sent, in the order in which it came.
        self.recorded: list[bytes] = []
        self._piece = piece
        if opened:
            self.pump()
            self.of(self.server_events, Opened)

    def pump(self) -> None:
        """Pass bytes until nobody has more to say. SASL is answered with yes."""
        while True:
            sent, answered = self.client.take(), self.server.take()
            if not sent and not answered:
                return
            if sent:
                self.recorded.append(sent)
            for event in self._pass(self.server, sent):
                if isinstance(event, SaslStarted):
                    self.server.authenticate()
                self.server_events.append(event)
            self.client_events += self._pass(self.client, answered)

    def _pass(self, end: Connection, data: bytes) -> list[Event]:
        step = self._piece or len(data) or 1
        events: list[Event] = []
        for at in range(0, len(data), step):
            events += end.receive(data[at : at + step])
        return events

    def of(self, events: list[Event], kind: type[E]) -> E:
        """Take the only event of a kind out of what an end was told."""
        found = [event for event in events if isinstance(event, kind)]
        assert len(found) == 1, events
        events[:] = [event for event in events if event is not found[0]]
        return found[0]

    def begin(self) -> tuple[Session, Session]:
        """Begin a session as the client. Returns both ends of it."""
        session = self.client.begin()
        self.pump()
        self.of(self.client_events, SessionBegun)
        return session, self.of(self.server_events, SessionBegun).session

    def link(
        self, session: Session, *, sends: bool, name: str = "l", credit: int = 0, **options: Any
    ) -> tuple[Link, Link]:
        """Attach a link as the client, accepted by the server. Returns both ends of it.

        `credit`: granted by whoever receives.
        """
        ours = session.attach(name, sends=sends, source=Source("q"), target=Target("q"))
        self.pump()
        theirs = self.of(self.server_events, LinkAttached).link
        theirs.session.accept(theirs, **options)
        self.pump()
        self.of(self.client_events, LinkAttached)
        if credit:
            receiver = theirs if sends else ours
            receiver.session.grant(receiver, credit)
            self.pump()
        return ours, theirs


def said(data: bytes) -> list[Composite]:
    """Return the performatives of frames."""
    place, found = 0, []
    while place < len(data):
        if data[place : place + 4] == b"AMQP":
            place += 8
            continue
        one = read_frame(data, place, 1 << 20)
        assert one is not None
        place = one.end
        if one.body is not None:
            found.append(one.body)
    return found


def opened_server(**options: Any) -> Connection:
    """Return a server that a peer has opened, without SASL."""
    server = Connection(server=True, container_id="server", **options)
    (event,) = server.receive(AMQP_HEADER + frame(0, Open("peer")))
    assert isinstance(event, Opened)
    server.take()
    return server


def begun_server(**options: Any) -> Connection:
    """Return a server on whose channel 0 a peer has begun a session."""
    server = opened_server(**options)
    server.receive(frame(0, Begin(None, 0, 100, 100)))
    server.take()
    return server
