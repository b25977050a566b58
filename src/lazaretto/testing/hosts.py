"""A broker that exists for one test, and a host that runs in a test until it has nothing left to do."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lazaretto.broker.broker import Broker, connect, store_of
from lazaretto.errors import LazarettoError
from lazaretto.host.handler_stats import HandlerReport
from lazaretto.host.host import ServiceHost
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.clock import MICROSECONDS, Clock, ManualClock, to_micros
from lazaretto.model.entities import EntityPath, Subqueue

#: A file system in memory, where there is one: a commit waits for no disk there.
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - only folders of random names are made in it


@contextmanager
def temporary_broker(*queues: str, clock: Clock | None = None) -> Iterator[Broker]:
    """Give a broker on a new store, which is deleted at the end of the `with` block.

    The store is a file, in memory where the machine has `/dev/shm`; other processes, sandboxes among
    them, can open it. `queues`: paths of queues to create, with default options. `clock`: a ManualClock
    to move time by hand; the machine's clock if None.
    """
    folder = str(_IN_MEMORY) if _IN_MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="lazaretto-", dir=folder) as made,
        connect(Path(made) / "test.db", clock=clock) as broker,
    ):
        for path in queues:
            broker.create_queue(path)
        yield broker


#: How often it is looked whether anything is left, in seconds.
_LOOK = 0.01


class DrainTimeout(LazarettoError):
    """The host still had messages to process when the timeout expired."""

    code = "drain_timeout"


def drain(
    host: ServiceHost, *, clock: ManualClock | None = None, timeout: float = 30.0
) -> list[HandlerReport]:
    """Run a host until its queues have nothing that can be delivered now, stop it, and return its reports.

    A queue that is halted and a session that is held back count as nothing to deliver. With `clock`, the
    manual clock of the host's broker, time moves on whenever nothing else is left: retry delays, schedules
    and breaker probes come due at once. Without it, delayed and scheduled messages stay where they are.

    `timeout`: seconds of real time. Raises DrainTimeout after that, and whatever ended a slot of the host.
    """
    end = time.monotonic() + timeout
    with host:
        while host.running and host.idle() is None:
            if not _is_busy(host) and (clock is None or not _move_on(host, clock)):
                break
            if time.monotonic() > end:
                progress = ", ".join(
                    f"{report.queue} ({report.completed} completed)" for report in host.reports()
                )
                raise DrainTimeout(
                    f"expected the host to be done within {timeout:g} s, got messages left in: {progress};"
                    " look at broker.queue(path).counts, or give more time"
                )
            time.sleep(_LOOK)
    return host.reports()


def _is_busy(host: ServiceHost) -> bool:
    """Return whether a message is at work or can be delivered at the present time of the clock."""
    for report in host.reports():
        path = EntityPath.parse(report.queue)
        description = host.broker.queue(path.queue)
        if path.subqueue is not Subqueue.MAIN:
            return True
        counts = description.counts
        if counts.locked or counts.suspect:
            return True
        if counts.active:
            probe_at = _probe_at(host, path)
            if probe_at is None or probe_at <= store_of(host.broker).read(lambda tx: tx.now):
                return True
    return False


def _probe_at(host: ServiceHost, path: EntityPath) -> int | None:
    """Return when an open breaker lets its next probe through; None if it holds nothing back."""
    breaker = host.broker.breaker(path.queue)
    if breaker.status is not BreakerStatus.OPEN or breaker.probe_at is None:
        return None
    return to_micros(breaker.probe_at)


def _move_on(host: ServiceHost, clock: ManualClock) -> bool:
    """Move the clock to when the next message comes due; return whether there is one."""
    moments = [_probe_at(host, EntityPath.parse(report.queue)) for report in host.reports()]
    moments.append(store_of(host.broker).read(lambda tx: tx.next_due()))
    later = [moment for moment in moments if moment is not None and moment > clock.now()]
    if not later:
        return False
    clock.advance((min(later) - clock.now() + 1) / MICROSECONDS)
    return True
