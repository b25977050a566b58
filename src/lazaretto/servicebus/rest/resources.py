"""Wishes of requests about messages, by their methods and paths. Pure."""

from __future__ import annotations

import enum
import uuid
from typing import Final, NamedTuple


class Act(enum.Enum):
    """An act on messages."""

    SEND = "send"
    LOCK = "lock"
    RECEIVE_AND_DELETE = "receive and delete"
    COMPLETE = "complete"
    UNLOCK = "unlock"
    RENEW = "renew"


class Wish(NamedTuple):
    """An act at an entity. `name`, `token`: of a message, its number or id, and its lock."""

    act: Act
    path: str
    name: str = ""
    token: uuid.UUID | None = None


_MESSAGES: Final = "messages"
_AT_HEAD: Final = {"POST": Act.LOCK, "DELETE": Act.RECEIVE_AND_DELETE}
_AT_LOCK: Final = {"DELETE": Act.COMPLETE, "PUT": Act.UNLOCK, "POST": Act.RENEW}


def wish_of(method: str, path: str) -> Wish | None:
    """Return what is asked for; None: nothing about messages."""
    parts = path.strip("/").split("/")
    words = [part.lower() for part in parts]
    if method == "POST" and len(parts) > 1 and words[-1] == _MESSAGES:
        return Wish(Act.SEND, "/".join(parts[:-1]))
    if len(parts) > 2 and words[-2:] == [_MESSAGES, "head"] and method in _AT_HEAD:
        return Wish(_AT_HEAD[method], "/".join(parts[:-2]))
    if len(parts) > 3 and words[-3] == _MESSAGES and method in _AT_LOCK:
        try:
            token = uuid.UUID(parts[-1])
        except ValueError:
            return None
        return Wish(_AT_LOCK[method], "/".join(parts[:-3]), parts[-2], token)
    return None
