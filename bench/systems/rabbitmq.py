"""RabbitMQ: a quorum queue on a single node, through pika, with publisher confirms."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from bench.servers import RabbitmqServer, rabbitmq_program
from bench.systems.contract import ATTEMPTS, DEAD, QUEUE, Client, Handler, System, peer

_SETTLE_SECONDS = 60.0
_PREFETCH = 100

#: The delivery tag, and the payload.
_Delivery = tuple[int, bytes]


class _RabbitmqClient(Client[_Delivery]):
    def __init__(self, connection: Any, held: int) -> None:
        self._connection = connection
        # What is sent is confirmed, on a channel of its own.
        self._sending, self._channel = connection.channel(), connection.channel()
        self._sending.confirm_delivery()
        self._channel.basic_qos(prefetch_count=held)
        self._persistent = peer("pika").BasicProperties(delivery_mode=2)
        self._incoming: Any = None

    def send(self, body: bytes) -> None:
        self._sending.basic_publish("", QUEUE, body, self._persistent, mandatory=True)

    def receive(self, limit: int, wait: float) -> Sequence[_Delivery]:
        if self._incoming is None:
            # The patience of pika's generator is fixed when it is made; 0 would give up at once,
            # before the first delivery is there.
            self._incoming = self._channel.consume(QUEUE, inactivity_timeout=wait or 1.0)
        taken: list[_Delivery] = []
        while len(taken) < limit:
            method, _, body = next(self._incoming)
            if method is None:
                break
            taken.append((method.delivery_tag, body))
        return taken

    def complete(self, handles: Sequence[_Delivery]) -> None:
        self._channel.basic_ack(handles[-1][0], multiple=len(handles) > 1)

    def fail(self, handle: _Delivery) -> None:
        """Give a message back for another attempt."""
        self._channel.basic_nack(handle[0], requeue=True)

    def body(self, handle: _Delivery) -> bytes:
        return handle[1]

    def close(self) -> None:
        self._connection.close()


class RabbitmqSystem(System[_Delivery]):
    """A RabbitMQ quorum queue on one node, a connection for each thread."""

    name = "rabbitmq"
    package = "pika"
    workloads = frozenset({"W1", "W2", "W4", "W5", "W6", "W7"})

    @classmethod
    def missing(cls) -> str | None:
        return super().missing() if rabbitmq_program() is not None else "not installed"

    def open(self) -> None:
        self._server = RabbitmqServer(self.home)
        self._connection = self._connect()
        self._channel = self._connection.channel()
        quorum = {"x-queue-type": "quorum"}
        limit = {
            "x-delivery-limit": ATTEMPTS - 1,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": DEAD,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
        self._channel.queue_declare(DEAD, durable=True, arguments=quorum)
        self._channel.queue_declare(QUEUE, durable=True, arguments=quorum | limit)

    def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()
        self._server.stop()

    def _connect(self) -> Any:
        pika = peer("pika")
        parameters = pika.ConnectionParameters("127.0.0.1", self._server.port, heartbeat=0)
        return pika.BlockingConnection(parameters)

    def _count(self, queue: str) -> int:
        count: int = self._channel.queue_declare(queue, durable=True, passive=True).method.message_count
        return count

    def _settle(self, queue: str, count: int) -> None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while self._count(queue) < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._count(queue)} of {count} messages reached {queue!r}")
            time.sleep(0.005)

    def fill(self, bodies: Iterable[bytes]) -> None:
        # Without confirms, which pika can only wait for one by one; the count shows when all are in.
        channel, count = self._connection.channel(), 0
        persistent = peer("pika").BasicProperties(delivery_mode=2)
        for body in bodies:
            channel.basic_publish("", QUEUE, body, persistent)
            count += 1
        self._settle(QUEUE, count)
        channel.close()

    def client(self, held: int = 1) -> Client[_Delivery]:
        return _RabbitmqClient(self._connect(), held)

    def drill(self, handler: Handler, total: int, poison: int) -> None:
        client = _RabbitmqClient(self._connect(), _PREFETCH)
        done: list[_Delivery] = []
        for _ in range(total - poison + poison * ATTEMPTS):
            (delivery,) = client.receive(1, _SETTLE_SECONDS)
            try:
                handler(delivery[1])
            except Exception:
                # An ack of several takes all before it, so it comes before the one given back.
                if done:
                    client.complete(done)
                    done = []
                client.fail(delivery)
            else:
                done.append(delivery)
                # At half of what may be under way, so that deliveries never run dry.
                if len(done) == _PREFETCH // 2:
                    client.complete(done)
                    done = []
        if done:
            client.complete(done)
        self._settle(DEAD, poison)
        client.close()

    def set_aside(self) -> int:
        return self._count(DEAD)
