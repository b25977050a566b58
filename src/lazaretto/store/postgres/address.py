"""Parses and checks a server's URL, so that no error can reveal its contents.

libpq reads a password with an unescaped @ or / as part of the host, and shows it in its error.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import unquote

from psycopg import pq
from psycopg.conninfo import make_conninfo

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import suggestion

#: A server that is gone without a word is noticed by what it no longer answers: in seconds, the last one in
#: milliseconds.
_DEFAULTS: dict[str, str] = {
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
_SCHEMA = "lazaretto"
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_USER = "write @ as %40, : as %3A, / as %2F, ? as %3F and % as %25 in the user's name and the password"


class Address(NamedTuple):
    """The location of a store: the connection string for libpq, and the schema."""

    conninfo: str
    schema: str


def parse_address(url: str) -> Address:
    """Return the address in a URL. Raises InvalidOption, without the URL: it may contain a password."""
    if _CONTROL.search(url):
        raise _malformed("it has a control character")
    base, _, query = url.partition("://")[2].partition("?")
    authority, _, database = base.partition("/")
    if "@" in database or "/" in database:
        raise _malformed(f"there is an @ or a / after the host; {_USER}")
    parameters = _server(authority)
    if database:
        parameters["dbname"] = _decoded(database, "the database's name")
    schema = _SCHEMA
    for name, value in _options(query):
        if name == "schema":
            schema = value
        else:
            parameters[name] = value
    return Address(make_conninfo("", **{**_DEFAULTS, **parameters}), schema)


def _malformed(what: str) -> InvalidOption:
    return InvalidOption(
        f"expected a store's URL such as postgresql://user:password@host/database, but {what}"
    )


def _decoded(text: str, what: str) -> str:
    if _BAD_ESCAPE.search(text):
        raise _malformed(f"{what} has a % that is not followed by two hexadecimal digits; write % as %25")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise _malformed(f"{what} is not valid UTF-8 once its %-escapes are decoded") from None


def _server(authority: str) -> dict[str, str]:
    """Return the parameters before the database name: user, password, hosts and ports."""
    parts: dict[str, str] = {}
    user, at, hosts = authority.rpartition("@")
    if "@" in user:
        raise _malformed(f"there is more than one @; {_USER}")
    if at:
        name, colon, password = user.partition(":")
        if name:
            parts["user"] = _decoded(name, "the user's name")
        if colon:
            parts["password"] = _decoded(password, "the password")
    pairs = [_host(each) for each in hosts.split(",")]
    if any(host for host, _ in pairs):
        parts["host"] = ",".join(host for host, _ in pairs)
    if any(port for _, port in pairs):
        parts["port"] = ",".join(port for _, port in pairs)
    return parts


def _host(text: str) -> tuple[str, str]:
    """Return a host and a port, each of which may be empty."""
    if text.startswith("["):
        inside, closed, rest = text[1:].partition("]")
        try:
            ipaddress.IPv6Address(inside.partition("%")[0])
        except ValueError:
            closed = ""
        if not closed or (rest and not rest.startswith(":")):
            raise _malformed("it has an invalid IPv6 host; write it as [::1] or [::1]:5432")
        # A zone's % may be written as it is, or escaped.
        host, port = inside.replace("%25", "%"), rest[1:]
    else:
        name, _, port = text.partition(":")
        host = _decoded(name, "the host")
        if "[" in host or "]" in host:
            raise _malformed("it has an invalid IPv6 host; write it as [::1] or [::1]:5432")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise _malformed(f"the port is not a number; {_USER}")
    return host, port


def _options(query: str) -> list[tuple[str, str]]:
    names = {option.keyword.decode() for option in pq.Conninfo.get_defaults()} | {"schema", "ssl"}
    options = []
    for part in query.split("&") if query else ():
        name, equals, value = part.partition("=")
        if not equals or "=" in value:
            raise _malformed("the query is not name=value&name=value; write = as %3D and & as %26")
        name = _decoded(name, "a parameter's name")
        if name not in names:
            # An unescaped ? or & in a password would stand here, too.
            hint = suggestion(name, names) if name.isidentifier() and len(name) < 30 else ""
            raise _malformed(f"it has a parameter unknown to PostgreSQL{hint}")
        value = _decoded(value, f"the parameter {name}")
        if name == "ssl":
            if value != "true":
                raise _malformed("the parameter ssl is not true; use sslmode")
            name, value = "sslmode", "require"
        options.append((name, value))
    return options
