"""Which entities a key, a token or a role is for. Pure."""

from __future__ import annotations

import enum
import fnmatch
import functools

from lazaretto.errors import InvalidPath
from lazaretto.model.entities import SUBSCRIPTIONS, EntityPath

_MANAGEMENT = "/$management"


class Reach(enum.Enum):
    """Reach of a grant from what it names."""

    #: To the queue or topic, and to what belongs to it: subqueues, subscriptions, rules, `$management`.
    ENTITY = "entity"
    #: To that, and to every entity whose path begins with it and a slash; from "": to all.
    BELOW = "below"
    #: To each queue or topic whose path a pattern such as `shop/*` matches, and to what belongs to it.
    PATTERN = "pattern"


@functools.lru_cache(4096)
def owner_of(path: str) -> str:
    """Return the queue or topic that a path belongs to, in lower case. Raises InvalidPath.

    A subqueue, a subscription, a rule of one and a management node belong to it; another entity whose name
    begins alike does not.
    """
    name = path.lower()
    if name.endswith(_MANAGEMENT):
        path = path[: -len(_MANAGEMENT)]
    parts = path.split("/")
    words = [part.lower() for part in parts]
    if SUBSCRIPTIONS in words[1:]:
        path = "/".join(parts[: words.index(SUBSCRIPTIONS, 1)])
    return EntityPath.parse(path).key


def grant_covers(reach: Reach, scope: str, path: str) -> bool:
    """Return whether a grant that goes so far from its scope covers a path. Cases do not matter.

    Raises InvalidPath for a pattern and a path that is none: nobody has a role on that.
    """
    if reach is Reach.PATTERN:
        return scope == "*" or fnmatch.fnmatchcase(owner_of(path), scope.lower())
    scope, path = scope.lower(), path.lower()
    if reach is Reach.BELOW and (scope in ("", path) or path.startswith(f"{scope}/")):
        return True
    return _belongs(scope, path)


def _belongs(scope: str, path: str) -> bool:
    try:
        owner = owner_of(path)
        # What is narrower than an entity, such as a subqueue, is for itself and its own node.
        return scope in (owner, path, path.removesuffix(_MANAGEMENT))
    except InvalidPath:
        return False
