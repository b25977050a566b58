"""Lazaretto, as it comes and with the record of each hand-over synced too, in a file and on PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import lazaretto
from bench.servers import PostgresServer
from bench.systems.contract import ATTEMPTS, BUSY_SECONDS, QUEUE, Client, Handler, PostgresSystem, System
from lazaretto import EntityExists, Message, PoisonPolicy, QueueOptions, ReceivedMessage


class LazarettoClient(Client[Any]):
    """A sender and a receiver: `target` and `source` are their paths."""

    def __init__(self, broker: lazaretto.Broker, target: str = QUEUE, source: str = QUEUE) -> None:
        self.broker = broker
        self.sender, self.receiver = broker.sender(target), broker.receiver(source)

    def send(self, body: bytes) -> None:
        self.sender.send(Message(body))

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        self.sender.send([Message(body) for body in bodies])

    def receive(self, limit: int, wait: float) -> Sequence[Any]:
        return self.receiver.receive(limit, wait)

    def complete(self, handles: Sequence[Any]) -> None:
        self.receiver.complete(handles)

    def body(self, handle: ReceivedMessage) -> bytes:
        return handle.body

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


class LazarettoSystem(System[ReceivedMessage]):
    """Lazaretto as it comes."""

    name = "lazaretto"
    package = "lazaretto"
    workloads = frozenset({"W1", "W2", "W3", "W4", "W5", "W6", "W7", "idle", "wake", "processes"})
    durable_attempts = False

    def open(self) -> None:
        self.broker = lazaretto.connect(
            self.address(), timeout=BUSY_SECONDS, durable_attempts=self.durable_attempts
        )
        # The store of several processes is opened more than once.
        with contextlib.suppress(EntityExists):
            policy = PoisonPolicy(receive_retry_count=ATTEMPTS - 1, max_retry_cycles=0)
            self.broker.create_queue(QUEUE, QueueOptions(lock_duration=30, policy=policy))

    def address(self) -> str:
        """Return where the store is, made ready to be opened."""
        return f"sqlite:///{self.home.absolute() / 'lazaretto.db'}"

    def close(self) -> None:
        self.broker.close()

    def client(self, held: int = 1) -> Client[ReceivedMessage]:
        return LazarettoClient(self.broker)

    def drill(self, handler: Handler, total: int, poison: int) -> None:
        self.broker.consume(QUEUE, lambda m: handler(m.body), batch_size=100, stop_when_idle=True)

    def set_aside(self) -> int:
        # Each must come with its reason and its stack: that is part of what the drill asks for.
        dead = list(self.broker.dead_letters(QUEUE))
        for letter in dead:
            last = self.broker.dead_letter(QUEUE, letter.sequence_number).attempts[-1]
            if not letter.reason or not last.stack:
                raise RuntimeError(f"dead letter {letter.sequence_number} has no reason or no stack")
        return len(dead)


class LazarettoStrictSystem(LazarettoSystem):
    """Lazaretto with the record of each hand-over on disk before the receiver gets the message."""

    name = "lazaretto-strict"
    workloads = frozenset({"W4", "W5", "W6"})
    durable_attempts = True


class LazarettoServedSystem(PostgresSystem[ReceivedMessage], LazarettoSystem):
    """Lazaretto on PostgreSQL, as it comes."""

    name = "lazaretto-postgres"
    workloads = frozenset({"W1", "W2", "W3", "W4", "W5", "W6", "W7"})

    def address(self) -> str:
        self.server = PostgresServer(self.home)
        return self.server.url

    def close(self) -> None:
        try:
            LazarettoSystem.close(self)
        finally:
            self.server.stop()
