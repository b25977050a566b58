"""Names and addresses of hosts: those of this machine, and what a request has in Host. Pure."""

from __future__ import annotations

import ipaddress


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a host is, in brackets or without; none: it is a name."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether a name or address is that of this machine, for this machine alone."""
    address = address_of(host)
    return host == "localhost" or host.endswith(".localhost") if address is None else address.is_loopback


def host_name(host: str) -> str:
    """Return the name or address in a Host, in lower case: without a port, and with an address's brackets."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()
