"""Doors that are killed, a database server that falls over, networks that freeze, under load.

Nothing that was sent is lost, and nothing is settled twice.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from load import QUEUE
from servers import new_store, start, wait_for

import lazaretto
from door.load import Network, SdkLoad, take_what_comes_back
from door.served import Served, start_door
from lazaretto import Broker, PoisonPolicy, QueueOptions

#: Azure's clients leave the sockets of dead servers open.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

_SOAK = os.environ.get("LAZARETTO_SOAK") == "1"
_OPTIONS = QueueOptions(lock_duration=2, policy=PoisonPolicy(receive_retry_count=1_000))


def test_killed_doors(serve: Callable[..., Served], broker: Broker, url: str) -> None:
    draw = random.Random(3)
    broker.create_queue(QUEUE, _OPTIONS)
    doors = [serve(), serve()]
    with SdkLoad(lambda: draw.choice(doors).connection_string) as load:
        for _ in range(60 if _SOAK else 3):
            load.wait_for(draw.randrange(20, 60))
            doors.pop(draw.randrange(2)).kill()
            load.wait_for(20)
            doors.append(serve())
        load.wait_for(50)
    load.check(url)
    assert load.errors.total() > 0


def test_a_database_server_that_falls_over() -> None:
    server = start()
    try:
        with new_store(server.url) as url:
            with lazaretto.connect(url) as broker:
                broker.create_queue(QUEUE, _OPTIONS)
            door = start_door(url)
            try:
                with SdkLoad(lambda: door.connection_string) as load:
                    for _ in range(20 if _SOAK else 2):
                        load.wait_for(50)
                        server.crash()
                        wait_for(server.url)
                    load.wait_for(50)
                load.check(url)
            finally:
                door.end()
    finally:
        server.stop()


def test_frozen_networks(served: Served, broker: Broker, url: str) -> None:
    """Locks expire while nothing arrives; what the clients say of their messages then comes too late."""
    broker.create_queue(QUEUE, _OPTIONS)
    expired = 0
    with Network(served.port) as network:
        address = served.connection_string.replace(f":{served.port}", f":{network.port}")
        with SdkLoad(lambda: address) as load:
            for round_ in range(40 if _SOAK else 2):
                load.wait_for(50)
                network.freeze()
                expired += take_what_comes_back(broker, load)
                if round_ % 2:
                    network.cut()
                network.thaw()
            load.wait_for(50)
    load.check(url)
    assert expired > 0
