"""Callers over HTTP, their rights, and whom a server takes for whom without asking the store. Pure."""

from __future__ import annotations

import dataclasses
import hmac
import ipaddress
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers

from lazaretto.engine.access import digest_of
from lazaretto.errors import InvalidOption
from lazaretto.model.actors import Actor, NameKind
from lazaretto.model.checks import shown
from lazaretto.model.grants import GROUP, KEY, LONGEST_PERSON, ROLES, Grant, Role, may
from lazaretto.model.permissions import Permission
from lazaretto.web.refusals import NotAuthenticated, NotPermitted, ServerReadOnly

if TYPE_CHECKING:
    from lazaretto.web.oidc import Provider

__all__ = ["ROLES", "Access", "Grant", "Identity", "Proxies", "Role"]

#: What a server that changes nothing still allows.
READING: Final = frozenset({Permission.SEE, Permission.READ_BODIES, Permission.READ_SECRETS})
#: An address with its port, or an IPv6 one in brackets.
_WITH_PORT: Final = re.compile(r"\[([^][]+)\](?::\d{1,5})?|([^:]+):\d{1,5}", re.ASCII)
#: The most groups of a person that count.
MOST_GROUPS: Final = 100


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


class Proxies:
    """Proxies in front of the server that say who asks: from other addresses their headers mean nothing.

    `networks`: where they are, such as "127.0.0.1" or "10.0.0.0/8". `user`: the header with a person's name;
    `groups`: that with the names of groups, between commas. A header that is not named means nothing, since
    a proxy that does not set it passes on what clients send. Raises InvalidOption.
    """

    def __init__(self, networks: Iterable[str], user: str | None = None, groups: str | None = None) -> None:
        try:
            self._networks = [ipaddress.ip_network(network) for network in networks]
        except ValueError as error:
            raise InvalidOption(f"expected the address or network of a proxy: {error}") from None
        for header in (user, groups):
            if header is not None and not (header.replace("-", "").isalnum() and header.isascii()):
                raise InvalidOption(f"expected the name of a header, got {shown(header)}")
        self._user, self._groups = user, groups

    def trusts(self, peer: str) -> bool:
        """Return whether an address is that of a proxy."""
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def address_of(self, peer: str, headers: Headers) -> str:
        """Return where a request comes from: as the last proxy says, if the peer is one."""
        hops = [_portless(hop) for line in headers.getlist("x-forwarded-for") for hop in line.split(",")]
        while self.trusts(peer) and hops:
            peer = hops.pop()
        try:
            return str(ipaddress.ip_address(peer))
        except ValueError:
            return ""

    def names_of(self, peer: str, headers: Headers) -> list[str]:
        """Return the person whom a proxy names, and the person's groups; nobody: an empty list."""
        name = _value_of(headers, self._user) if self.trusts(peer) else ""
        if not name:
            return []
        groups = _value_of(headers, self._groups)
        return vouched_names(name, [group.strip() for group in groups.split(",")])


def _value_of(headers: Headers, name: str | None) -> str:
    """Return what a header says; "" where none is named. Raises NotAuthenticated.

    Of several, some may be the client's own.
    """
    given = [] if name is None else headers.getlist(name)
    if len(given) > 1:
        raise NotAuthenticated(f"expected one header {name}, got several")
    return given[0].strip() if given else ""


def _portless(hop: str) -> str:
    """Return an address of a header without the port that some proxies add."""
    found = _WITH_PORT.fullmatch(hop.strip())
    return hop.strip() if found is None else found[1] or found[2]


def vouched_names(person: str, groups: Iterable[str]) -> list[str]:
    """Return the name of a person and those of the groups, as somebody else says them.

    Raises NotAuthenticated unless it can be a person's name.
    """
    # Nobody is let in under the name of a group or a key.
    reserved = person.lower().startswith((GROUP, KEY))
    if not person or reserved or len(person) > LONGEST_PERSON or not person.isprintable():
        raise NotAuthenticated("expected the name of a person, got another text")
    return [person, *(f"{GROUP}{group}" for group in list(groups)[:MOST_GROUPS] if group)]


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
        wanted = digest_of(token)
        for known, identity in self._identities:
            if hmac.compare_digest(known, wanted):
                return dataclasses.replace(identity, kind=NameKind.TOKEN)
        return None
