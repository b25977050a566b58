"""Lazaretto, as it comes and with the record of each hand-over synced too."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from typing import ClassVar

import lazaretto
from bench.postgres import PostgresServer
from bench.systems.contract import (
    ATTEMPTS,
    BUSY_SECONDS,
    QUEUE,
    Handler,
    Receiver,
    Sender,
    System,
)
from bench.systems.postgres import PostgresSystem
from lazaretto import EntityExists, Message, PoisonPolicy, QueueOptions, ReceivedMessage


class LazarettoSender(Sender):
    def __init__(self, sender: lazaretto.Sender) -> None:
        self._sender = sender

    def send(self, body: bytes) -> None:
        self._sender.send(Message(body))

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        self._sender.send([Message(body) for body in bodies])

    def close(self) -> None:
        self._sender.close()


class LazarettoReceiver(Receiver[ReceivedMessage]):
    def __init__(self, receiver: lazaretto.Receiver) -> None:
        self._receiver = receiver

    def receive(self, limit: int, wait: float) -> Sequence[ReceivedMessage]:
        return self._receiver.receive(limit, wait)

    def complete(self, handles: Sequence[ReceivedMessage]) -> None:
        self._receiver.complete(handles)

    def body(self, handle: ReceivedMessage) -> bytes:
        return handle.body

    def close(self) -> None:
        self._receiver.close()


class LazarettoSystem(System[ReceivedMessage]):
    """Lazaretto as it comes."""

    name = "lazaretto"
    package = "lazaretto"
    workloads = frozenset(
        {"W1", "W2", "W3", "W4", "W5", "W6", "W6-paced", "W7", "depth-W4", "depth-W5", "idle"}
        | {"wake-threads", "wake-processes", "wake-paced", "processes"}
    )

    durable_attempts = False

    def open(self) -> None:
        self.broker = lazaretto.connect(
            self.address(), timeout=BUSY_SECONDS, durable_attempts=self.durable_attempts
        )
        # The store of the depths, and of two processes, is opened more than once.
        with contextlib.suppress(EntityExists):
            policy = PoisonPolicy(receive_retry_count=ATTEMPTS - 1, max_retry_cycles=0)
            self.broker.create_queue(QUEUE, QueueOptions(lock_duration=30, policy=policy))

    def address(self) -> str:
        """Return where the store is, made ready to be opened."""
        return f"sqlite:///{self.home.absolute() / 'lazaretto.db'}"

    def close(self) -> None:
        self.broker.close()

    def sender(self) -> Sender:
        return LazarettoSender(self.broker.sender(QUEUE))

    def receiver(self) -> Receiver[ReceivedMessage]:
        return LazarettoReceiver(self.broker.receiver(QUEUE))

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

    def waiting(self) -> int:
        """Return how many messages wait in the queue."""
        return self.broker.queue(QUEUE).counts.active


class LazarettoServedSystem(PostgresSystem[ReceivedMessage], LazarettoSystem):
    """Lazaretto on PostgreSQL, as it comes."""

    name = "lazaretto-postgres"
    workloads = frozenset({"W1", "W2", "W3", "W4", "W5", "W6", "W6-paced", "W7", "depth-W4", "depth-W5"})

    def address(self) -> str:
        self._server = PostgresServer(self.home)
        return self._server.url

    def close(self) -> None:
        try:
            if hasattr(self, "broker"):
                self.broker.close()
        finally:
            self._server.stop()


class LazarettoStrictSystem(LazarettoSystem):
    """Lazaretto with the record of each hand-over on disk before the receiver gets the message."""

    name = "lazaretto-strict"
    workloads = frozenset({"W4", "W5", "W6", "W6-paced"})

    durable_attempts = True


class LazarettoWatchedSystem(LazarettoSystem):
    """Lazaretto with the console open on the same file, in a browser that follows it."""

    name = "lazaretto-watched"
    by_default: ClassVar[bool] = False

    def open(self) -> None:
        super().open()
        words = [sys.executable, "-m", "bench.viewer", str(self.home.absolute() / "lazaretto.db")]
        self._viewer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._viewer.stdout is not None
        if not self._viewer.stdout.readline():
            raise RuntimeError("the console did not start")

    def close(self) -> None:
        # It ends when nobody can write to it any more.
        self._viewer.communicate()
        super().close()
