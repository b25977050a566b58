"""The door for AMQP 1.0 clients: Service Bus SDKs speak to queues, subscriptions and topics."""

from __future__ import annotations

from lazaretto.servicebus.grants import ROOT_POLICY, AccessPolicy, Right, connection_string
from lazaretto.servicebus.limits import DoorLimits
from lazaretto.servicebus.listening import check_address, open_door
from lazaretto.servicebus.server import Door

__all__ = [
    "ROOT_POLICY",
    "AccessPolicy",
    "Door",
    "DoorLimits",
    "Right",
    "check_address",
    "connection_string",
    "open_door",
]
