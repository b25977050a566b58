"""A door on a store, served by a process of its own, and what opens clients to it."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import new_store

import lazaretto
from door.served import Served
from lazaretto import Broker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "url" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("stores")
        metafunc.parametrize("url", mark.args if mark else ("sqlite", "postgres"), indirect=True)


@pytest.fixture(autouse=True)
def sockets_of_clients() -> Iterator[None]:
    """Close the sockets that the SDK leaves open when its server has gone, lest another test is blamed."""
    yield
    for one in gc.get_objects():
        if issubclass(type(one), socket.socket) and one.fileno() != -1:
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
        command = [
            sys.executable,
            "-m",
            "lazaretto",
            "serve",
            "--store",
            url,
            "--amqp",
            "0",
            "--json",
            *options,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        started.append(Served(process, said["amqp_port"], said["connection_string"], said))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(20) == 0
        assert served.process.stdout is not None
        served.process.stdout.close()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()
