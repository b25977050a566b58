"""Roles, granted for the queues that a pattern names. Pure."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import member, shown, text
from lazaretto.model.containment import Reach, grant_covers
from lazaretto.model.entities import LONGEST_PATH
from lazaretto.model.permissions import Permission

#: The most characters of a person's name.
LONGEST_PERSON: Final = 200
#: What the names of groups begin with; a proxy or an identity provider says who is in them.
GROUP: Final = "group:"
#: What the audit log has before the name of a key. Nobody else's name begins so.
KEY: Final = "key:"


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
