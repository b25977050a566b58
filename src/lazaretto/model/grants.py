"""Permissions on a store, roles that give them, and the queues for which somebody has them. Pure.

Clients of Service Bus sign for one entity with keys: what each key allows stands here, too.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import functools
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from lazaretto.errors import InvalidOption, InvalidPath
from lazaretto.model.checks import member, shown, text
from lazaretto.model.entities import LONGEST_PATH, SUBSCRIPTIONS, EntityPath

_MANAGEMENT = "/$management"

#: The most characters of a person's name.
LONGEST_PERSON: Final = 200
#: What the names of groups begin with; a proxy or an identity provider says who is in them.
GROUP: Final = "group:"
#: What the audit log has before the name of a key. Nobody else's name begins so.
KEY: Final = "key:"


class Permission(enum.StrEnum):
    """A permission that a change, or a route of the HTTP API, demands; each role has some of these."""

    #: Names, counts, causes, errors and events.
    SEE = "see"
    READ_BODIES = "read_bodies"
    #: Fields that are redacted for others.
    READ_SECRETS = "read_secrets"
    SEND = "send"
    RECEIVE = "receive"
    #: Dead letters, repairs, status, breakers, sessions.
    OPERATE = "operate"
    #: Entities and rules; deleting for good.
    ADMINISTER = "administer"


class Reach(enum.Enum):
    """Reach of a grant from what it names."""

    #: To the queue or topic, and to what belongs to it: subqueues, subscriptions, rules, `$management`.
    ENTITY = "entity"
    #: To that, and to every entity whose path begins with it and a slash; from "": to all.
    BELOW = "below"
    #: To each queue or topic whose path a pattern such as `shop/*` matches, and to what belongs to it.
    PATTERN = "pattern"


class Role(enum.StrEnum):
    """A set of permissions that can be granted."""

    VIEWER = "viewer"
    READER = "reader"
    INSPECTOR = "inspector"
    CLIENT = "client"
    OPERATOR = "operator"
    ADMIN = "admin"


#: What each role may do.
ROLES: Final = {
    Role.VIEWER: frozenset({Permission.SEE}),
    Role.READER: frozenset({Permission.SEE, Permission.READ_BODIES}),
    Role.INSPECTOR: frozenset({Permission.SEE, Permission.READ_BODIES, Permission.READ_SECRETS}),
    Role.CLIENT: frozenset({Permission.READ_BODIES, Permission.SEND, Permission.RECEIVE}),
    Role.OPERATOR: frozenset({Permission.SEE, Permission.READ_BODIES, Permission.OPERATE}),
    Role.ADMIN: frozenset(Permission),
}


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


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """A role on the entities whose path a pattern matches, such as `shop/*`; `*` means all.

    Paths are compared without case, as entities are found.
    """

    role: Role
    pattern: str = "*"

    def covers(self, path: str | None) -> bool:
        """Return whether it holds for an entity; None: for all of them. Raises InvalidPath."""
        if path is None:
            return self.pattern == "*"
        return grant_covers(Reach.PATTERN, self.pattern, path)


def may(grants: Sequence[Grant], permission: Permission, path: str | None) -> bool:
    """Return whether a permission was granted on an entity; None: on all of them."""
    return any(permission in ROLES[grant.role] and grant.covers(path) for grant in grants)


def join_grants(granted: Iterable[tuple[Grant, ...]]) -> tuple[Grant, ...]:
    """Return what a person and the person's groups were granted, each once."""
    return tuple(dict.fromkeys(grant for grants in granted for grant in grants))


def checked_grant(role: object, pattern: object) -> Grant:
    """Return a grant. Raises InvalidOption."""
    role_ = member("role", role, {one.value: one for one in Role})
    return Grant(role_, text("queue", pattern, LONGEST_PATH))


def person_name(value: object) -> str:
    """Return the name of a person or group. Raises InvalidOption."""
    name = text("person", value, LONGEST_PERSON)
    if not name.isprintable() or name != name.strip():
        raise InvalidOption(f"expected person to be printable, without space around it, got {shown(value)}")
    if name.lower().startswith(KEY):
        raise InvalidOption(
            f"expected person not to begin with {KEY}, as names of keys do, got {shown(value)}"
        )
    return name


def encode_grants(grants: Sequence[Grant]) -> str:
    """Return grants as the store has them."""
    return msgspec.json.encode(grants).decode()


def decode_grants(stored: str) -> tuple[Grant, ...]:
    """Return grants from the store's form."""
    return msgspec.json.decode(stored, type=tuple[Grant, ...])


#: The most rules of an entity, as at Service Bus; the most characters of a name, and of a key.
MOST_RULES: Final = 12
_LONGEST: Final = 256
RIGHTS: Final = ("Manage", "Send", "Listen")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SigningRule:
    """Two keys by a name, and what they allow on an entity and what is below it. Raises InvalidOption.

    `rights`: Manage, which includes the others, Send, Listen. `created`, `modified`: in microseconds.
    """

    name: str
    rights: tuple[str, ...]
    primary: str = dataclasses.field(repr=False)
    secondary: str = dataclasses.field(repr=False)
    created: int = 0
    modified: int = 0

    def __post_init__(self) -> None:
        text("the name of an authorization rule", self.name, _LONGEST)
        for key in (self.primary, self.secondary):
            # An error must not show the key.
            if not key or len(key) > _LONGEST or not key.isascii():
                raise InvalidOption(
                    f"expected keys of 1 to {_LONGEST} ASCII characters for authorization rule {self.name!r}"
                )
        if not self.rights or not set(self.rights) <= set(RIGHTS):
            raise InvalidOption(
                f"expected rights of the authorization rule {self.name!r} among {', '.join(RIGHTS)}, "
                f"got {', '.join(map(repr, self.rights)) or 'none'}"
            )


def check_signing_rules(rules: Sequence[SigningRule]) -> None:
    """Raise InvalidOption for too many rules of an entity, or two with one name."""
    if len(rules) > MOST_RULES:
        raise InvalidOption(f"expected at most {MOST_RULES} authorization rules, got {len(rules)}")
    if len({rule.name for rule in rules}) != len(rules):
        raise InvalidOption("expected authorization rules with different names, got one name twice")


def encode_signing_rules(rules: Iterable[SigningRule]) -> str | None:
    """Return rules as they are stored; None: there are none."""
    listed = list(rules)
    return msgspec.json.encode(listed).decode() if listed else None


def decode_signing_rules(stored: str | None) -> tuple[SigningRule, ...]:
    """Return stored rules."""
    return () if stored is None else msgspec.json.decode(stored, type=tuple[SigningRule, ...])
