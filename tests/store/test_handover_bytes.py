"""Hand-overs to hosts end where their bytes do."""

from __future__ import annotations

import pytest

from lazaretto import NEXT_SESSION, Broker, Message, QueueOptions, Subqueue
from lazaretto.broker.receiver import Receiver
from lazaretto.engine.workers.leases import GiveBack, Handover
from lazaretto.model.entities import EntityPath

LARGE = QueueOptions(max_message_size=1_000_000)
#: Of large, of small and of very large messages.
SIZES = [2000, 30, 2000, 9000, 10, 10, 2000, 2000, 2000, 2000]
#: How many come together where 5,000 bytes may.
TAKEN = [3, 1, 4, 2]


def take_all(broker: Broker, receiver: Receiver, *, give_back: bool = False) -> list[list[int]]:
    """Return the sizes of the messages of each hand-over until there are none."""
    taken: list[Handover] = []
    while (handover := receiver.take(100, 0.0, most_bytes=5000)) is not None:
        taken.append(handover)
    if give_back:
        for handover in taken:
            broker._store.run(GiveBack(handover.lock, [m.key for m in handover.messages]))
    return [[len(m.body) for m in handover.messages] for handover in taken]


def in_parts(sizes: list[int]) -> list[list[int]]:
    left = iter(sizes)
    return [[next(left) for _ in range(count)] for count in TAKEN]


def test_fresh_ones_and_those_that_come_again(broker: Broker) -> None:
    broker.create_queue("q", LARGE)
    broker.sender("q").send([Message(b"x" * size) for size in SIZES])
    receiver = Receiver(broker._store, EntityPath.parse("q"))
    assert take_all(broker, receiver, give_back=True) == in_parts(SIZES)
    # Handed out before, and before the fresh ones.
    broker.sender("q").send([Message(b"x" * 500), Message(b"x" * 1000)])
    assert take_all(broker, receiver) == [*in_parts(SIZES)[:-1], [2000, 2000, 500], [1000]]


def test_a_session(broker: Broker) -> None:
    broker.create_queue("q", QueueOptions(max_message_size=1_000_000, requires_session=True))
    broker.sender("q").send([Message(b"x" * size, session_id="s") for size in SIZES])
    with Receiver(broker._store, EntityPath.parse("q"), session=NEXT_SESSION) as receiver:
        assert take_all(broker, receiver) == in_parts(SIZES)


def test_dead_letters(broker: Broker) -> None:
    broker.create_queue("q", LARGE)
    broker.sender("q").send([Message(b"x" * size) for size in SIZES])
    with broker.receiver("q") as receiver:
        receiver.dead_letter(receiver.receive(100))
    path = EntityPath.parse("q", Subqueue.DEAD_LETTER)
    assert take_all(broker, Receiver(broker._store, path)) == in_parts(SIZES)


@pytest.mark.parametrize("other", [False, True])
def test_several_at_once_take_different_ones(broker: Broker, other: bool) -> None:
    """What others hold, also as a range, does not count."""
    broker.create_queue("q", LARGE)
    broker.sender("q").send([Message(b"x" * size) for size in SIZES])
    path = EntityPath.parse("q")
    if other:
        assert len(broker.receiver("q").receive(3)) == 3
        assert take_all(broker, Receiver(broker._store, path)) == in_parts(SIZES)[1:]
    else:
        receivers = [Receiver(broker._store, path) for _ in TAKEN]
        taken = [receiver.take(100, 0.0, most_bytes=5000) for receiver in receivers]
        assert [[len(m.body) for m in one.messages] for one in taken if one] == in_parts(SIZES)
