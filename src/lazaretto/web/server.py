"""The server of the HTTP API: one event loop, on this machine unless it knows who asks."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount, Route

from lazaretto.aio import AsyncBroker
from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.loopback import is_loopback
from lazaretto.serving.guard import Guard
from lazaretto.serving.http import HttpServer
from lazaretto.serving.listener import Listener
from lazaretto.web.access import Access
from lazaretto.web.app import web_app
from lazaretto.web.origin import RelativeRedirects
from lazaretto.web.page_options import PageOptions, StoreLink, TriedHandlers

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,29}")
#: Seconds that clients have to take their answers when the server ends.
_GRACE: Final = 1


@dataclasses.dataclass(frozen=True, slots=True)
class OtherStore:
    """A store that is served beside the first, below its name. Raises InvalidOption for a name of no path."""

    name: str
    broker: AsyncBroker
    access: Access
    pages: PageOptions | None = None
    handlers: TriedHandlers | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidOption(
                f"expected a store's name to have up to 30 letters, digits, - and _, got {shown(self.name)}"
            )


class WebServer:
    """A running server. `port`: where clients connect."""

    def __init__(self, port: int) -> None:
        self.port = port


@contextlib.asynccontextmanager
async def open_web(
    broker: AsyncBroker,
    access: Access,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    host_names: Iterable[str] = (),
    pages: PageOptions | None = None,
    prefix: str = "",
    others: Sequence[OtherStore] = (),
    handlers: TriedHandlers | None = None,
    tls: ssl.SSLContext | None = None,
    tls_only: bool = True,
    strict: bool = False,
    guard: Guard | None = None,
) -> AsyncIterator[WebServer]:
    """Serve the HTTP API while the context lasts.

    `host`: the address to listen at. `port`: 0 for a free one, which is in `WebServer.port` then.
    `host_names`: names in `Host` beside those of this machine. `pages`: what pages show to be told from
    another's. `prefix`: what comes before every path, such as "/queues", if a proxy shares its host with
    others. `others`: further stores, each below its name: pages, API, sessions and all. Every page links to
    the others. `handlers`: what people can try letters on. `tls`: with the server's certificate; None:
    nothing is encrypted. `tls_only`: with a certificate, who does not encrypt is hung up on. `strict`:
    browsers are told to come to a named host over TLS alone. `guard`: that of a server with other doors,
    whose limits hold for all of them; None: one of its own. Raises InvalidOption for an address beyond this
    machine if everybody is let in.
    """
    everybody = [one for one in (access, *(other.access for other in others)) if one.anonymous is not None]
    if not is_loopback(host) and everybody:
        raise InvalidOption(
            f"expected an address of this machine, such as 127.0.0.1, got {host!r}: "
            "everybody who reaches it would be let in"
        )
    own = f"[{host}]" if ":" in host else host
    names = ("localhost", "127.0.0.1", "[::1]", own, *host_names)
    apps = {"": web_app(broker, access, host_names=names, pages=pages, handlers=handlers)}
    for other in others:
        if other.name in apps or other.name in _first_parts(apps[""]):
            raise InvalidOption(f"expected another name for a store: {other.name!r} is taken")
        apps[other.name] = web_app(
            other.broker, other.access, host_names=names, pages=other.pages, handlers=other.handlers
        )
    links = [
        StoreLink(app.state.pages.name or name or "first", f"{prefix}/{name}" if name else prefix)
        for name, app in apps.items()
    ]
    for app in apps.values():
        app.state.stores = links if others else []
    # The first has all paths that are no other's.
    mounts = [Mount(f"{prefix}/{name}" if name else prefix, app) for name, app in reversed(apps.items())]
    outer = [Middleware(RelativeRedirects)]
    served = Starlette(routes=mounts, middleware=outer) if prefix or others else apps[""]
    guard = guard or Guard()
    http = HttpServer(served, guard, strict=strict and tls is not None)
    listener = Listener(guard, http.connection, tls, tls_only=tls_only)
    port = listener.listen(host, [port])
    async with guard.watching():
        try:
            yield WebServer(port)
        finally:
            # Those who wait are told, so that the server need not wait for them.
            for app in apps.values():
                app.state.ending.begin()
            await listener.close()
            await http.close(_GRACE)


def _first_parts(app: Starlette) -> set[str]:
    """Return what the paths of an application begin with."""
    return {route.path.split("/")[1] for route in app.routes if isinstance(route, Route)}
