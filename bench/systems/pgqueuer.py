"""pgqueuer on PostgreSQL: its queries over asyncpg, each thread with an event loop and a connection."""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from bench.postgres import PostgresServer
from bench.systems.contract import ATTEMPTS, QUEUE, Handler, Receiver, Sender, peer, poll
from bench.systems.postgres import LoopClient, PostgresSystem

_HEARTBEAT = timedelta(seconds=30)


class _Client(LoopClient):
    """Its queries on a connection of their own, asked one at a time."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        parts = dict(part.split("=", 1) for part in server.address.split())
        connecting = peer("asyncpg").connect(host=parts["host"], user=parts["user"], database=parts["dbname"])
        self._connection = self.ask(connecting)
        self.queries = peer("pgqueuer.queries").Queries.from_asyncpg_connection(self._connection)
        self.manager = uuid.uuid4()
        parameter = peer("pgqueuer.ports.repository").EntrypointExecutionParameter(0)
        self._entrypoints = {QUEUE: parameter}

    def dequeue(self, limit: int) -> list[Any]:
        """Return up to `limit` jobs that are picked now."""
        question = self.queries.dequeue(limit, self._entrypoints, self.manager, None, _HEARTBEAT)
        found: list[Any] = self.ask(question)
        return found

    def log(self, jobs: Sequence[tuple[Any, str, Any]]) -> None:
        """Settle jobs."""
        self.ask(self.queries.log_jobs(list(jobs)))

    def close(self) -> None:
        """End the connection and the loop."""
        self.ask(self._connection.close())
        self._loop.close()


class _PgqueuerSender(Sender):
    def __init__(self, client: _Client) -> None:
        self._client = client

    def send(self, body: bytes) -> None:
        self._client.ask(self._client.queries.enqueue(QUEUE, body))

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        count = len(bodies)
        self._client.ask(self._client.queries.enqueue([QUEUE] * count, list(bodies), [0] * count))

    def close(self) -> None:
        self._client.close()


class _PgqueuerReceiver(Receiver[Any]):
    def __init__(self, client: _Client) -> None:
        self._client = client

    def receive(self, limit: int, wait: float) -> Sequence[Any]:
        found = poll(lambda: self._client.dequeue(limit) or None, wait)
        return found[0] if found else ()

    def complete(self, handles: Sequence[Any]) -> None:
        self._client.log([(job, "successful", None) for job in handles])

    def body(self, handle: Any) -> bytes:
        payload: bytes = handle.payload
        return payload

    def close(self) -> None:
        self._client.close()


class PgqueuerSystem(PostgresSystem[Any]):
    """pgqueuer's queries; its own loop around them would only add to what they take."""

    name = "pgqueuer"
    package = "pgqueuer"
    workloads = frozenset({"W1", "W2", "W3", "W4", "W5", "W6", "W6-paced", "W7"})
    marks: ClassVar[Mapping[str, str]] = {"W7": "k"}
    settings = (
        "its Queries over asyncpg, schema as it installs it (durable), a loop and a connection for each "
        "thread; polled every millisecond while empty; done jobs go to its log table"
    )

    def open(self) -> None:
        self._server = PostgresServer(self.home)
        client = _Client(self._server)
        client.ask(client.queries.install())
        client.close()

    def sender(self) -> Sender:
        return _PgqueuerSender(_Client(self._server))

    def receiver(self) -> Receiver[Any]:
        return _PgqueuerReceiver(_Client(self._server))

    def drill(self, handler: Handler, total: int, poison: int) -> None:
        client = _Client(self._server)
        record = peer("pgqueuer.models").TracebackRecord
        while jobs := client.dequeue(100):
            settled: list[tuple[Any, str, Any]] = []
            for job in jobs:
                try:
                    handler(job.payload)
                except Exception as error:
                    why = record(
                        job_id=job.id,
                        timestamp=datetime.now(UTC),
                        exception_type=type(error).__name__,
                        exception_message=str(error),
                        traceback=traceback.format_exc(),
                        additional_context=None,
                    )
                    if job.attempts + 1 < ATTEMPTS:
                        client.ask(client.queries.retry_job(job, timedelta(0), why))
                    else:
                        settled.append((job, "failed", why))
                else:
                    settled.append((job, "successful", None))
            if settled:
                client.log(settled)
        client.close()

    def set_aside(self) -> int:
        client = _Client(self._server)
        failed = client.ask(client.queries.list_failed_jobs(1_000_000))
        client.close()
        return len(failed)
