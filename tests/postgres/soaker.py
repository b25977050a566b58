"""Does everything there is to do with a broker, at random, and writes down what must have come of it."""

from __future__ import annotations

import random
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lazaretto
from lazaretto import (
    NEXT_SESSION,
    Broker,
    DeadLetterFilter,
    Message,
    MessageLockLost,
    MessageNotFound,
    PoisonPolicy,
    QueueOptions,
    SessionCannotBeLocked,
)

#: Where messages are worked off, and under which names the ledger has them.
PLACES = ("work", "news/a", "news/b")
LEDGER = "CREATE TABLE IF NOT EXISTS ledger (place TEXT, message_id TEXT, PRIMARY KEY (place, message_id))"


class Refused(Exception):
    """What a handler raises now and then."""


def set_up(broker: Broker) -> None:
    """Make queues of every kind, and the application's table."""
    policy = PoisonPolicy(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=0.05)
    broker.create_queue(
        "work", QueueOptions(policy=policy, lock_duration=5, requires_duplicate_detection=True)
    )
    broker.create_queue("in", QueueOptions(forward_to="work"))
    broker.create_queue("chats", QueueOptions(requires_session=True, lock_duration=5))
    broker.create_topic("news")
    for name in ("a", "b"):
        broker.create_subscription("news", name)
    with broker.transaction() as tx:
        tx.execute(LEDGER)


def work(broker: Broker, place: str, draw: random.Random, refuse: float) -> int:
    """Write some messages of a queue or subscription into the ledger, in the commit that completes them."""
    path = place if place == "work" else place.replace("/", "/subscriptions/")
    try:
        with broker.transaction() as tx:
            messages = tx.receive(path, max_messages=draw.randrange(1, 6))
            for message in messages:
                tx.execute("INSERT INTO ledger VALUES (%s, %s)", (place, message.message_id))
            if messages and draw.random() < refuse:
                raise Refused("now and then")
    except Refused:
        return 0
    return len(messages)


class Soaker:
    """One process's random deeds."""

    def __init__(self, broker: Broker, name: str, journal: Path) -> None:
        self._broker = broker
        self._name = name
        self._draw = random.Random(name)
        self._count = 0
        self._journal = journal.open("a", buffering=1)

    def _messages(self, count: int, session_id: str | None = None) -> list[Message]:
        size = 5_000 if self._draw.random() < 0.2 else 50
        self._count += count
        ids = range(self._count - count, self._count)
        return [Message(b"x" * size, message_id=f"{self._name}-{n}", session_id=session_id) for n in ids]

    def _note(self, place: str, messages: list[Message]) -> None:
        for message in messages:
            self._journal.write(f"{place} {message.message_id}\n")

    def send(self) -> None:
        path = self._draw.choice(["work", "work", "in", "news"])
        messages = self._messages(self._draw.randrange(1, 20))
        sender = self._broker.sender(path)
        sender.send(messages)
        if path == "work" and self._draw.random() < 0.3:
            # The same again: they are known.
            sender.send(messages)
        for place in PLACES[1:] if path == "news" else PLACES[:1]:
            self._note(place, messages)

    def schedule(self) -> None:
        messages = self._messages(3)
        self._broker.sender("work").schedule(messages, datetime.now(UTC) + timedelta(seconds=0.1))
        self._note("work", messages)

    def talk(self) -> None:
        messages = self._messages(3, session_id=f"s{self._draw.randrange(5)}")
        self._broker.sender("chats").send(messages)
        self._note("chats", messages)

    def listen(self) -> None:
        try:
            with self._broker.receiver("chats", session=NEXT_SESSION) as receiver:
                messages = receiver.receive(10)
                if messages:
                    receiver.complete(messages)
                for message in messages:
                    self._journal.write(f"heard {message.message_id}\n")
        except SessionCannotBeLocked:
            pass

    def work(self) -> None:
        work(self._broker, self._draw.choice(PLACES), self._draw, 0.1)

    def misuse(self) -> None:
        receiver = self._broker.receiver("work")
        for message in receiver.receive(4):
            match self._draw.randrange(4):
                case 0:
                    receiver.abandon(message, error="not today")
                case 1:
                    receiver.dead_letter(message, reason="Odd")
                case 2:
                    receiver.release(message)
                case 3:
                    receiver.defer(message)
                    try:
                        again = receiver.receive_deferred(message.sequence_number)
                        receiver.dead_letter(again, reason="Deferred")
                    except (MessageNotFound, MessageLockLost):
                        pass

    def repair(self) -> None:
        self._broker.resubmit("work", DeadLetterFilter())

    def run(self, seconds: float) -> None:
        deeds = [self.send, self.send, self.schedule, self.talk, self.listen, self.work, self.work, self.work]
        deeds += [self.misuse, self.repair]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._draw.choice(deeds)()


def main() -> None:
    """Run for so many seconds: address, name, journal, seconds."""
    url, name, journal, seconds = sys.argv[1:]
    with lazaretto.connect(url, timeout=60) as broker:
        Soaker(broker, name, Path(journal)).run(float(seconds))


if __name__ == "__main__":
    main()
