"""Callers over HTTP, their rights, and whom a server takes for whom without asking the store. Pure."""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from lazaretto.commands import Command, PlanRepair
from lazaretto.engine.access import digest_of
from lazaretto.errors import InvalidOption
from lazaretto.model.actors import Actor, NameKind
from lazaretto.model.edits.edit import Edit, EditKind
from lazaretto.model.grants import ROLES, Grant, Permission, Role, may
from lazaretto.web.origin import Proxies
from lazaretto.web.refusals import NotPermitted, ServerReadOnly

if TYPE_CHECKING:
    from lazaretto.web.oidc import Provider


__all__ = ["ROLES", "Access", "Grant", "Identity", "Proxies", "Role"]

#: What a server that changes nothing still allows.
READING: Final = frozenset({Permission.SEE, Permission.READ_BODIES, Permission.READ_SECRETS})


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Somebody, by name, and what was granted.

    `origin`: the address that the request came from. `csrf`: what each change by a session in a browser must
    repeat; None: the request was not made with a session's cookie. `read_only`: whether the server changes
    nothing for anybody. `makers`: who else has seen the secret that stands for the name. `kind`: of what it
    is the name.
    """

    name: str
    grants: tuple[Grant, ...]
    origin: str = ""
    csrf: str | None = None
    read_only: bool = False
    makers: tuple[str, ...] = ()
    kind: NameKind = NameKind.PERSON

    @property
    def actor(self) -> Actor:
        """The name for the audit log, with the origin, and with who else may be behind it."""
        return Actor.at(self.name, self.origin, self.makers, kind=self.kind)

    def that_may_change(self) -> Identity:
        """Return the same, as on a server that is not only for looking."""
        return dataclasses.replace(self, read_only=False)

    def may(self, permission: Permission, path: str | None) -> bool:
        """Return whether a permission was granted on an entity; None: on all of them."""
        return not self._refused(permission) and may(self.grants, permission, path)

    def sees(self, path: str) -> bool:
        """Return whether somebody may know of an entity."""
        return self.may(Permission.SEE, path)

    def may_anywhere(self, permission: Permission) -> bool:
        """Return whether a permission was granted on something."""
        granted = any(permission in ROLES[grant.role] for grant in self.grants)
        return granted and not self._refused(permission)

    def require(self, permission: Permission, path: str | None) -> None:
        """Raise NotPermitted unless a permission was granted on an entity; None: on all of them."""
        self._require_changes(permission)
        if not self.may(permission, path):
            where = "on every entity" if path is None else f"on {path!r}"
            raise NotPermitted(f"expected somebody with {permission.value!r} {where}, got {self.name!r}")

    def require_anywhere(self, permission: Permission) -> None:
        """Raise NotPermitted unless a permission was granted on something."""
        self._require_changes(permission)
        if not self.may_anywhere(permission):
            raise NotPermitted(f"expected somebody with {permission.value!r}, got {self.name!r}")

    def _refused(self, permission: Permission) -> bool:
        return self.read_only and permission not in READING

    def _require_changes(self, permission: Permission) -> None:
        if self._refused(permission):
            raise ServerReadOnly("this server only shows: ask one that was started without --read-only")


#: Who has not said who it is.
NOBODY: Final = Identity("-", ())


class Access:
    """Whom a server takes for whom, besides the people in the store.

    `tokens`: identities by their tokens, of which only hashes are kept. `anonymous`: who comes without any.
    `proxies`: who may name people in a header. `secure`: whether browsers reach the server over TLS: then
    cookies are kept from anything else. `read_only`: whether whoever comes may only look.
    `provider`: where people may log in with OpenID Connect.
    """

    def __init__(
        self,
        tokens: Iterable[tuple[str, Identity]] = (),
        anonymous: Identity | None = None,
        *,
        proxies: Proxies | None = None,
        secure: bool = False,
        read_only: bool = False,
        provider: Provider | None = None,
    ) -> None:
        self._identities = [(digest_of(token), identity) for token, identity in tokens]
        self.anonymous = anonymous
        self.proxies = proxies
        self.secure = secure
        self.read_only = read_only
        self.provider = provider

    def by_token(self, token: str) -> Identity | None:
        """Return whom one of the server's own tokens stands for."""
        digest = digest_of(token)
        for stored, identity in self._identities:
            if hmac.compare_digest(stored, digest):
                return dataclasses.replace(identity, kind=NameKind.TOKEN)
        return None


def key_of(name: str, key: str) -> str:
    """Return the idempotency key of somebody, which is nobody else's, whatever they are called."""
    return f"{len(name)}:{name}:{key}"


def require_for(command: Command, require: Callable[[Permission, str | None], None]) -> None:
    """Call `require` with all that a command needs. Raises what it raises, and InvalidOption."""
    for permission, path in command.needs():
        require(permission, path)
    if isinstance(command, PlanRepair) and command.edit is not None:
        refuse_functions(command.edit)


def refuse_functions(edit: str) -> Edit:
    """Return the edit that a text describes. Raises InvalidOption, also for the name of a function."""
    parsed = Edit.parse(edit)
    if parsed.kind is EditKind.FUNCTION:
        raise InvalidOption("expected an edit as SET … or a JSON patch; functions are for the command line")
    return parsed
