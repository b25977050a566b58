"""Async handlers of one process run at the same time, and each is settled as it ends."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE, wait_until

from lazaretto import Broker, Message, PoisonPolicy, QueueOptions, ReceivedMessage
from lazaretto.host import Handler, HandlerContext, ServiceHost
from lazaretto.host.handlers import GivenIsolation

from .serving import send, serve, worked_off
from .test_deaths import Service, end


async def act(message: ReceivedMessage) -> None:
    import asyncio
    import os
    import time
    from pathlib import Path

    what, _, rest = message.body.decode().partition(" ")
    await asyncio.sleep(0)
    if what == "nap":
        await asyncio.sleep(float(rest))
    if what == "meet":
        folder = Path(rest)
        (folder / str(message.sequence_number)).touch()
        while len(list(folder.iterdir())) < 40:
            await asyncio.sleep(0.01)
    if what == "raise":
        raise ValueError(rest)
    if what == "block" and rest:
        time.sleep(float(rest))
    if what == "die":
        await asyncio.sleep(0.1)
        os._exit(3)


def test_forty_are_at_work_at_the_same_time(
    broker: Broker, isolation: GivenIsolation, tmp_path: Path
) -> None:
    folder = tmp_path / "met"
    folder.mkdir()
    send(broker, "work", *[f"meet {folder}".encode()] * 40)
    (report,) = serve(broker, Handler("work", act, isolation=isolation, deadline=None))
    assert (report.completed, report.retried, report.dead) == (40, 0, 0)


def test_no_more_run_at_the_same_time_than_a_batch_has(broker: Broker) -> None:
    at_work = most = 0

    async def count(message: ReceivedMessage) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        while most < 5:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        at_work -= 1

    send(broker, "work", *[b""] * 20)
    serve(broker, Handler("work", count, isolation="inline", batch_size=5))
    assert most == 5


def test_those_that_have_ended_are_settled_while_another_goes_on(
    broker: Broker, isolation: GivenIsolation
) -> None:
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=0))
    long, *_ = send(broker, "work", b"nap 3600", b"nap 0", b"raise a", b"nap 0.01")
    host = ServiceHost(broker, Handler("work", act, isolation=isolation, deadline=None), grace=0.1)
    with host:
        wait_until(lambda: broker.queue("work").counts.total == 2)
        (left,) = broker.peek("work", 9)
        assert (left.sequence_number, left.state.value) == (long, "locked")
    (left,) = broker.peek("work", 9)
    assert (left.sequence_number, left.state.value, left.delivery_count) == (long, "active", 0)
    (dead,) = broker.dead_letters("work")
    assert dead.error_message == "a"


def test_one_of_many_fails_or_is_late(broker: Broker, isolation: GivenIsolation) -> None:
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=0))
    bodies = [b"nap 0.1", b"raise a", b"nap 3600", b"nap 0.1"]
    numbers = send(broker, "work", *bodies)
    (report,) = serve(broker, Handler("work", act, isolation=isolation, deadline=4))
    assert (report.completed, report.dead) == (2, 2)
    found = {d.sequence_number: d.error_type for d in broker.dead_letters("work")}
    assert found == {numbers[1]: "ValueError", numbers[2]: "HandlerTimeout"}


@pytest.mark.parametrize(("body", "error"), [(b"block 3600", "HandlerTimeout"), (b"die", "WorkerCrashed")])
def test_one_that_blocks_or_dies_charges_no_other(broker: Broker, body: bytes, error: str) -> None:
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=0))
    numbers = send(broker, "work", b"nap 0.5", b"nap 0", body, b"nap 0.5")
    (report,) = serve(broker, Handler("work", act, deadline=4))
    assert (report.completed, report.dead) == (3, 1)
    (dead,) = broker.dead_letters("work")
    assert (dead.sequence_number, dead.error_type) == (numbers[2], error)


def test_one_that_blocks_the_hosts_own_process_expires_alone(broker: Broker) -> None:
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=0), lock_duration=4)
    numbers = send(broker, "work", b"nap 0", b"nap 1", b"block", b"nap 1")
    over = threading.Event()

    async def block(message: ReceivedMessage) -> None:
        if message.body == b"block":
            over.wait(PATIENCE)
        await act(message)

    host = ServiceHost(broker, Handler("work", block, isolation="inline", deadline=4, concurrency=2))
    with host:
        wait_until(worked_off(broker, "work"))
        over.set()
        # A thread that hangs is left alone with its event loop, which nobody could close.
        wait_until(lambda: not any(slot.held for slot in host._slots))
    (report,) = host.reports()
    assert report.completed == 3
    (dead,) = broker.dead_letters("work")
    assert dead.sequence_number == numbers[2]


def test_one_that_holds_up_a_host_that_ends_closes_its_event_loop_later(broker: Broker) -> None:
    send(broker, "work", b"block")
    over, loops = threading.Event(), list[asyncio.AbstractEventLoop]()

    async def block(message: ReceivedMessage) -> None:
        loops.append(asyncio.get_running_loop())
        over.wait(PATIENCE)

    host = ServiceHost(broker, Handler("work", block, isolation="inline"))
    host.start()
    wait_until(lambda: bool(loops))
    host.stop(grace=0.0)
    assert not loops[0].is_closed()
    over.set()
    wait_until(loops[0].is_closed)


def test_a_killed_host_charges_nobody_where_several_were_at_work(
    broker: Broker, store: Path, isolation: GivenIsolation
) -> None:
    broker.update_queue("work", policy=PoisonPolicy())
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE done (n INTEGER PRIMARY KEY)")
    send(broker, "work", *[b"wait %d" % n for n in range(6)])
    service = Service(store, isolation)
    process = service.start(ASYNC="1")
    wait_until(lambda: len(service.lines()) == 6)
    assert end(process, signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: broker.queue("work").counts.locked == 0)
    assert not [m for m in broker.peek("work", 99) if m.delivery_count]
    service.let_go()
    assert end(service.start(ASYNC="1", ONCE="1")) == 0
    assert broker.queue("work").counts.total == 0


def test_control_c_gives_back_uncharged_what_is_not_finished(
    broker: Broker, store: Path, isolation: GivenIsolation
) -> None:
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE done (n INTEGER PRIMARY KEY)")
    numbers = send(broker, "work", b"wait", b"nap 3600", b"nap 3600")
    service = Service(store, isolation, grace=4)
    process = service.start(ASYNC="1")
    wait_until(lambda: len(service.lines()) == 3)
    assert service.stop(process, signal.SIGINT) == 0
    rest = broker.peek("work", 9)
    assert [(m.sequence_number, m.state.value, m.delivery_count) for m in rest] == [
        (n, "active", 0) for n in numbers[1:]
    ]


def test_messages_of_one_session_never_run_at_the_same_time(
    broker: Broker, isolation: GivenIsolation
) -> None:
    broker.create_queue("steps", QueueOptions(requires_session=True))
    broker.create_queue("seen")
    with broker.sender("steps") as sender:
        sender.send([Message(b"%d" % n, session_id=s) for n in range(6) for s in ("a", "b", "c")])
    busy: set[str | None] = set()

    async def step(message: ReceivedMessage, context: HandlerContext) -> None:
        import asyncio

        assert message.session_id not in busy
        busy.add(message.session_id)
        await asyncio.sleep(0.01)
        busy.remove(message.session_id)
        context.send("seen", Message(message.body, subject=message.session_id))

    (report,) = serve(broker, Handler("steps", step, isolation=isolation, concurrency=2))
    assert (report.completed, report.dead) == (18, 0)
    seen = [(m.subject, int(m.body)) for m in broker.peek("seen", 99)]
    for session in ("a", "b", "c"):
        assert [n for s, n in seen if s == session] == list(range(6))


def test_async_middleware_is_awaited(broker: Broker, isolation: GivenIsolation) -> None:
    async def around(message: Any, context: Any, call_next: Callable[[], Any]) -> None:
        import asyncio

        context.send("out", Message(b"before"))
        await asyncio.sleep(0)
        await call_next()
        context.send("out", Message(b"after"))

    send(broker, "work", b"nap 0", b"raise a")
    (report,) = serve(broker, Handler("work", act, isolation=isolation, middleware=around))
    assert (report.completed, report.dead) == (1, 1)
    assert [m.body for m in broker.peek("out", 9)] == [b"before", b"after"]


def test_what_a_handler_sends_is_committed_as_it_ends(broker: Broker, isolation: GivenIsolation) -> None:
    async def copy(message: ReceivedMessage, context: HandlerContext) -> None:
        import asyncio

        await asyncio.sleep(int(message.body) / 1000)
        context.send("out", Message(message.body))

    send(broker, "work", *[b"%d" % n for n in range(50)])
    (report,) = serve(broker, Handler("work", copy, isolation=isolation))
    assert (report.completed, report.dead) == (50, 0)
    assert sorted(int(m.body) for m in broker.peek("out", 99)) == list(range(50))
