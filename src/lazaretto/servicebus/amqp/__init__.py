"""AMQP 1.0 without sockets: bytes in, events out.

`Connection` is one end of a connection. It knows nothing of queues, of time or of the network: whoever holds
it gives it bytes, acts on its events, and sends what it gives out.
"""

from __future__ import annotations

from lazaretto.servicebus.amqp.conditions import AmqpError, DecodeError
from lazaretto.servicebus.amqp.connection import Connection, ConnectionLimits
from lazaretto.servicebus.amqp.decode import decode
from lazaretto.servicebus.amqp.encode import encode
from lazaretto.servicebus.amqp.link import Delivery, Link
from lazaretto.servicebus.amqp.sections import Header, Properties, Section, Sections, encode_section
from lazaretto.servicebus.amqp.session import Session

__all__ = [
    "AmqpError",
    "Connection",
    "ConnectionLimits",
    "DecodeError",
    "Delivery",
    "Header",
    "Link",
    "Properties",
    "Section",
    "Sections",
    "Session",
    "decode",
    "encode",
    "encode_section",
]
