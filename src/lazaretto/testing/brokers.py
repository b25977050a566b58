"""A broker that exists for one test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lazaretto.broker.broker import Broker, connect
from lazaretto.model.clock import Clock

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
