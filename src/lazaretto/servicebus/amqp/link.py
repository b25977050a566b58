"""A link of AMQP 1.0: credit, and messages put together from their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lazaretto.servicebus.amqp.conditions import (
    DECODE_ERROR,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    NOT_ALLOWED,
    TRANSFER_LIMIT_EXCEEDED,
    AmqpError,
)
from lazaretto.servicebus.amqp.events import MessageReceived
from lazaretto.servicebus.amqp.performatives import Attach, Coordinator, Flow, Source, Target, Transfer
from lazaretto.servicebus.amqp.serials import add, distance, forward
from lazaretto.servicebus.amqp.states import LINK, LinkEvent, LinkState

if TYPE_CHECKING:
    from lazaretto.servicebus.amqp.session import Session


class LinkError(AmqpError):
    """A peer broke the rules of one link, which is detached for it."""

    code = "amqp_link_error"


class Oversize(NamedTuple):
    """A message that was larger than its link takes: its number, and what the sender is told."""

    delivery_id: int
    text: str


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

    def __init__(self, session: Session, name: str, *, sends: bool) -> None:
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

    def advance(self, event: LinkEvent) -> None:
        """Go to the next state. Raises AmqpError if the event may not happen now."""
        then = LINK.get((self.state, event))
        if then is None:
            raise AmqpError(NOT_ALLOWED, f"expected no {event.value} of a link that is {self.state.value}")
        self.state = then

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
