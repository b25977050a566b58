"""Names and addresses of hosts: those of this machine, and what a request has in Host. Pure."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether a name or address is that of this machine, for this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def host_name(host: str) -> str:
    """Return the name or address in a Host, in lower case: without a port, and with an address's brackets."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()
