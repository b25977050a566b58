"""huey: SqliteHuey, one process worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bench.drill.systems.contract import QUEUE, Drilled
from bench.drill.work import Message, Task
from bench.systems.contract import BUSY_SECONDS, peer

_HEALTH_SECONDS = 1


class HueyDrilled(Drilled):
    """huey's SqliteHuey with fsync; its consumer restarts a worker process that died."""

    name = "huey"
    packages: ClassVar[Sequence[str]] = ("huey",)
    settings = (
        f"SqliteHuey(fsync=True), one worker of type process, health check every {_HEALTH_SECONDS} s "
        "(10 by default), task(retries=5, retry_delay=0, timeout=the deadline); it has no prefetch: one held"
    )

    def _open(self) -> None:
        path = str(self.home / "huey.db")
        self._huey = peer("huey").SqliteHuey(
            QUEUE,
            filename=path,
            fsync=True,
            timeout=BUSY_SECONDS,
            # An error on record is then one that no retry follows.
            store_intermediate_errors=False,
        )
        task = self._huey.task(
            retries=self.terms.retries,
            retry_delay=0,
            timeout=self.terms.deadline,
            context=True,
            name="handle",
        )
        self._task = task(self._handle)
        self._run: Task | None = None

    def setup(self) -> str:
        self._open()
        return ""

    def close(self) -> None:
        self._huey.storage.close()

    def enqueue(self, messages: Sequence[Message]) -> None:
        for number, kind, work, _ in messages:
            self._huey.enqueue(self._task.s(number, kind.value, work, id=str(number)))

    def set_aside(self) -> Mapping[int, str]:
        # The tasks return nothing, so that the only results are errors.
        stored = self._huey.storage.result_items()
        return {
            int(key): self._huey.serializer.deserialize(data).metadata["error"]
            for key, data in stored.items()
        }

    def waiting(self) -> frozenset[int]:
        storage = self._huey.storage
        rows: list[Any] = [*storage.enqueued_items(), *storage.scheduled_items()]
        return frozenset(int(self._huey.deserialize_task(row).id) for row in rows)

    def work(self) -> None:
        logging.basicConfig(level=logging.WARNING)
        logging.getLogger("huey").setLevel(logging.CRITICAL)
        self._open()
        self._run = Task(self.home)
        consumer = self._huey.create_consumer(
            workers=1, worker_type="process", health_check_interval=_HEALTH_SECONDS
        )
        consumer.run()

    def _handle(self, number: int, kind: str, work: float, task: Any) -> None:
        assert self._run is not None
        self._run(number, kind, work, self.terms.retries + 1 - task.retries)
