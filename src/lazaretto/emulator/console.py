"""The console on an emulator's port: pages of the namespace that a browser asks for."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from lazaretto.emulator.namespaces import OpenNamespace
from lazaretto.engine.log import actor_name, user_name
from lazaretto.servicebus.http import CONSOLE
from lazaretto.serving.http import Application
from lazaretto.web import Access, Grant, Identity, Role
from lazaretto.web.app import web_app
from lazaretto.web.origin import RelativeRedirects


class ConsoleDesk:
    """Makes the console of each namespace when somebody first looks at it. Nobody logs in."""

    def __init__(self, host: str, host_names: Sequence[str]) -> None:
        self._names = ("localhost", "127.0.0.1", "[::1]", host, *host_names)
        self._made: dict[OpenNamespace, Application] = {}

    def of(self, namespace: OpenNamespace, host: str) -> Application:
        """Return the pages of a namespace, for a host by which it was pages."""
        pages = self._made.get(namespace)
        if pages is None:
            pages = self._made[namespace] = self._make(namespace, host)
        return pages

    def _make(self, namespace: OpenNamespace, host: str) -> Application:
        somebody = Identity(user_name(), (Grant(Role.ADMIN),), makers=(actor_name(),))
        app = web_app(namespace.door.broker, Access([], somebody), host_names=(*self._names, host))
        namespace.at_end(lambda: self._made.pop(namespace, None))
        namespace.at_end(app.state.ending.begin)
        app.state.stores = []
        return Starlette(routes=[Mount(CONSOLE, app)], middleware=[Middleware(RelativeRedirects)])
