"""Lazaretto: a service host, its handlers in the host's own process or in a sandbox."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import lazaretto
from bench.drill.drills import HELD, RETRIES
from bench.drill.systems.contract import QUEUE, Drilled
from bench.drill.work import Message, Task
from lazaretto import PoisonPolicy, QueueOptions, ReceivedMessage
from lazaretto.host import Handler, HandlerContext, Isolation, ServiceHost

_MANY = 100_000
_MEMORY = 200_000_000


class LazarettoDrilled(Drilled):
    """Handlers in the host's own process, which dies with them."""

    name = "lazaretto inline"
    packages: ClassVar[Sequence[str]] = ("lazaretto",)
    settings = (
        "ServiceHost, isolation inline, batches of 50; the queue's policy: 5 retries, all else by default"
    )
    counts = True
    isolation: ClassVar[str] = "inline"

    def open(self) -> None:
        self._broker = lazaretto.connect(self.home / "drill.db")

    def create(self) -> None:
        self._broker.create_queue(QUEUE, QueueOptions(policy=PoisonPolicy(receive_retry_count=RETRIES)))

    def close(self) -> None:
        self._broker.close()

    def enqueue(self, messages: Sequence[Message]) -> None:
        self._broker.sender(QUEUE).send(
            [
                lazaretto.Message(f"{kind.value} {work}".encode(), message_id=str(number))
                for number, kind, work in messages
            ]
        )

    def set_aside(self) -> frozenset[int]:
        return frozenset(int(dead.message_id) for dead in self._broker.dead_letters(QUEUE))

    def waiting(self) -> frozenset[int]:
        return frozenset(int(m.message_id) for m in self._broker.peek(QUEUE, _MANY))

    def work(self) -> None:
        handler = Handler(
            QUEUE,
            functools.partial(_handle, self.home),
            isolation=Isolation(self.isolation),
            concurrency=1,
            batch_size=HELD,
            deadline=self.deadline,
            memory=_MEMORY,
        )
        ServiceHost(self._broker, handler).run()


class LazarettoSandboxDrilled(LazarettoDrilled):
    """Handlers in a sandbox: what dies there is replaced, and the host does not notice."""

    name = "lazaretto"
    settings = "the same with isolation process, the default"
    isolation = "process"


@functools.cache
def _task(home: Path) -> Task:
    # Made in the process that runs it, since it holds an open file.
    return Task(home)


def _handle(home: Path, message: ReceivedMessage, context: HandlerContext) -> None:
    kind, work = message.body.decode().split()
    # The attempts that were charged before, and this one.
    _task(home)(int(message.message_id), kind, float(work), context.delivery_count + 1)
