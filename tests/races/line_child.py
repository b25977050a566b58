"""One process on a store that stands in line, waits for messages, or dies at a named point."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import lazaretto
from lazaretto import Message
from lazaretto.store.sqlite.news import News
from lazaretto.store.sqlite.store import SqliteStore
from lazaretto.store.sqlite.writers_line import WritersLine

QUEUE = "q"


def _die(*_: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


_standing = WritersLine.standing


@contextmanager
def _die_standing(line: WritersLine) -> Iterator[Callable[[float], None]]:
    with _standing(line):
        yield _die


#: What the process dies in the place of, or in, while it sends.
POINTS = {
    "begun": (SqliteStore, "_save", _die),
    "committed": (WritersLine, "pass_on", _die),
    "passed on": (News, "tell", _die),
    "noted": (News, "_ring", _die),
    "in line": (WritersLine, "standing", _die_standing),
}


def _say(word: str) -> None:
    print(word, flush=True)


def cycle(broker: lazaretto.Broker, name: str, count: int) -> None:
    """Send, receive and complete so many, and print what came."""
    with broker.sender(QUEUE) as sender, broker.receiver(QUEUE) as receiver:
        for number in range(count):
            sender.send(Message(f"{name}-{number}".encode()))
            for message in receiver.receive(1, max_wait=120):
                receiver.complete(message)
                _say(message.body.decode())


def main(role: str, store: str, name: str, argument: str) -> None:
    with lazaretto.connect(store, timeout=60) as broker:
        if role == "cycle":
            cycle(broker, name, int(argument))
        elif role == "send":
            if argument:
                setattr(*POINTS[argument])
            _say("ready")
            broker.sender(QUEUE).send(Message(name.encode()))
            _say("sent")
        elif role == "hold":
            with broker.transaction() as tx:
                tx.execute("CREATE TABLE held (x)")
                _say("held")
                sys.stdin.read()
        else:
            with broker.receiver(QUEUE, mode="receive_and_delete") as receiver:
                _say("ready")
                while True:
                    for message in receiver.receive(1, max_wait=60):
                        _say(message.body.decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
