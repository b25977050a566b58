"""Keeps pages of web sites out where no key is asked for. Pure."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping

from lazaretto.door.signatures import Unauthorized
from lazaretto.model.loopback import is_loopback


def check_page(headers: Mapping[str, str], *, any_host: bool = False) -> None:
    """Raise Unauthorized if a browser's page of another host makes a request, as its headers tell.

    A browser on this machine reaches the server for any page that it shows. Where keys are asked for, they
    keep such pages out; elsewhere the names of hosts do, also those that only now point to this machine.
    `any_host`: other machines may ask, too.
    """
    if not any_host and not is_loopback(_name(f"//{headers.get('host', '')}")):
        raise Unauthorized("expected localhost in Host, because this server asks for no key")
    origin = headers.get("origin")
    own = any_host and origin is not None and origin.partition("://")[2] == headers.get("host")
    if origin is not None and not own and not is_loopback(_name(origin)):
        raise Unauthorized("expected no page of another host, because this server asks for no key")


def _name(url: str) -> str:
    try:
        return urllib.parse.urlsplit(url).hostname or ""
    except ValueError:
        return ""
