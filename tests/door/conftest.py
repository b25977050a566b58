"""A door on a store, served by a process of its own, and what opens clients to it."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import new_store

import lazaretto
from door.javascript_clients import installed
from door.served import Served, start_door
from lazaretto import Broker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "url" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("stores")
        metafunc.parametrize("url", mark.args if mark else ("sqlite", "postgres"), indirect=True)


def open_sockets() -> list[socket.socket]:
    found = (one for one in gc.get_objects() if issubclass(type(one), socket.socket))
    return [one for one in found if one.fileno() != -1]


@pytest.fixture(autouse=True)
def sockets_of_clients() -> Iterator[None]:
    """Close the sockets that the SDK leaves open when its server has gone, lest another test is blamed."""
    # Not those of whatever else runs in this process, such as Spark.
    before = open_sockets()
    known = set(map(id, before))
    yield
    for one in open_sockets():
        if id(one) not in known:
            one.close()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    with new_store(request.getfixturevalue("postgres").url) as found:
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
