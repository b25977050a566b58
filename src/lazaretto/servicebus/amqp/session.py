"""A session of AMQP 1.0: windows, deliveries, and the links on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from lazaretto.servicebus.amqp.carrier import Carrier, Event
from lazaretto.servicebus.amqp.composites import Composite, encode_composite
from lazaretto.servicebus.amqp.conditions import (
    ERRANT_LINK,
    MESSAGE_SIZE_EXCEEDED,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    STOLEN,
    AmqpError,
    SessionError,
)
from lazaretto.servicebus.amqp.encode import NULL
from lazaretto.servicebus.amqp.handles import Handles, Names
from lazaretto.servicebus.amqp.link import (
    CreditChanged,
    Delivery,
    Link,
    LinkAttached,
    LinkDetached,
    LinkError,
    MessageReceived,
    MessageRefused,
    Oversize,
)
from lazaretto.servicebus.amqp.outgoing import Deliveries, DeliveriesUpdated, Disposed, Dispositions, Outgoing
from lazaretto.servicebus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Coordinator,
    DeliveryState,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Rejected,
    Source,
    Target,
    Transfer,
)
from lazaretto.servicebus.amqp.states import (
    LINK,
    SESSION,
    LinkEvent,
    LinkState,
    SessionEvent,
    SessionState,
    next_state,
)
from lazaretto.servicebus.amqp.windows import Windows, add, ranges

_LIVE: Final = (LinkState.ATTACH_RECEIVED, LinkState.ATTACHED)
ACCEPTED: Final = encode_composite(Accepted())


class SenderUpdated(Event, gc=False):
    """The peer says something about messages that it sent: those from `first` to `last` of a session."""

    session: Session
    first: int
    last: int
    state: DeliveryState | None
    settled: bool


class Session:
    """One session. `channel`: this end's. `names`: of the links of all sessions.

    Numbers of deliveries count within it.
    """

    def __init__(self, carrier: Carrier, channel: int, window: int, names: Names) -> None:
        self._carrier = carrier
        self._names = names
        self.channel = channel
        self.remote_channel: int | None = None
        self.state = SessionState.UNMAPPED
        self._handles = Handles(carrier.handle_max)
        self._windows = Windows(window)
        self._deliveries = Deliveries()
        self._outgoing = Outgoing(carrier, self._windows, channel)
        self._dispositions = Dispositions(carrier, channel)
        #: Links that are drained, and whose last frames wait for the peer's window.
        self._drained: set[Link] = set()

    def __repr__(self) -> str:
        return f"<Session on channel {self.channel} {self.state.value}>"

    @property
    def links(self) -> Mapping[int, Link]:
        """The links by this end's handles."""
        return self._handles.ours

    @property
    def unsettled(self) -> Mapping[int, Delivery]:
        """Sent deliveries that are not settled, by number."""
        return self._deliveries.unsettled

    def advance(self, event: SessionEvent) -> None:
        """Go to the next state. Raises AmqpError if the event may not happen now."""
        self.state = next_state(SESSION, self.state, event)

    # Beginning and ending.

    def send_begin(self) -> None:
        """Begin, or answer the peer's begin."""
        self.advance(SessionEvent.SEND_BEGIN)
        self._carrier.send(self.channel, self._windows.begin(self.remote_channel, self._carrier.handle_max))

    def take_begin(self, channel: int, begin: Begin) -> None:
        """Keep what the peer said of the session."""
        self.advance(SessionEvent.RECEIVE_BEGIN)
        self.remote_channel = channel
        self._windows.take_begin(begin)
        if begin.handle_max is not None:
            self._handles.remote_most = begin.handle_max

    def end(self, condition: str | None = None, description: str = "") -> None:
        """End the session, with an error or without. Does nothing if it has ended."""
        if (self.state, SessionEvent.SEND_END) not in SESSION:
            return
        self.advance(SessionEvent.SEND_END)
        self._outgoing.clear()
        error = None if condition is None else Error(condition, description)
        self._carrier.send(self.channel, End(error))

    def take_end(self) -> None:
        """Keep that the peer has ended the session, and answer."""
        answer = self.state is SessionState.MAPPED
        self.advance(SessionEvent.RECEIVE_END)
        for link in self._handles.theirs.values():
            self._carrier.partial_size -= link.pending_size
            self._names.free(link)
            link.state = LinkState.ENDED
        self._outgoing.clear()
        self._deliveries.clear()
        if answer:
            self._carrier.send(self.channel, End())

    def receive(self, body: Composite, payload: bytes) -> None:
        """Take a performative that came. What breaks the session's rules ends it, and nothing more."""
        if self.state is SessionState.END_SENT:
            return
        try:
            self._receive(body, payload)
        except SessionError as error:
            self.end(error.condition, str(error))

    def _receive(self, body: Composite, payload: bytes) -> None:
        if isinstance(body, Transfer):
            self._transferred(body, payload)
        elif isinstance(body, Disposition):
            self._disposed(body)
        elif isinstance(body, Flow):
            self._flowed(body)
        elif isinstance(body, Attach):
            self._attached(body)
        elif isinstance(body, Detach):
            self._detached(body)
        else:
            raise AmqpError(NOT_ALLOWED, f"expected a performative of a session, got {type(body).__name__}")

    # Links.

    def attach(
        self,
        name: str,
        *,
        sends: bool,
        source: Source | None,
        target: Target | Coordinator | None,
        snd_settle_mode: int = 2,
        rcv_settle_mode: int = 0,
        properties: Mapping[str, Any] | None = None,
    ) -> Link:
        """Attach a link to the peer."""
        link = Link(self, name, sends=sends)
        link.snd_settle_mode, link.rcv_settle_mode = snd_settle_mode, rcv_settle_mode
        self._carrier.send(self.channel, link.attach(self._handles.give(link), source, target, properties))
        return link

    def accept(
        self,
        link: Link,
        *,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        max_message_size: int = 0,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Answer the peer's attach, by default with its own source and target, unless it has detached."""
        if not self._awaits_answer(link):
            return
        link.max_message_size = max_message_size
        self._answer_attach(link, source or link.source, target or link.target, properties)
        self._look_at_drain(link)

    def refuse(
        self, link: Link, condition: str, description: str, info: Mapping[str, Any] | None = None
    ) -> None:
        """Answer the peer's attach with nothing, and detach with the reason, unless it has detached."""
        if not self._awaits_answer(link):
            return
        self._answer_attach(
            link, None if link.sends else link.source, link.target if link.sends else None, None
        )
        self.detach(link, condition, description, info)

    def _awaits_answer(self, link: Link) -> bool:
        return link.state is LinkState.ATTACH_RECEIVED and self.state is SessionState.MAPPED

    def _answer_attach(
        self,
        link: Link,
        source: Source | None,
        target: Target | Coordinator | None,
        properties: Mapping[str, Any] | None,
    ) -> None:
        """Answer the peer's attach. A peer that leaves no handle for it has its session ended."""
        try:
            self._carrier.send(
                self.channel, link.attach(self._handles.give(link), source, target, properties)
            )
        except SessionError as error:
            self.end(error.condition, str(error))

    def _attached(self, attach: Attach) -> None:
        self._handles.check(attach.handle)
        answered = self._handles.answered(attach)
        link = answered or Link(self, attach.name, sends=attach.role)
        link.take_attach(attach)
        self._handles.theirs[attach.handle] = link
        before = self._names.give(link)
        if before is not None and answered is None:
            before.session.give_up(before)
        if link.state is not LinkState.DETACH_SENT:
            self._carrier.emit(LinkAttached(link, attach))

    def give_up(self, link: Link) -> None:
        """Detach a link whose name the peer attaches again, in any session of the connection."""
        error = Error(STOLEN, "the link was attached again")
        if self._awaits_answer(link):
            self.refuse(link, STOLEN, str(error.description))
        elif link.attached and self.state is SessionState.MAPPED:
            self.detach(link, STOLEN, str(error.description))
        else:
            return
        link.given_up = True
        self._carrier.emit(LinkDetached(link, True, error))

    def detach(
        self,
        link: Link,
        condition: str | None = None,
        description: str = "",
        info: Mapping[str, Any] | None = None,
        *,
        closed: bool = True,
    ) -> None:
        """Detach a link, with an error or without. Does nothing if it is detached."""
        if (link.state, LinkEvent.SEND_DETACH) not in LINK or link.handle is None:
            return
        link.advance(LinkEvent.SEND_DETACH)
        self._drop(link)
        error = None if condition is None else Error(condition, description, dict(info) if info else None)
        self._carrier.send(self.channel, Detach(link.handle, closed, error))

    def _detached(self, detach: Detach) -> None:
        link = self._handles.find(detach.handle)
        answer = link.state is LinkState.ATTACHED
        link.advance(LinkEvent.RECEIVE_DETACH)
        self._handles.drop(detach.handle, link)
        self._names.free(link)
        self._drop(link)
        if answer and link.handle is not None:
            self._carrier.send(self.channel, Detach(link.handle, bool(detach.closed)))
        if not link.given_up:
            self._carrier.emit(LinkDetached(link, bool(detach.closed), detach.error))

    def _drop(self, link: Link) -> None:
        """Forget what is on its way on a link: whoever settles it later speaks of nothing."""
        self._carrier.partial_size -= link.pending_size
        link.drop_partial()
        if link.sends:
            self._outgoing.drop(link)
            self._deliveries.drop(link)
            self._drained.discard(link)

    # Credit and windows.

    def grant(self, link: Link, credit: int, *, drain: bool = False) -> None:
        """Let the peer send up to `credit` more messages on a link; `drain`: those that are there now.

        Does nothing if the link is not attached any more.
        """
        if link.attached and self.state is SessionState.MAPPED:
            link.credit = credit
            self.send_flow(link, drain=drain)

    def finish_drain(self, link: Link) -> None:
        """Say that nothing more comes for the credit of a link that drains, behind all that was sent."""
        link.delivery_count = add(link.delivery_count, link.credit)
        link.credit = 0
        if self._outgoing.waits_for(link):
            self._drained.add(link)
            return
        self._drained.discard(link)
        self.send_flow(link, drain=True)
        link.drain = False

    def _look_at_drain(self, link: Link) -> None:
        """Answer a drain for which no credit is left: the peer waits for the answer in any case."""
        if link.drain and link.credit == 0 and link.sends and link.attached:
            self.finish_drain(link)

    def send_flow(self, link: Link | None = None, *, drain: bool = False) -> None:
        """Say what this end takes and has sent, of the session and of a link."""
        flow = self._windows.flow()
        if link is not None:
            flow = msgspec.structs.replace(
                flow,
                handle=link.handle,
                delivery_count=link.delivery_count,
                link_credit=link.credit,
                drain=drain,
            )
        self._carrier.send(self.channel, flow)

    def _flowed(self, flow: Flow) -> None:
        self._windows.take_flow(flow)
        link = None
        if flow.handle is not None:
            link = self._handles.find(flow.handle)
            # Credit may come before this end has accepted the link.
            if link.state in _LIVE:
                link.take_flow(flow)
                self._drained.discard(link)
            if link.attached:
                self._carrier.emit(CreditChanged(link))
        if flow.echo:
            self.send_flow(link if link is not None and link.attached else None)
        self._outgoing.flush()
        if link is not None:
            self._look_at_drain(link)
        for one in list(self._drained):
            self._look_at_drain(one)

    # Messages.

    def transfer(
        self,
        link: Link,
        payload: bytes,
        tag: bytes,
        *,
        settled: bool = False,
        context: Any = None,
        state: bytes = NULL,
    ) -> Delivery:
        """Send a message on a link that has credit. `state`: encoded. Raises AmqpError without credit."""
        handle = link.handle
        if link.credit <= 0 or handle is None or link.state is not LinkState.ATTACHED:
            raise AmqpError(NOT_ALLOWED, "expected an attached link with credit to send on, got none")
        delivery = self._deliveries.add(link, tag, context, settled=settled)
        link.credit -= 1
        link.delivery_count = add(link.delivery_count, 1)
        self._outgoing.send(delivery, handle, payload, state, settled=settled)
        self._look_at_drain(link)
        return delivery

    @property
    def congested(self) -> bool:
        """Whether frames wait for the peer's window."""
        return self._outgoing.waits

    def _transferred(self, transfer: Transfer, payload: bytes) -> None:
        self._windows.count_received()
        link = self._handles.find(transfer.handle)
        if link.sends:
            raise SessionError(ERRANT_LINK, "expected a transfer from the sender of a link, got one to it")
        if link.state is LinkState.ATTACHED:
            self._take_transfer(link, transfer, payload)
        if self._windows.runs_out:
            self.send_flow()

    def _take_transfer(self, link: Link, transfer: Transfer, payload: bytes) -> None:
        carrier = self._carrier
        before = link.pending_size
        try:
            message = link.take_transfer(transfer, payload)
        except LinkError as error:
            carrier.partial_size -= before - link.pending_size
            self.detach(link, error.condition, str(error))
            return
        if message is not None and not before and type(message) is MessageReceived:
            carrier.emit(message)
            return
        carrier.partial_size += link.pending_size - before
        if carrier.partial_size > carrier.most_partial_size:
            self.detach(
                link,
                RESOURCE_LIMIT_EXCEEDED,
                f"expected at most {carrier.most_partial_size} bytes of messages in part, got more",
            )
        elif isinstance(message, Oversize):
            at, told = message.delivery_id, Error(MESSAGE_SIZE_EXCEEDED, message.text)
            self.settle(at, at, encode_composite(Rejected(told)))
            carrier.emit(MessageRefused(link))
        elif message is not None:
            carrier.emit(message)
        elif transfer.aborted:
            carrier.emit(MessageRefused(link))

    def settle(self, first: int, last: int, state: bytes = ACCEPTED, *, settled: bool = True) -> None:
        """Say what became of messages that came, from `first` to `last`. `state`: encoded.

        Does nothing if the session has ended meanwhile.
        """
        if self.state is SessionState.MAPPED:
            self._dispositions.say(Disposed(first, last, state, True, settled))

    def settle_sent(self, deliveries: Iterable[Delivery], state: bytes) -> None:
        """Settle messages that this end sent: the answer to the peer's state of them."""
        for first, last in ranges(self._deliveries.settle(deliveries)):
            self._dispositions.say(Disposed(first, last, state, False, True))

    def _disposed(self, said: Disposition) -> None:
        last = said.first if said.last is None else said.last
        if not said.role:
            self._carrier.emit(SenderUpdated(self, said.first, last, said.state, bool(said.settled)))
            return
        deliveries = self._deliveries.of(said.first, last)
        if not deliveries:
            return
        if said.settled:
            self._deliveries.settle(deliveries)
        self._carrier.emit(DeliveriesUpdated(deliveries, said.state, bool(said.settled)))
