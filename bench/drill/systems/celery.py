"""Celery on Redis, one prefork child: late acknowledgement, retry of lost workers, and as it comes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bench.drill.drills import HELD, RETRIES
from bench.drill.systems.contract import Drilled
from bench.drill.work import Message
from bench.servers import RedisServer, redis_program
from bench.systems.contract import chunks, peer

_QUEUE = "celery"
_RESULTS = "celery-task-meta-"
_VISIBLE_SECONDS = 5
_READ = 500


class CeleryDrilled(Drilled):
    """Late acknowledgement and requeue on a lost worker: no message is to be lost."""

    name = "celery"
    packages: ClassVar[Sequence[str]] = ("celery", "redis")
    settings = (
        "Redis broker and results (appendfsync always), prefork with one child, acks_late, "
        "reject_on_worker_lost, prefetch 50, time_limit=the deadline, max_retries=5, default_retry_delay=0; "
        f"visibility_timeout {_VISIBLE_SECONDS} s, looked for every second (1 h and 100 s by default)"
    )
    options: ClassVar[Mapping[str, Any]] = {
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "broker_transport_options": {
            "visibility_timeout": _VISIBLE_SECONDS,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    }
    retry_options: ClassVar[Mapping[str, Any]] = {"default_retry_delay": 0}
    tuned: ClassVar[bool] = True

    @classmethod
    def missing(cls) -> str | None:
        why = super().missing()
        return "redis-server is not installed" if why is None and redis_program() is None else why

    def open(self) -> None:
        base = f"redis+socket://{self.address}"
        # Its results, if it keeps any, are in a database of their own, apart from the queue.
        self._app = peer("celery").Celery(
            "drill", broker=base, backend=f"{base}?virtual_host=1" if self.tuned else None
        )
        # It takes over the logging of a program that it runs in, and would print each failure.
        self._app.conf.update(
            self.options, worker_hijack_root_logger=False, broker_connection_retry_on_startup=True
        )
        if self.tuned:
            self._app.conf.update(worker_prefetch_multiplier=HELD, task_time_limit=self.deadline)
        options = {"name": "handle", "autoretry_for": (Exception,), "max_retries": RETRIES}

        # A function: it takes the `self` of a method for an argument of the task.
        def handle(number: int, kind: str, work: float) -> None:
            self.task(number, kind, work, self._task.request.retries + 1)

        self._task = self._app.task(**options, **self.retry_options)(handle)

    def serve(self) -> str:
        self._server = RedisServer(self.home)
        return self._server.address

    def create(self) -> None:
        redis = peer("redis")
        self._queue = redis.Redis(unix_socket_path=self.address)
        self._results = redis.Redis(unix_socket_path=self.address, db=1)

    def close(self) -> None:
        self._server.stop()

    def enqueue(self, messages: Sequence[Message]) -> None:
        for number, kind, work in messages:
            self._task.apply_async((number, kind.value, work), task_id=str(number))

    def set_aside(self) -> frozenset[int]:
        keys = list(self._results.scan_iter(f"{_RESULTS}*", count=_READ))
        found = (
            json.loads(text) for chunk in chunks(keys, _READ) for text in self._results.mget(chunk) if text
        )
        return frozenset(int(result["task_id"]) for result in found if result["status"] == "FAILURE")

    def waiting(self) -> frozenset[int]:
        queued = self._queue.lrange(_QUEUE, 0, -1)
        # Handed over and not acknowledged: the message, its exchange and its routing key.
        held = [json.dumps(json.loads(text)[0]) for text in self._queue.hvals("unacked")]
        return frozenset(int(json.loads(text)["headers"]["id"]) for text in (*queued, *held))

    def work(self) -> None:
        self._app.worker_main(["worker", "--pool=prefork", "--concurrency=1", "--loglevel=CRITICAL"])


class CeleryRetryDrilled(CeleryDrilled):
    """The same, with its newer setting that makes a lost worker one of the task's retries."""

    name = "celery-retry"
    settings = "as `celery`, with task_retry_on_worker_lost: a lost worker uses up a retry"
    options: ClassVar[Mapping[str, Any]] = {**CeleryDrilled.options, "task_retry_on_worker_lost": True}


class CeleryDefaultsDrilled(CeleryDrilled):
    """As it comes: acknowledged before the task runs, four held, no results."""

    name = "celery-defaults"
    settings = (
        "Redis broker (appendfsync always), prefork with one child, all else as it comes: acknowledged "
        "early, prefetch 4, no results, no time limit, visibility_timeout 1 h, max_retries=5 after 180 s each"
    )
    options: ClassVar[Mapping[str, Any]] = {}
    retry_options: ClassVar[Mapping[str, Any]] = {}
    tuned: ClassVar[bool] = False
