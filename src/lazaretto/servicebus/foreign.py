"""Keeps pages of web sites out where no key is asked for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lazaretto.model.checks import shown
from lazaretto.model.loopback import address_of, host_name, is_loopback
from lazaretto.servicebus.signatures import Unauthorized


def check_page(
    headers: Mapping[str, str], *, any_host: bool = False, host_names: Collection[str] = ()
) -> None:
    """Raise Unauthorized if a browser's page of another host makes a request, as its headers tell.

    A browser on this machine reaches the server for any page that it shows. Where keys are asked for, they
    keep such pages out; elsewhere the names of hosts do, also those that only now point to this machine.
    `any_host`: other machines may ask, too, by addresses or names without a dot, which no site has.
    `host_names`: further names of the server.
    """
    name = host_name(headers.get("host", ""))
    near = is_loopback(name) or (any_host and (address_of(name) is not None or "." not in name))
    if not near and name not in {one.lower() for one in host_names}:
        asked = "localhost, an address or a name without a dot" if any_host else "localhost"
        raise Unauthorized(
            f"expected {asked} in Host, because this server asks for no key, got {shown(name)}; "
            "name others with --host-name"
        )
    origin = headers.get("origin")
    if origin is None:
        return
    place = origin.partition("://")[2]
    if not (any_host and place == headers.get("host")) and not is_loopback(host_name(place)):
        raise Unauthorized("expected no page of another host, because this server asks for no key")
