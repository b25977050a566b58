"""A connection's side for its sessions."""

from __future__ import annotations

from typing import Protocol

import msgspec

from lazaretto.servicebus.amqp.composites import Composite


class Event(msgspec.Struct, gc=False):
    """Something that the peer said."""


class Carrier(Protocol):
    """A connection, as its sessions see it."""

    #: Maximum size of a frame that the peer takes.
    remote_max_frame_size: int
    handle_max: int
    #: Bytes of messages that have come in part, of all links.
    partial_size: int
    most_partial_size: int

    def send(self, channel: int, body: Composite) -> None:
        """Send a performative."""

    def write(self, data: bytes) -> None:
        """Send a frame that is encoded."""

    def amend(self, frame: bytes, instead: bytes) -> bool:
        """Send another frame in place of this one, if it is the last and not taken; return whether it was."""

    def emit(self, event: Event) -> None:
        """Tell the user."""
