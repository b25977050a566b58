"""Makes events, as fast as it can: in commits of its own, in transactions, and with SQL of its own."""

from __future__ import annotations

import lazaretto
from lazaretto import Message


def main(place: str, name: str, rounds: int) -> None:
    """Dead-letter two messages a round, one of them in a queue that all processes use."""
    own = f"own-{name}"
    with lazaretto.connect(place) as broker:
        broker.create_queue(own)
        receiver = broker.receiver(own)
        for n in range(rounds):
            broker.sender(own).send(Message(b""))
            broker.sender("shared").send(Message(b""))
            receiver.dead_letter(receiver.receive(max_wait=60))
            with broker.transaction() as tx:
                messages = tx.receive("shared", max_wait=60)
                if n % 3 == 0:
                    tx.execute("SELECT 1")
                tx.dead_letter(messages)
            broker.update_queue(own, lock_duration=5 + n % 50)
