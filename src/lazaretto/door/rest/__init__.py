"""Messages over HTTP as Service Bus has it: sent, received and settled with curl."""

from __future__ import annotations

from lazaretto.door.rest.application import Messages
from lazaretto.door.rest.resources import wish_of

__all__ = ["Messages", "wish_of"]
