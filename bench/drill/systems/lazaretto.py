"""Lazaretto: a service host, its handlers in the host's own process or in a sandbox."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import lazaretto
from bench.drill.systems.contract import QUEUE, Drilled
from bench.drill.work import Message, Task
from lazaretto import PoisonPolicy, PoisonSession, QueueOptions, ReceivedMessage
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

    def _open(self) -> None:
        self._broker = lazaretto.connect(self.home / "drill.db")

    def setup(self) -> str:
        self._open()
        options = QueueOptions(policy=PoisonPolicy(receive_retry_count=self.terms.retries))
        if self.terms.sessions is not None:
            options = dataclasses.replace(
                options, requires_session=True, on_poison_session=PoisonSession(self.terms.sessions)
            )
        self._broker.create_queue(QUEUE, options)
        return ""

    def close(self) -> None:
        self._broker.close()

    def enqueue(self, messages: Sequence[Message]) -> None:
        sent = [
            lazaretto.Message(
                f"{m.kind.value} {m.work}".encode(),
                message_id=str(m.number),
                session_id=str(m.session) if m.session else None,
            )
            for m in messages
        ]
        self._broker.sender(QUEUE).send(sent)

    def set_aside(self) -> Mapping[int, str]:
        found = {int(dead.message_id): dead.reason or "" for dead in self._broker.dead_letters(QUEUE)}
        held = {session.session_id: session for session in self._broker.held_sessions(QUEUE)}
        if held:
            # They wait for a person, as the dead letters do.
            found |= {
                int(m.message_id): held[m.session_id].reason
                for m in self._broker.peek(QUEUE, _MANY)
                if m.session_id in held
            }
        return found

    def waiting(self) -> frozenset[int]:
        return frozenset(int(m.message_id) for m in self._broker.peek(QUEUE, _MANY))

    def work(self) -> None:
        self._open()
        handle = functools.partial(_handle, self.home)
        handler = Handler(
            QUEUE,
            handle,
            isolation=Isolation(self.isolation),
            concurrency=self.terms.at_once,
            batch_size=self.terms.held,
            deadline=self.terms.deadline,
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
