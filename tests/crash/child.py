"""A process that sends or consumes and journals what it was told, until it is killed, or kills itself."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import lazaretto
from lazaretto import Message, ReceivedMessage

QUEUE = "work"


class Journal:
    """An append-only file of what this process knows; every line is whole, whatever happens."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, kind: str, *values: object) -> None:
        os.write(self._file, (" ".join([kind, *map(str, values)]) + "\n").encode())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyConnection:
    """Passes statements on, and kills the process at the n-th hit of a named point."""

    def __init__(self, connection: Any, point: str, count: int) -> None:
        self._connection = connection
        self._point = point
        self._left = count

    def execute(self, sql: str, *values: Any) -> Any:
        commit = sql == "COMMIT"
        settling = sql.startswith("DELETE FROM lazaretto_messages")
        hit = (commit and self._point in ("before_commit", "after_commit")) or (
            settling and self._point == "in_settle"
        )
        if hit:
            self._left -= 1
        if hit and self._left == 0 and self._point == "before_commit":
            die()
        answer = self._connection.execute(sql, *values)
        if hit and self._left == 0:
            die()
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def arm(broker: lazaretto.Broker, point: str, count: int) -> None:
    """Make the broker's one writing connection deadly."""
    store = broker._store
    deadly: Any = DeadlyConnection(store._connection, point, count)
    store._connection = deadly
    store._tx._x = deadly.execute


def send(broker: lazaretto.Broker, journal: Journal, start: int) -> None:
    """Send for ever, alone and in lists; journal the intention and the answer."""
    sender = broker.sender(QUEUE)
    number = start
    while True:
        size = 1 if number % 3 else 4
        names = [f"m{number + i}" for i in range(size)]
        number += size
        messages = [Message(name.encode() * (1 + number % 700), message_id=name) for name in names]
        for name in names:
            journal.write("sending", name)
        sender.send(messages)
        for name in names:
            journal.write("sent", name)


def consume(broker: lazaretto.Broker, journal: Journal, die_at: int) -> None:
    """Receive and settle for ever; die between hand-over and settling at the given message."""
    draw = random.Random(os.getpid())
    receiver = broker.receiver(QUEUE)
    handled = 0
    while True:
        for message in receiver.receive(draw.choice((1, 5)), max_wait=0.2):
            journal.write("handed", message.sequence_number, message.attempt, message.message_id)
            handled += 1
            if handled == die_at:
                die()
            if draw.random() < 0.1:
                receiver.abandon(message, error=ValueError("now and then"))
                continue
            journal.write("completing", message.message_id)
            receiver.complete(message)
            journal.write("completed", message.message_id)


def consume_with_sql(broker: lazaretto.Broker, journal: Journal, die_at: int) -> None:
    """Receive and write a row of one's own in the same commit; a second row for a message is an error."""
    handled = 0
    while True:
        with broker.transaction() as tx:
            messages: list[ReceivedMessage] = tx.receive(QUEUE, 3, max_wait=0.2)
            for message in messages:
                journal.write("handed", message.sequence_number, message.attempt, message.message_id)
                handled += 1
                if handled == die_at:
                    die()
            for message in messages:
                tx.execute("INSERT INTO results (name) VALUES (?)", (message.message_id,))
                journal.write("completing", message.message_id)
        for message in messages:
            journal.write("completed", message.message_id)


def main(role: str, store: str, journal_path: str, point: str, count: str, start: str) -> None:
    journal = Journal(journal_path)
    broker = lazaretto.connect(Path(store))
    if point in ("before_commit", "after_commit", "in_settle"):
        arm(broker, point, int(count))
    die_at = int(count) if point == "in_handler" else 0
    journal.write("ready", os.getpid())
    if role == "send":
        send(broker, journal, int(start))
    elif role == "consume":
        consume(broker, journal, die_at)
    else:
        consume_with_sql(broker, journal, die_at)


if __name__ == "__main__":
    main(*sys.argv[1:])
