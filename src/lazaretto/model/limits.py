"""Limits of a server's clients, whatever door they come to, and how long it waits for them. Pure.

Everything is small for a client that has not logged in. Where no key or token is asked for, a client counts
as logged in once its connection is open (AMQP), or once the head of its request is read (HTTP).
"""

from __future__ import annotations

import dataclasses
import enum
from typing import ClassVar, Final

from lazaretto.model.checks import seconds, whole

_MOST: Final = 1 << 31


class Tier(enum.Enum):
    """A tier of Service Bus's namespaces."""

    STANDARD = "standard"
    PREMIUM = "premium"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of a server's clients, and how long it waits for them. Raises InvalidOption.

    Options:
        connections: Connections at the same time, of all doors. A quarter is for clients that have logged in.
        connections_per_address: Those of one address.
        opening_seconds: Time within which a client logs in, and sends the head of each request.
        opening_size: Bytes that a client may send before it has logged in.
        opening_frames: Frames of AMQP that a client may send before that.
        head_size: Maximum size of the head of an HTTP request, in bytes.
        memory: Bytes that all requests over HTTP together may hold; each holds six times what it sends or
            reads.
        unstored: Bytes of messages over AMQP that are not stored yet, of all connections together: those that
            have come in part and those of open transactions, above which the connection that holds most of
            them is ended; and those on their way into the store, above which their senders are not read.
        process_size: Bytes that the server's process takes beside those that it took when it began to serve,
            above which it begins nothing new; in a container at most four fifths of what that may take.
        body_size: Maximum size of a request's body, in bytes.
        query_seconds: Time that a query may take for whoever only reads over HTTP.
        change_seconds: Time that what a change reads before may take, as a repair's filter.
        searches: Searches, exports and plans of repairs of all people at the same time.
        searches_per_person: Those of one person.
        requests_per_person: Requests over HTTP of one person at the same time.
        stalled_seconds: Time for which a client may read nothing of what waits for it.
        refusal_seconds: Time before a client hears that its key or token is wrong: so much longer with each
            wrong one of its address within a minute.
    """

    LEAST: ClassVar[dict[str, int]] = {"opening_size": 512, "head_size": 512}
    MOST: ClassVar[dict[str, int]] = {}

    connections: int = 5_000
    connections_per_address: int = 5_000
    opening_seconds: float = 10.0
    opening_size: int = 65_536
    opening_frames: int = 100
    head_size: int = 32_768
    memory: int = 96 << 20
    unstored: int = 128 << 20
    process_size: int = 1 << 30
    body_size: int = 32 << 20
    query_seconds: float = 10.0
    change_seconds: float = 60.0
    searches: int = 4
    searches_per_person: int = 2
    requests_per_person: int = 200
    stalled_seconds: float = 30.0
    refusal_seconds: float = 1.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if name.endswith("_seconds"):
                seconds(name, value)
            else:
                whole(name, value, self.LEAST.get(name, 1), self.MOST.get(name, _MOST))

    def strangers(self, connections: int) -> int:
        """Return how many of some connections may be of clients that have not logged in."""
        return max(1, connections * 3 // 4)
