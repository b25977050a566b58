"""The presence of those who take messages: which queue, as what, and by which name."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

#: The kinds of those who take messages.
RECEIVER: Final = "receiver"
HOST: Final = "service host"
PIPELINE: Final = "pipeline"
AMQP_CLIENT: Final = "AMQP client"
HTTP_CLIENT: Final = "HTTP client"


def client_name(name: str, origin: str | None) -> str:
    """Return the name of a client by which people know it: with where it is, if that is known."""
    return f"{name} at {origin}" if origin else name


class Taker(NamedTuple):
    """One who takes messages of a queue: its path, with a subqueue, the kind of taker, and a name."""

    queue: str
    kind: str
    name: str


class TakerRecord(msgspec.Struct, frozen=True, array_like=True):
    """A taker as its process has noted it. Times in microseconds: when it came, and was last seen."""

    queue: str
    kind: str
    name: str
    since: int
    seen: int
