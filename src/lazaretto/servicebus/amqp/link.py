"""A link of AMQP 1.0: credit, and messages put together from their parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from lazaretto.servicebus.amqp.carrier import Event
from lazaretto.servicebus.amqp.conditions import (
    DECODE_ERROR,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    NOT_ALLOWED,
    TRANSFER_LIMIT_EXCEEDED,
    AmqpError,
)
from lazaretto.servicebus.amqp.performatives import (
    Attach,
    Coordinator,
    DeliveryState,
    Error,
    Flow,
    Source,
    Target,
    Transfer,
)
from lazaretto.servicebus.amqp.states import LINK, LinkEvent, LinkState, next_state
from lazaretto.servicebus.amqp.windows import add, distance, forward

#: The largest size of a message that can be said. Some peers take a size that is left out for 0.
_ANY_SIZE: Final = 0xFFFFFFFFFFFFFFFF


class LinkError(AmqpError):
    """A peer broke the rules of one link, which is detached for it."""

    code = "amqp_link_error"


class Oversize(NamedTuple):
    """A message that was larger than its link takes: its number, and what the sender is told."""

    delivery_id: int
    text: str


class Delivery:
    """A message that this end sent and that is not settled yet. `context`: the user's own."""

    __slots__ = ("context", "id", "link", "tag")

    def __init__(self, link: Link, id_: int, tag: bytes, context: Any) -> None:
        self.link = link
        self.id = id_
        self.tag = tag
        self.context = context


class LinkSession(Protocol):
    """A session, as the holders of its links see it. `Session` says what each method does."""

    channel: int

    @property
    def links(self) -> Mapping[int, Link]: ...

    @property
    def unsettled(self) -> Mapping[int, Delivery]: ...

    @property
    def congested(self) -> bool: ...

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
    ) -> Link: ...

    def accept(
        self,
        link: Link,
        *,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        max_message_size: int = 0,
        properties: Mapping[str, Any] | None = None,
    ) -> None: ...

    def refuse(
        self, link: Link, condition: str, description: str, info: Mapping[str, Any] | None = None
    ) -> None: ...

    def give_up(self, link: Link) -> None: ...

    def detach(
        self,
        link: Link,
        condition: str | None = None,
        description: str = "",
        info: Mapping[str, Any] | None = None,
        *,
        closed: bool = True,
    ) -> None: ...

    def grant(self, link: Link, credit: int, *, drain: bool = False) -> None: ...

    def finish_drain(self, link: Link) -> None: ...

    def send_flow(self, link: Link | None = None, *, drain: bool = False) -> None: ...

    def transfer(
        self,
        link: Link,
        payload: bytes,
        tag: bytes,
        *,
        settled: bool = False,
        context: Any = None,
        state: bytes = ...,
    ) -> Delivery: ...

    def settle(self, first: int, last: int, state: bytes = ..., *, settled: bool = True) -> None: ...

    def settle_sent(self, deliveries: Iterable[Delivery], state: bytes) -> None: ...


class Link:
    """One link, at one of its ends.

    `sends`: whether this end sends on it. `credit`: how many messages may still be sent, by this end or by
    the peer. `drain`: whether the peer wants what is there now and gives up the rest of the credit.
    `source`, `target`: as the peer gave them. `context`: the user's own.
    """

    __slots__ = (
        "_first",
        "_oversize",
        "_parts",
        "_size",
        "context",
        "credit",
        "delivery_count",
        "drain",
        "given_up",
        "handle",
        "max_message_size",
        "name",
        "properties",
        "rcv_settle_mode",
        "remote_handle",
        "remote_max_message_size",
        "sends",
        "session",
        "snd_settle_mode",
        "source",
        "state",
        "target",
        "unsettled",
    )

    def __init__(self, session: LinkSession, name: str, *, sends: bool) -> None:
        self.session = session
        self.name = name
        self.sends = sends
        self.state = LinkState.DETACHED
        self.handle: int | None = None
        self.remote_handle: int | None = None
        self.credit = 0
        self.delivery_count = 0
        #: Deliveries that this end sent and that are not settled.
        self.unsettled = 0
        self.drain = False
        #: Whether its name went to another link, which the user was told.
        self.given_up = False
        self.snd_settle_mode = 2
        self.rcv_settle_mode = 0
        #: Maximum size of a message that this end takes. 0: any.
        self.max_message_size = 0
        self.remote_max_message_size = 0
        self.source: Source | None = None
        self.target: Target | Coordinator | None = None
        self.properties: dict[str, Any] = {}
        self.context: Any = None
        self._first: Transfer | None = None
        self._parts: list[bytes] = []
        self._size = 0
        #: The size of a message that is too large already, and the rest of which is passed over; else 0.
        self._oversize = 0

    def __repr__(self) -> str:
        return f"<Link {self.name!r} {'sends' if self.sends else 'receives'} {self.state.value}>"

    @property
    def attached(self) -> bool:
        """Whether messages may pass."""
        return self.state is LinkState.ATTACHED

    def attach(
        self,
        handle: int,
        source: Source | None,
        target: Target | Coordinator | None,
        properties: Mapping[str, Any] | None,
    ) -> Attach:
        """Return what attaches it by a handle. Raises AmqpError if that may not happen now."""
        self.advance(LinkEvent.SEND_ATTACH)
        self.handle = handle
        return Attach(
            self.name,
            handle,
            not self.sends,
            self.snd_settle_mode,
            self.rcv_settle_mode,
            source,
            target,
            initial_delivery_count=self.delivery_count if self.sends else None,
            max_message_size=self.max_message_size or _ANY_SIZE,
            properties=dict(properties or {}),
        )

    def advance(self, event: LinkEvent) -> None:
        """Go to the next state. Raises AmqpError if the event may not happen now."""
        self.state = next_state(LINK, self.state, event, NOT_ALLOWED)

    def take_attach(self, attach: Attach) -> None:
        """Keep what the peer said of the link."""
        answers = self.state is LinkState.ATTACH_SENT
        self.advance(LinkEvent.RECEIVE_ATTACH)
        self.remote_handle = attach.handle
        self.remote_max_message_size = attach.max_message_size or 0
        self.source, self.target = attach.source, attach.target
        self.properties = attach.properties or {}
        if not answers:
            self.snd_settle_mode = 2 if attach.snd_settle_mode is None else attach.snd_settle_mode
            self.rcv_settle_mode = attach.rcv_settle_mode or 0
        if not self.sends:
            self.delivery_count = attach.initial_delivery_count or 0

    def take_flow(self, flow: Flow) -> None:
        """Keep what the peer said of credit: as the receiver what it grants, as the sender what it used."""
        if self.sends:
            if flow.link_credit is not None:
                # Credit is a plain count: only the numbers of deliveries begin again.
                unseen = distance(flow.delivery_count or 0, self.delivery_count)
                self.credit = max(0, flow.link_credit - unseen)
            self.drain = bool(flow.drain)
        elif flow.delivery_count is not None:
            used = forward(self.delivery_count, flow.delivery_count)
            if used <= self.credit or distance(self.delivery_count, flow.delivery_count) > 0:
                self.credit = max(0, self.credit - used)
                self.delivery_count = flow.delivery_count

    @property
    def pending_size(self) -> int:
        """Bytes of a message that has come in part."""
        return self._size

    def take_transfer(self, transfer: Transfer, payload: bytes) -> MessageReceived | Oversize | None:
        """Return the message that is whole with this part; None: none is, or its sender gives it up.

        Raises LinkError.
        """
        first = self._first
        if first is None:
            if transfer.delivery_id is None or transfer.delivery_tag is None:
                raise LinkError(INVALID_FIELD, "expected a first transfer with delivery-id and delivery-tag")
            if len(transfer.delivery_tag) > 32:
                raise LinkError(DECODE_ERROR, "expected a delivery-tag of at most 32 bytes, got a longer one")
            if self.credit <= 0:
                raise LinkError(TRANSFER_LIMIT_EXCEEDED, "expected no transfer without credit, got one")
            first = transfer
        elif transfer.delivery_id not in (None, first.delivery_id):
            raise LinkError(
                INVALID_FIELD,
                f"expected the rest of delivery {first.delivery_id}, got {transfer.delivery_id}",
            )
        elif transfer.delivery_tag not in (None, first.delivery_tag):
            raise LinkError(INVALID_FIELD, "expected the rest of a delivery to have its tag, got another")
        elif transfer.message_format not in (None, first.message_format or 0):
            raise LinkError(INVALID_FIELD, "expected the rest of a delivery to have its format, got another")
        if transfer.aborted:
            self.drop_partial()
            self._count()
            return None
        size = (self._oversize or self._size) + len(payload)
        if self._oversize or (self.max_message_size and size > self.max_message_size):
            self._oversize, self._parts, self._size = size, [], 0
        elif transfer.more:
            self._size = size
            self._parts.append(payload)
        if transfer.more:
            self._first = first
            return None
        if self._parts:
            payload = b"".join((*self._parts, payload))
        oversize = self._oversize
        self.drop_partial()
        self._count()
        assert first.delivery_id is not None
        settled = bool(first.settled or transfer.settled)
        if oversize:
            text = (
                f"The received message (delivery-id:{first.delivery_id}, size:{oversize} bytes) exceeds the "
                f"limit ({self.max_message_size} bytes) currently allowed on the link."
            )
            if settled:
                # A sender that wants no answer learns of it in no other way.
                raise LinkError(MESSAGE_SIZE_EXCEEDED, text)
            return Oversize(first.delivery_id, text)
        return MessageReceived(
            self,
            first.delivery_id,
            first.delivery_tag or b"",
            first.message_format or 0,
            settled,
            payload,
            transfer.state or first.state,
        )

    def _count(self) -> None:
        """Count a message that came, or that its sender has given up: it counts both."""
        self.credit -= 1
        self.delivery_count = add(self.delivery_count, 1)

    def drop_partial(self) -> None:
        """Forget what has come of a message."""
        self._first, self._parts, self._size, self._oversize = None, [], 0, 0


class LinkAttached(Event, gc=False):
    """The peer attached a link, to be accepted or refused, or answered an attach of this end."""

    link: Link
    attach: Attach


class LinkDetached(Event, gc=False):
    """A link is over. `closed`: for good, which is how brokers see it."""

    link: Link
    closed: bool
    error: Error | None


class CreditChanged(Event, gc=False):
    """The peer says how many messages it takes on a link, or that it has no more for the credit it got.

    `link.drain`: it takes those that are there now, and none later.
    """

    link: Link


class MessageReceived(Event, gc=False):
    """A whole message came. `payload`: its sections. `settled`: the peer wants no answer."""

    link: Link
    delivery_id: int
    delivery_tag: bytes
    message_format: int
    settled: bool
    payload: bytes
    state: DeliveryState | None


class MessageRefused(Event, gc=False):
    """A message came that is larger than its link takes, as the peer was told, or that the peer has given up.

    Nothing of it was kept. It has used credit.
    """

    link: Link
