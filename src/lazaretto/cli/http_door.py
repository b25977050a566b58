"""How `lazaretto serve` serves HTTP, and whom it lets in: its options, checked together."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import re
import secrets
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from urllib.parse import SplitResult

import typer

from lazaretto.cli.command import Options, option
from lazaretto.cli.exits import usage
from lazaretto.cli.parse import number
from lazaretto.cli.secret_files import keep_token, secret_of, token_of
from lazaretto.model.installing import install

if TYPE_CHECKING:
    from lazaretto.web import Access, PageOptions
    from lazaretto.web.oidc import Provider

#: Where the HTTP API is, unless told otherwise.
PORT: Final = 8080
_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")
#: What stands for all addresses of this machine.
EVERY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104


class AlsoServed(NamedTuple):
    """A store beside the first, as `--also` names it."""

    name: str
    colour: str
    url: str


def _origin_of(url: str) -> SplitResult:
    parts = urllib.parse.urlsplit(url.rstrip("/"))
    web = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment
    if not web or not _PATH.fullmatch(parts.path):
        raise usage(f"expected --origin to be such as https://queues.example.com, got {url!r}")
    return parts


def _also(text: str) -> AlsoServed:
    named, _, url = text.partition("=")
    name, _, colour = named.partition(":")
    if not name or not url:
        raise usage(f"expected --also to be such as test=test.db or prod:red=prod.db, got {text!r}")
    return AlsoServed(name, colour or "grey", url)


@dataclasses.dataclass(frozen=True, slots=True)
class HttpDoor:
    """How HTTP is served. `token`: that of the owner; None: everybody is let in as the owner."""

    http: Annotated[
        int | None,
        option(
            "Port for the HTTP API; 0 for a free one.  [default: 8080 without --amqp]",
            "PORT",
            parser=number(0, 65_535),
        ),
    ] = None
    host: Annotated[str, option("Address of the HTTP API. Beyond this machine it needs TLS.", "ADDRESS")] = (
        "127.0.0.1"
    )
    token_file: Annotated[
        Path | None, option("File with the token that HTTP clients send.  [default: a new one, in a file]")
    ] = None
    no_login: Annotated[bool, option("Let every program on this machine use the HTTP API.")] = False
    proxies: Annotated[
        list[str] | None,
        option(
            "Address or network of a proxy that says who asks; repeatable.  [default: none]",
            "ADDRESS",
            "--proxy",
        ),
    ] = None
    user_header: Annotated[
        str | None,
        option("Header in which the proxy names a person: X-Forwarded-User.  [default: none]", "HEADER"),
    ] = None
    groups_header: Annotated[
        str | None, option("Header in which it names groups: X-Forwarded-Groups.  [default: none]", "HEADER")
    ] = None
    origin: Annotated[
        SplitResult | None,
        option(
            "Where browsers see the server, if a proxy is in front: https://ops.example.com/queues.",
            "URL",
            parser=_origin_of,
        ),
    ] = None
    oidc: Annotated[
        str | None, option("Identity provider where people log in: its issuer's address.", "ISSUER")
    ] = None
    oidc_client: Annotated[str | None, option("What the provider knows this server as.", "ID")] = None
    oidc_secret_file: Annotated[
        Path | None, option("File with the secret that the provider gave.  [default: none]")
    ] = None
    oidc_name: Annotated[str, option("Claim that is a person's name here.", "CLAIM")] = "email"
    oidc_groups: Annotated[str, option("Claim with the names of groups.", "CLAIM")] = "groups"
    read_only: Annotated[bool, option("Let everybody look, and nobody change anything.")] = False
    name: Annotated[str, option("What the console's pages are marked with: prod.")] = ""
    colour: Annotated[str, option("Its colour: blue, green, grey, orange, purple or red.")] = "grey"
    also: Annotated[
        list[AlsoServed] | None,
        option(
            "Another store, below /NAME/; repeatable.  [default: none]", "NAME[:COLOUR]=STORE", parser=_also
        ),
    ] = None
    handlers: Annotated[
        list[str] | None,
        option(
            "Handler that people may try letters on, in a sandbox; repeatable.  [default: none]",
            "MODULE:FUNCTION",
            "--handler",
        ),
    ] = None
    trace_url: Annotated[
        str, option("Where traces are shown: https://traces.example.com/trace/{trace_id}.", "URL")
    ] = ""
    token: str | None = dataclasses.field(default=None, repr=False)

    def check(self) -> None:
        """Refuse what cannot be served. Raises InvalidOption, and usage errors."""
        if self.host in EVERY_ADDRESS and self.origin is None:
            raise usage(f"--host {self.host} needs --origin: the address under which clients see the server")
        if (self.oidc is None) != (self.oidc_client is None):
            raise usage("give --oidc and --oidc-client, both or neither")
        if self.user_header is None and self.groups_header is not None:
            raise usage("give --user-header with --groups-header: groups are those of a person")
        if not self.proxies and self.user_header is not None:
            raise usage("give --proxy with --user-header: a header is believed from a proxy alone")
        _demand("starlette", "the HTTP API", "serve")
        self.access()
        self.pages()
        for other in self.also or ():
            self.pages(other)

    def pages(self, other: AlsoServed | None = None) -> PageOptions:
        """Return what the pages of the store, or of another, show. Raises InvalidOption."""
        from lazaretto.web import PageOptions

        name, colour = (self.name, self.colour) if other is None else (other.name, other.colour)
        return PageOptions(name, colour, self.trace_url)

    def access(self, *, secure: bool = False) -> Access:
        """Return whom the server takes for whom. `secure`: it encrypts itself. Raises InvalidOption."""
        from lazaretto.engine.log import actor_name, user_name
        from lazaretto.web import Access, Grant, Identity, Proxies, Role

        # At the command line the same person has the longer name.
        somebody = Identity(user_name(), (Grant(Role.ADMIN),), makers=(actor_name(),))
        own = [] if self.token is None else [(self.token, somebody)]
        headers = (self.user_header, self.groups_header)
        return Access(
            own,
            somebody if self.token is None else None,
            proxies=Proxies(self.proxies, *headers) if self.proxies else None,
            secure=secure if self.origin is None else self.origin.scheme == "https",
            read_only=self.read_only,
            provider=self._provider(),
        )

    def _provider(self) -> Provider | None:
        if self.oidc is None or self.oidc_client is None:
            return None
        _demand("authlib", "OpenID Connect", "oidc")
        from lazaretto.web.oidc import OidcOptions, Provider

        file = self.oidc_secret_file
        secret = None if file is None else secret_of(file, "secret")
        return Provider(OidcOptions(self.oidc, self.oidc_client, secret, self.oidc_name, self.oidc_groups))

    @contextlib.contextmanager
    def with_token_file(self) -> Iterator[HttpDoor]:
        """Serve with a file for the token that was made, which is removed afterwards."""
        if self.http is None or self.token is None or self.token_file is not None:
            yield self
            return
        made = keep_token(self.token)
        try:
            yield dataclasses.replace(self, token_file=made)
        finally:
            made.unlink(missing_ok=True)

    def shown_host(self) -> str:
        """Return how addresses name the host where it listens."""
        if self.host in ("127.0.0.1", *EVERY_ADDRESS):
            return "localhost"
        return in_url(self.host)

    def prefix(self) -> str:
        """Return what comes before every path."""
        return "" if self.origin is None else self.origin.path

    def host_names(self) -> list[str]:
        """Return the names under which the server is seen besides those of this machine."""
        return [] if self.origin is None else [self.origin.netloc, str(self.origin.hostname)]


def in_url(host: str) -> str:
    """Return a host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def _demand(module: str, what: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise usage(f"{what} needs more packages: {install(extra)}")


def _made(_: typer.Context, options: dict[str, Any]) -> HttpDoor:
    door = HttpDoor(**options)
    if door.no_login and door.token_file is not None:
        raise usage("give --token-file or --no-login, not both")
    made = f"lzt_{secrets.token_urlsafe(32)}" if door.token_file is None else token_of(door.token_file)
    return door if door.no_login else dataclasses.replace(door, token=made)


HttpOptions = Annotated[HttpDoor, Options.of(HttpDoor, _made)]
