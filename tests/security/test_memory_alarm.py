"""A server that takes too much memory begins nothing new, and says so to whoever watches it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from azure.servicebus.exceptions import ServiceBusServerBusyError
from door.client import connected, opened, run
from door.wire import serving

from lazaretto import ServerOverloaded, aio
from lazaretto.model.limits import ServerLimits
from lazaretto.servicebus.amqp.events import LinkDetached
from lazaretto.serving.guard import Guard, MemoryAlarm, taken
from lazaretto.web import Access, Grant, Identity, Role, open_web


def test_the_alarm_ends_when_there_is_clearly_less() -> None:
    alarm = MemoryAlarm(1_000)
    told = [(size, alarm.look(size), alarm.rings) for size in (1_000, 1_001, 950, 899, 1_000)]
    assert told == [
        (1_000, False, False), (1_001, True, True), (950, False, True), (899, True, False),
        (1_000, False, False),
    ]  # fmt: skip


def test_what_the_process_took_before_does_not_ring_it() -> None:
    guard = Guard(ServerLimits(process_size=1 << 30))
    assert guard.alarm.most >= (1 << 30) + taken() // 2


def test_over_http_new_work_is_refused_and_metrics_tell_why(tmp_path: Path) -> None:
    async def work() -> None:
        guard = Guard(ServerLimits())
        guard.alarm.most = 1
        owner = Identity("owner", (Grant(Role.ADMIN),))
        async with (
            await aio.connect(tmp_path / "store.db") as broker,
            open_web(broker, Access(anonymous=owner), port=0, guard=guard) as server,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=120) as client,
        ):
            guard.look(0.0)
            answer = await client.get("/api/v1/queues")
            assert (answer.status_code, answer.json()["code"]) == (503, "server_overloaded")
            assert answer.headers["retry-after"] == "1"
            for method, path in (("GET", "/"), ("GET", "/search?q=x"), ("POST", "/do/create_queue")):
                page = await client.request(method, path, data={} if method == "GET" else {"path": "q"})
                assert (page.status_code, page.headers["content-type"][:9]) == (503, "text/html"), path
            assert [one.path for one in await broker.queues()] == ["$system/deadletter"]
            assert (await client.get("/healthz")).status_code == 200
            assert "lazaretto_server_memory_alarm 1" in (await client.get("/metrics")).text.splitlines()

    run(work)


@pytest.mark.stores("sqlite")
def test_over_amqp_links_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (_, door), connected(door) as client:
            door.guard.alarm.rings = True
            with pytest.raises(ServerOverloaded):
                door.guard.refuse_new_work()
            await client.link(sends=True)
            error = (await client.until(LinkDetached)).error
            assert error is not None
            assert error.condition == "com.microsoft:server-busy"

    run(work)


@pytest.mark.stores("sqlite")
def test_azures_client_learns_that_the_server_is_busy(tmp_path: Path) -> None:
    with serving(tmp_path) as wire:
        q = wire.make()
        wire.guard.alarm.most = 1
        wire.guard.look(0.0)
        with pytest.raises(ServiceBusServerBusyError):
            wire.send(q, b"x")
        with pytest.raises(ServiceBusServerBusyError):
            wire.receiver(q)
        wire.guard.alarm.most = 1 << 50
        wire.guard.look(0.0)
        wire.send(q, b"x")
        assert wire.peek(q)
