"""Names that proxies and identity providers vouch for. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.grants import GROUP, KEY, LONGEST_PERSON
from lazaretto.web.refusals import NotAuthenticated

#: An address with its port, or an IPv6 one in brackets.
_WITH_PORT: Final = re.compile(r"\[([^][]+)\](?::\d{1,5})?|([^:]+):\d{1,5}", re.ASCII)
#: The most groups of a person that count.
MOST_GROUPS: Final = 100


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
    values = [] if name is None else headers.getlist(name)
    if len(values) > 1:
        raise NotAuthenticated(f"expected one header {name}, got several")
    return values[0].strip() if values else ""


def _portless(hop: str) -> str:
    """Return an address of a header without the port that some proxies add."""
    match = _WITH_PORT.fullmatch(hop.strip())
    return hop.strip() if match is None else match[1] or match[2]


def vouched_names(person: str, groups: Iterable[str]) -> list[str]:
    """Return the name of a person and those of the groups, as somebody else says them.

    Raises NotAuthenticated unless it can be a person's name.
    """
    # Nobody is let in under the name of a group or a key.
    reserved = person.lower().startswith((GROUP, KEY))
    if not person or reserved or len(person) > LONGEST_PERSON or not person.isprintable():
        raise NotAuthenticated("expected the name of a person, got another text")
    return [person, *(f"{GROUP}{group}" for group in list(groups)[:MOST_GROUPS] if group)]
