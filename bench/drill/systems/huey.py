"""huey: SqliteHuey, one process worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from bench.drill.drills import RETRIES
from bench.drill.systems.contract import QUEUE, Drilled
from bench.drill.work import Message
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

    def open(self) -> None:
        self._huey = peer("huey").SqliteHuey(
            QUEUE,
            filename=str(self.home / "huey.db"),
            fsync=True,
            timeout=BUSY_SECONDS,
            # An error on record is then one that no retry follows.
            store_intermediate_errors=False,
        )
        options = {"retries": RETRIES, "retry_delay": 0, "timeout": self.deadline, "context": True}
        self._task = self._huey.task(name="handle", **options)(self._handle)

    def close(self) -> None:
        self._huey.storage.close()

    def enqueue(self, messages: Sequence[Message]) -> None:
        for number, kind, work in messages:
            self._huey.enqueue(self._task.s(number, kind.value, work, id=str(number)))

    def set_aside(self) -> frozenset[int]:
        # The tasks return nothing, so that the only results are errors.
        return frozenset(int(key) for key in self._huey.storage.result_items())

    def waiting(self) -> frozenset[int]:
        storage = self._huey.storage
        rows: list[Any] = [*storage.enqueued_items(), *storage.scheduled_items()]
        return frozenset(int(self._huey.deserialize_task(row).id) for row in rows)

    def work(self) -> None:
        consumer = self._huey.create_consumer(
            workers=1, worker_type="process", health_check_interval=_HEALTH_SECONDS
        )
        consumer.run()

    def _handle(self, number: int, kind: str, work: float, task: Any) -> None:
        self.task(number, kind, work, RETRIES + 1 - task.retries)
