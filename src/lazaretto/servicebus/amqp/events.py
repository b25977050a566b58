"""Events of a connection for its user: the meaning of bytes that came.

Those of links and deliveries stand beside them.
"""

from __future__ import annotations

from lazaretto.servicebus.amqp.carrier import Event
from lazaretto.servicebus.amqp.conditions import AmqpError
from lazaretto.servicebus.amqp.link import (
    CreditChanged,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    MessageRefused,
)
from lazaretto.servicebus.amqp.outgoing import DeliveriesUpdated
from lazaretto.servicebus.amqp.performatives import Error, Open, SaslInit
from lazaretto.servicebus.amqp.session import SenderUpdated, Session

__all__ = [
    "Closed",
    "CreditChanged",
    "DeliveriesUpdated",
    "Event",
    "Failed",
    "LinkAttached",
    "LinkDetached",
    "MessageReceived",
    "MessageRefused",
    "Opened",
    "SaslAnswered",
    "SaslStarted",
    "SenderUpdated",
    "SessionBegun",
    "SessionEnded",
]


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


class Closed(Event, gc=False):
    """The peer closed the connection."""

    error: Error | None


# Seen by the collector of cycles: an error leads by its traceback to where it was raised.
class Failed(Event, gc=True):
    """The peer broke the protocol, and was told so. Nothing more is read."""

    error: AmqpError
