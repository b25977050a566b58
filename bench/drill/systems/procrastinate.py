"""procrastinate on PostgreSQL, fifty jobs at a time: as it comes, and with the rescue that its docs give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from servers import postgres_programs

from bench.drill.drills import HELD, RETRIES
from bench.drill.systems.contract import QUEUE, Drilled
from bench.drill.work import Message
from bench.servers import PostgresServer
from bench.systems.contract import peer

_STALLED_SECONDS = 2.0
_HEARTBEAT_SECONDS = 0.5
_NUMBERS = """
    SELECT (args->>'number')::int FROM procrastinate_jobs
    WHERE task_name = 'handle' AND status = ANY(%s::procrastinate_job_status[])
"""


class ProcrastinateDrilled(Drilled):
    """A worker of fifty concurrent jobs. What a dead worker held stays "doing"."""

    name = "procrastinate"
    packages: ClassVar[Sequence[str]] = ("procrastinate", "psycopg")
    settings = (
        "PostgreSQL (synchronous_commit on), one worker, concurrency 50 (a thread each, as its pool allows), "
        "retry=5 at once; it has no time limit, and no record of why a job failed"
    )
    counts = True
    rescue: ClassVar[bool] = False

    @classmethod
    def missing(cls) -> str | None:
        why = super().missing()
        return "PostgreSQL is not installed" if why is None and postgres_programs() is None else why

    def serve(self) -> str:
        self._server = PostgresServer(self.home)
        return self._server.address

    def _app(self, connector: Any) -> Any:
        app = peer("procrastinate").App(connector=connector)
        options = {"name": "handle", "queue": QUEUE, "retry": RETRIES, "pass_context": True}
        self._task = app.task(**options)(self._handle)
        if self.rescue:
            options = {"name": "rescue", "queue": QUEUE, "queueing_lock": "rescue", "pass_context": True}
            app.periodic(cron="* * * * * *")(app.task(**options)(_rescue))
        return app

    def create(self) -> None:
        self._sender = self._app(peer("procrastinate").SyncPsycopgConnector(conninfo=self.address))
        self._sender.open()
        self._sender.schema_manager.apply_schema()
        self._connection = peer("psycopg").connect(self.address, autocommit=True)

    def close(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()
            self._sender.close()
        self._server.stop()

    def enqueue(self, messages: Sequence[Message]) -> None:
        jobs = [{"number": number, "kind": kind.value, "work": work} for number, kind, work in messages]
        self._task.batch_defer(*jobs)

    def _numbers(self, *statuses: str) -> frozenset[int]:
        rows = self._connection.execute(_NUMBERS, (list(statuses),))
        return frozenset(number for (number,) in rows)

    def set_aside(self) -> frozenset[int]:
        return self._numbers("failed", "aborted", "cancelled")

    def waiting(self) -> frozenset[int]:
        return self._numbers("todo", "doing")

    def work(self) -> None:
        options: dict[str, Any] = {"queues": [QUEUE], "concurrency": HELD}
        if self.rescue:
            options |= {
                "update_heartbeat_interval": _HEARTBEAT_SECONDS,
                "stalled_worker_timeout": _STALLED_SECONDS,
            }
        # The worker opens it itself.
        self._app(peer("procrastinate").PsycopgConnector(conninfo=self.address)).run_worker(**options)

    def _handle(self, context: Any, number: int, kind: str, work: float) -> None:
        self.task(number, kind, work, context.job.attempts + 1)


class ProcrastinateRescueDrilled(ProcrastinateDrilled):
    """The same with the periodic task that retries the jobs of dead workers."""

    name = "procrastinate-rescue"
    settings = (
        "as `procrastinate`, with the periodic task of its documentation that retries stalled jobs, every "
        f"second; heartbeat every {_HEARTBEAT_SECONDS:g} s, stalled after {_STALLED_SECONDS:g} s "
        "(10 and 30 by default)"
    )
    rescue: ClassVar[bool] = True


async def _rescue(context: Any, timestamp: int) -> None:
    manager = context.app.job_manager
    for job in await manager.get_stalled_jobs(seconds_since_heartbeat=_STALLED_SECONDS):
        await manager.retry_job(job)
