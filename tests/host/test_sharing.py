"""How what waits is shared out among the slots of a handler, and how much is done again after a crash."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE, wait_until

from lazaretto import Broker, InvalidOption, ReceivedMessage
from lazaretto.engine.workers.leases import Take
from lazaretto.host import Handler, ServiceHost
from lazaretto.host.handlers import GivenIsolation
from lazaretto.model.entities import EntityPath

from .serving import send, serve
from .test_deaths import Service

SLOTS = 4


def meeting(folder: Path) -> Callable[[ReceivedMessage], None]:
    """Return a handler that comes back once as many messages are at work as there are slots."""

    def meet(message: ReceivedMessage) -> None:
        import time

        (folder / str(message.sequence_number)).touch()
        end = time.monotonic() + 120.0
        while len(list(folder.iterdir())) < 4:
            assert time.monotonic() < end, "they are not at work together"
            time.sleep(0.01)

    return meet


def test_slots_work_at_the_same_time(broker: Broker, tmp_path: Path, isolation: GivenIsolation) -> None:
    send(broker, "work", *[b""] * SLOTS)
    folder = tmp_path / "met"
    folder.mkdir()
    handler = Handler("work", meeting(folder), isolation=isolation, concurrency=SLOTS)
    (report,) = serve(broker, handler)
    assert (report.completed, report.retried, report.dead) == (SLOTS, 0, 0)


def test_the_concurrency_of_a_host_is_that_of_its_handlers(broker: Broker, tmp_path: Path) -> None:
    send(broker, "work", *[b""] * SLOTS)
    folder = tmp_path / "met"
    folder.mkdir()
    handler = Handler("work", meeting(folder), isolation="inline")
    (report,) = serve(broker, handler, concurrency=SLOTS)
    assert (report.completed, report.dead) == (SLOTS, 0)
    with pytest.raises(InvalidOption, match="concurrency"):
        ServiceHost(broker, handler, concurrency=0)


@pytest.mark.parametrize(("sharers", "shares"), [(1, [10]), (3, [4, 6]), (5, [2, 8]), (100, [1, 9])])
def test_nobody_takes_more_than_their_share(broker: Broker, sharers: int, shares: list[int]) -> None:
    send(broker, "work", *[b""] * 10)
    taken = []
    for among in (sharers, 1):
        found = broker._store.run(Take(EntityPath.parse("work"), 100, sharers=lambda n=among: n))  # type: ignore[misc]
        if found is not None:
            taken.append(len(found.messages))  # type: ignore[union-attr]
    assert taken == shares


def test_few_messages_run_again_after_a_host_was_killed(
    broker: Broker, store: Path, isolation: GivenIsolation
) -> None:
    send(broker, "work", *[b"nap 0.05 %d" % n for n in range(40)])
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE done (n INTEGER PRIMARY KEY)")
    service = Service(store, isolation, batch=100)
    process = service.start()
    wait_until(lambda: len(service.lines()) >= 22)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    with service.start(ONCE="1") as again:
        wait_until(lambda: broker.queue("work").counts.active == broker.queue("work").counts.locked == 0)
        again.send_signal(signal.SIGTERM)
        again.communicate(timeout=PATIENCE)
    runs = Counter(service.lines())
    assert len(runs) == 40
    # No more than the hand-over at work.
    assert sum(runs.values()) - 40 <= 4
