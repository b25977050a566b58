"""A door on a store, served by a process of its own, and what opens clients to it."""

from __future__ import annotations

import socket
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stock import used_store

import lazaretto
from door.javascript_clients import installed
from door.served import Served, start_door
from lazaretto import Broker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "url" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("stores")
        metafunc.parametrize("url", mark.args if mark else ("sqlite", "postgres"), indirect=True)


@pytest.fixture(scope="session")
def made_sockets() -> Iterator[weakref.WeakSet[socket.socket]]:
    """Every socket that this process makes from now on."""
    made: weakref.WeakSet[socket.socket] = weakref.WeakSet()
    make = socket.socket.__init__

    def note(self: socket.socket, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        made.add(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "__init__", note)
        yield made


@pytest.fixture(autouse=True)
def sockets_of_clients(made_sockets: weakref.WeakSet[socket.socket]) -> Iterator[None]:
    """Close the sockets that the SDK leaves open when its server has gone, lest another test is blamed."""
    # Not those of whatever else runs in this process, such as Spark.
    made_sockets.clear()
    yield
    for one in list(made_sockets):
        one.close()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    with used_store(request.getfixturevalue("postgres").url) as found:
        yield found


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    """The same store in this process."""
    with lazaretto.connect(url) as broker:
        broker.create_queue("q")
        yield broker


@pytest.fixture
def serve(url: str, broker: Broker) -> Iterator[Callable[..., Served]]:
    """Start `lazaretto serve` with options; every one is ended, and must end well, at the end."""
    started: list[Served] = []

    def start(*options: str) -> Served:
        started.append(start_door(url, *options))
        return started[-1]

    yield start
    for served in started:
        served.end()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()


@pytest.fixture(scope="session")
def packages() -> Path:
    """Return where the clients for JavaScript are installed."""
    return installed()
