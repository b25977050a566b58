"""procrastinate on PostgreSQL: its job manager, asked directly, without the worker around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bench.postgres import PostgresServer
from bench.systems.contract import ATTEMPTS, QUEUE, Handler, Receiver, Sender, peer, poll
from bench.systems.postgres import LoopClient, PostgresSystem


class _Client(LoopClient):
    """Its job manager on one connection, asked one thing at a time."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        library = peer("procrastinate")
        self._app = library.App(
            connector=library.PsycopgConnector(conninfo=server.address, min_size=1, max_size=1)
        )
        self.ask(self._app.open_async())
        self.manager = self._app.job_manager
        self._worker: int = self.ask(self.manager.register_worker())

    def fetch(self) -> Any:
        """Return a job that is to be done now, or None."""
        return self.ask(self.manager.fetch_job([QUEUE], self._worker))

    def finish(self, job: Any, status: str) -> None:
        """Settle a job; what succeeded is deleted."""
        self.ask(
            self.manager.finish_job(job, peer("procrastinate.jobs").Status(status), status == "succeeded")
        )

    def close(self) -> None:
        """End the connection and the loop."""
        self.ask(self._app.close_async())
        self._loop.close()


class _ProcrastinateSender(Sender):
    def __init__(self, server: PostgresServer) -> None:
        library = peer("procrastinate")
        self._app = library.App(
            connector=library.SyncPsycopgConnector(conninfo=server.address, min_size=1, max_size=1)
        )
        self._app.open()
        self._task = self._app.task(name="handle", queue=QUEUE)(lambda body: None)

    def send(self, body: bytes) -> None:
        self._task.defer(body=body.decode())

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        self._task.batch_defer(*({"body": body.decode()} for body in bodies))

    def close(self) -> None:
        self._app.close()


class _ProcrastinateReceiver(Receiver[Any]):
    def __init__(self, client: _Client) -> None:
        self._client = client

    def receive(self, limit: int, wait: float) -> Sequence[Any]:
        return poll(self._client.fetch, wait)

    def complete(self, handles: Sequence[Any]) -> None:
        for job in handles:
            self._client.finish(job, "succeeded")

    def body(self, handle: Any) -> bytes:
        text: str = handle.task_kwargs["body"]
        return text.encode()

    def close(self) -> None:
        self._client.close()


class ProcrastinateSystem(PostgresSystem[Any]):
    """procrastinate's job manager; it gives one job at a time, so that there is no W5."""

    name = "procrastinate"
    package = "procrastinate"
    workloads = frozenset({"W1", "W2", "W3", "W4", "W6", "W6-paced", "W7"})
    marks: ClassVar[Mapping[str, str]] = {"W7": "l"}
    settings = (
        "its job manager over psycopg, a loop and a connection for each thread; one job at a time; polled "
        "every millisecond while empty; done jobs are deleted, and its triggers write their events"
    )

    def open(self) -> None:
        self._server = PostgresServer(self.home)
        library = peer("procrastinate")
        app = library.App(connector=library.SyncPsycopgConnector(conninfo=self._server.address))
        app.open()
        app.schema_manager.apply_schema()
        app.close()

    def sender(self) -> Sender:
        return _ProcrastinateSender(self._server)

    def receiver(self) -> Receiver[Any]:
        return _ProcrastinateReceiver(_Client(self._server))

    def drill(self, handler: Handler, total: int, poison: int) -> None:
        client = _Client(self._server)
        while (job := client.fetch()) is not None:
            try:
                handler(job.task_kwargs["body"].encode())
            except Exception:
                if job.attempts + 1 < ATTEMPTS:
                    client.ask(client.manager.retry_job(job))
                else:
                    client.finish(job, "failed")
            else:
                client.finish(job, "succeeded")
        client.close()

    def set_aside(self) -> int:
        connection = peer("psycopg").connect(self._server.address, autocommit=True)
        query = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'failed'"
        (count,) = connection.execute(query).fetchone()
        connection.close()
        return int(count)
