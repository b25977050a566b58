"""What clients may use of a server, and how long it waits for them."""

from __future__ import annotations

import dataclasses

from lazaretto.amqp import ConnectionLimits
from lazaretto.model.checks import seconds, whole

_MOST = 1 << 31


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    """What clients may use of a server, and how long it waits for them. Raises InvalidOption.

    Options:
        connections: Connections at the same time.
        connections_per_address: Those of one address.
        sessions: Sessions of a connection.
        links: Links of a session.
        unsettled: Messages of a link that its client has and has not settled.
        frame_size: Maximum size of a frame, in bytes.
        window: Frames of a session that may come before the server says more.
        partial_size: Maximum size of a connection's messages that have come in part, in bytes.
        flows: Frames in a second that carry no message, such as flows; then reading waits for the next one.
        frames: Frames of a connection that are read before others have their turn.
        opening_seconds: Time within which a client opens its connection.
        opening_size: Bytes that a client may send before that.
        linking_seconds: Time for which a connection may have no links.
        idle_seconds: Time for which a client may say nothing.
        stalled_seconds: Time for which a client may read nothing of what waits for it.
        write_buffer: Bytes that wait for a slow client before its links get no more messages.
        refusal_seconds: Time before a client hears that its key or token is wrong.
        refusals: Wrong keys and tokens of an address in a minute; then it waits for the next one.
        transactions: Transactions of a connection at the same time.
        transaction_messages: Messages that a transaction sends.
        transaction_seconds: Time within which a transaction is discharged.
    """

    connections: int = 5_000
    connections_per_address: int = 5_000
    sessions: int = 256
    links: int = 256
    unsettled: int = 5_000
    frame_size: int = 65_536
    window: int = 5_000
    partial_size: int = 64 << 20
    flows: int = 10_000
    frames: int = 1_000
    opening_seconds: float = 20.0
    opening_size: int = 65_536
    linking_seconds: float = 60.0
    idle_seconds: float = 240.0
    stalled_seconds: float = 60.0
    write_buffer: int = 1 << 20
    refusal_seconds: float = 1.0
    refusals: int = 10
    transactions: int = 100
    transaction_messages: int = 100
    transaction_seconds: float = 120.0

    def __post_init__(self) -> None:
        least = {"frame_size": 512, "window": 2, "write_buffer": 0, "opening_size": 512}
        most = {"sessions": 65_536}
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if name.endswith("_seconds"):
                seconds(name, value)
            else:
                whole(name, value, least.get(name, 1), most.get(name, _MOST))

    def of_connection(self) -> ConnectionLimits:
        """Return what of it the protocol's engine keeps."""
        return ConnectionLimits(
            max_frame_size=self.frame_size,
            channel_max=self.sessions - 1,
            handle_max=self.links - 1,
            window=self.window,
            partial=self.partial_size,
        )
