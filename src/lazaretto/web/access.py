"""Who may do what over HTTP: roles, granted for the queues that a pattern names. Pure."""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

from lazaretto.model.entities import EntityPath
from lazaretto.model.permissions import Permission
from lazaretto.web.refusals import NotAuthenticated, NotPermitted


class Role(enum.StrEnum):
    """A set of permissions that can be granted."""

    VIEWER = "viewer"
    CLIENT = "client"
    OPERATOR = "operator"
    ADMIN = "admin"


#: What each role may do.
ROLES: Final = {
    Role.VIEWER: frozenset({Permission.SEE}),
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
        if self.pattern == "*":
            return True
        return path is not None and fnmatch.fnmatchcase(_entity_of(path), self.pattern.lower())


def _entity_of(path: str) -> str:
    """Return the queue or topic that a path is of, in lower case: without subqueue and subscription."""
    return EntityPath.parse(path).queue.lower().partition("/subscriptions/")[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Somebody, by name, and what was granted."""

    name: str
    grants: tuple[Grant, ...]

    def may(self, permission: Permission, path: str | None) -> bool:
        """Return whether a permission was granted on an entity; None: on all of them."""
        return any(permission in ROLES[grant.role] and grant.covers(path) for grant in self.grants)

    def require(self, permission: Permission, path: str | None) -> None:
        """Raise NotPermitted unless a permission was granted on an entity; None: on all of them."""
        if not self.may(permission, path):
            where = "on every entity" if path is None else f"on {path!r}"
            raise NotPermitted(f"expected somebody with {permission.value!r} {where}, got {self.name!r}")

    def require_anywhere(self, permission: Permission) -> None:
        """Raise NotPermitted unless a permission was granted on something."""
        if not any(permission in ROLES[grant.role] for grant in self.grants):
            raise NotPermitted(f"expected somebody with {permission.value!r}, got {self.name!r}")


class Access:
    """Identities by their tokens, of which only hashes are kept. `anonymous`: who comes without one."""

    def __init__(
        self, tokens: Iterable[tuple[str, Identity]] = (), anonymous: Identity | None = None
    ) -> None:
        self._identities = {hash_of(token): identity for token, identity in tokens}
        self._anonymous = anonymous

    def identify(self, authorization: str | None) -> Identity:
        """Return whom the header `Authorization` names. Raises NotAuthenticated."""
        if authorization is None:
            if self._anonymous is None:
                raise NotAuthenticated
            return self._anonymous
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer":
            wanted = hash_of(token.strip())
            for known, identity in self._identities.items():
                if hmac.compare_digest(known, wanted):
                    return identity
        raise NotAuthenticated("expected a token that the server knows, got another")


def hash_of(token: str) -> bytes:
    """Return what is kept of a token. Tokens are random, so a quick hash is enough."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
