"""Messages over HTTP as Service Bus has it: sent, received and settled with curl."""

from __future__ import annotations

from lazaretto.servicebus.rest.application import Messages, wish_of

__all__ = ["Messages", "wish_of"]
