"""Those who act on a store: actors for the audit log, and those who take messages. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

#: The door of a program that has the store itself.
STORE_DOOR: Final = "store"

#: The kinds of those who take messages.
RECEIVER: Final = "receiver"
HOST: Final = "service host"
PIPELINE: Final = "pipeline"
AMQP_CLIENT: Final = "AMQP client"
HTTP_CLIENT: Final = "HTTP client"


class NameKind(enum.StrEnum):
    """The kind of an actor's name."""

    #: Somebody who logged in, or whom a proxy or a provider names.
    PERSON = "person"
    #: A key with which clients of Service Bus sign; its name begins with `key:`.
    KEY = "key"
    #: Whomever a token stands for, or the owner of a server.
    TOKEN = "token"  # noqa: S105
    #: A program that has the store itself, or one that no server asks who it is.
    PROCESS = "process"


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


class Actor(str):
    """An actor's name that knows where the actor is: `origin`, such as an address; empty: not known.

    `makers`: who else may be behind the name: those who have seen the secret that stands for it.
    `by_server`: whether a server acts for somebody who has not the store itself. `door`: which one: "http",
    "amqp" or "store". `kind`: what the name is that of.
    """

    __slots__ = ("by_server", "door", "kind", "makers", "origin")
    origin: str
    makers: tuple[str, ...]
    by_server: bool
    door: str
    kind: NameKind

    @classmethod
    def at(
        cls,
        name: str,
        origin: str,
        makers: Iterable[str] = (),
        *,
        by_server: bool = True,
        door: str = "http",
        kind: NameKind = NameKind.PERSON,
    ) -> Actor:
        """Return a name with an origin, and with who else may be behind it."""
        made = cls(name)
        made.origin, made.makers, made.by_server = origin, tuple(makers), by_server
        made.door, made.kind = door, kind
        return made


def behind(actor: str) -> frozenset[str]:
    """Return the names of all who may be behind an actor."""
    return frozenset((str(actor), *(actor.makers if isinstance(actor, Actor) else ())))


def client_name(name: str, origin: str | None) -> str:
    """Return the name of a client by which people know it: with where it is, if that is known."""
    return f"{name} at {origin}" if origin else name
