"""Limits of AMQP clients at a server, besides those of the clients of all its doors."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from lazaretto.model.limits import ServerLimits
from lazaretto.servicebus.amqp import ConnectionLimits


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits(ServerLimits):
    """Limits of AMQP clients at a server, and how long it waits for them. Raises InvalidOption.

    Options:
        sessions: Sessions of a connection.
        links: Links of a session.
        unsettled: Messages of a link that its client has and has not settled.
        frame_size: Maximum size of a frame, in bytes.
        window: Frames of a session that may come before the server says more.
        partial_size: Maximum size of a connection's messages that have come in part, in bytes.
        flows: Frames in a second that carry no message, such as flows; then reading waits for the next one.
        frames: Frames of a connection that are read before others have their turn.
        linking_seconds: Time for which a connection may have no links.
        idle_seconds: Time for which a client may say nothing.
        write_buffer: Bytes that wait for a slow client before its links get no more messages.
        transactions: Transactions of a connection at the same time.
        transaction_messages: Messages that a transaction sends.
        transaction_seconds: Time within which a transaction is discharged.
    """

    LEAST: ClassVar[dict[str, int]] = {
        **ServerLimits.LEAST, "frame_size": 512, "window": 2, "write_buffer": 0,
    }  # fmt: skip
    MOST: ClassVar[dict[str, int]] = {"sessions": 65_536}

    sessions: int = 256
    links: int = 256
    unsettled: int = 5_000
    frame_size: int = 65_536
    window: int = 5_000
    partial_size: int = 64 << 20
    flows: int = 10_000
    frames: int = 1_000
    linking_seconds: float = 60.0
    idle_seconds: float = 240.0
    write_buffer: int = 1 << 20
    transactions: int = 100
    transaction_messages: int = 100
    transaction_seconds: float = 120.0

    def of_connection(self) -> ConnectionLimits:
        """Return what of it the protocol's engine keeps."""
        return ConnectionLimits(
            max_frame_size=self.frame_size,
            channel_max=self.sessions - 1,
            handle_max=self.links - 1,
            window=self.window,
            partial=self.partial_size,
        )
