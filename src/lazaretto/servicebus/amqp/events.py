"""Events of a connection for its user: the meaning of bytes that came."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lazaretto.servicebus.amqp.conditions import AmqpError
from lazaretto.servicebus.amqp.performatives import Attach, DeliveryState, Error, Open, SaslInit

if TYPE_CHECKING:
    from lazaretto.servicebus.amqp.deliveries import Delivery
    from lazaretto.servicebus.amqp.link import Link
    from lazaretto.servicebus.amqp.session import Session


class Event(msgspec.Struct, gc=False):
    """Something that the peer said."""


class SaslStarted(Event, gc=False):
    """The client chose a mechanism. Answer with `challenge` or `authenticate`."""

    init: SaslInit


class SaslAnswered(Event, gc=False):
    """The client answered a challenge."""

    response: bytes


class Opened(Event, gc=False):
    """The peer opened the connection."""

    open: Open


class SessionBegun(Event, gc=False):
    """A session is there, begun by the peer or by this end."""

    session: Session


class SessionEnded(Event, gc=False):
    """A session is over, and so are its links."""

    session: Session
    error: Error | None


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


class DeliveriesUpdated(Event, gc=False):
    """The peer says what became of messages that this end sent, and that are not settled yet."""

    deliveries: list[Delivery]
    state: DeliveryState | None
    settled: bool


class SenderUpdated(Event, gc=False):
    """The peer says something about messages that it sent: those from `first` to `last` of a session."""

    session: Session
    first: int
    last: int
    state: DeliveryState | None
    settled: bool


class Closed(Event, gc=False):
    """The peer closed the connection."""

    error: Error | None


# Seen by the collector of cycles: an error leads by its traceback to where it was raised.
class Failed(Event, gc=True):
    """The peer broke the protocol, and was told so. Nothing more is read."""

    error: AmqpError
