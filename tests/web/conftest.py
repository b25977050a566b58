"""The HTTP API of a store, on a free port, and a client of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeVar

import httpx
import pytest
from door.conftest import broker, pytest_generate_tests, url

from lazaretto import aio
from lazaretto.web import Access, Grant, Identity, Role, open_web
from lazaretto.web.page_options import TriedHandlers

__all__ = ["broker", "pytest_generate_tests", "url"]

P = ParamSpec("P")
T = TypeVar("T")

TOKENS = {
    "admin": (Grant(Role.ADMIN),),
    "viewer": (Grant(Role.VIEWER),),
    "operator": (Grant(Role.OPERATOR),),
    "client": (Grant(Role.CLIENT),),
    "shop": (Grant(Role.ADMIN, "shop/*"),),
}


class Served(NamedTuple):
    """A server, and what makes a client of somebody: of nobody for None."""

    port: int
    client: Callable[[str | None], httpx.Client]


def beside_the_loop(work: Callable[P, T]) -> Callable[P, T]:
    """Return work that fails in the thread of an event loop: all requests would wait for it."""

    @functools.wraps(work)
    def checked(*arguments: P.args, **named: P.kwargs) -> T:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            pytest.fail(f"{work.__name__} runs in the event loop")
        return work(*arguments, **named)

    return checked


@contextlib.contextmanager
def serving(url: str, handlers: TriedHandlers | None = None, **given: Any) -> Iterator[Served]:
    """Serve the API of a store in a thread. `handlers`: to try letters on. `given`: more of its Access."""
    started, ports, ended, loops = threading.Event(), [], asyncio.Event(), []
    own = ((f"token-of-{name}", Identity(name, grants)) for name, grants in TOKENS.items())
    access = Access(own, **given)

    async def serve() -> None:
        async with (
            await aio.connect(url) as one,
            open_web(one, access, port=0, handlers=handlers) as server,
        ):
            ports.append(server.port)
            loops.append(asyncio.get_running_loop())
            started.set()
            await ended.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        finally:
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(120)
    clients: list[httpx.Client] = []

    def client(name: str | None) -> httpx.Client:
        headers = {} if name is None else {"Authorization": f"Bearer token-of-{name}"}
        clients.append(
            httpx.Client(base_url=f"http://127.0.0.1:{ports[0]}/api/v1", headers=headers, timeout=120)
        )
        return clients[-1]

    try:
        yield Served(ports[0], client)
    finally:
        for one in clients:
            one.close()
        loops[0].call_soon_threadsafe(ended.set)
        thread.join(120)
    assert not thread.is_alive()


@pytest.fixture
def served(url: str, request: pytest.FixtureRequest) -> Iterator[Served]:
    """The API, served by a thread. A parameter: more of its Access, and handlers to try letters on."""
    with serving(url, **getattr(request, "param", {})) as found:
        yield found


@pytest.fixture
def api(served: Served) -> httpx.Client:
    """A client that may do everything."""
    return served.client("admin")
