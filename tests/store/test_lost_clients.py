"""Connections of clients that die: what the client worked on is suspected, and a killer alone is charged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lazaretto import Broker, ManualClock, MessageState, PoisonPolicy, QueueOptions, ReceivedMessage
from lazaretto.broker.broker import store_of
from lazaretto.engine.messages.receive import Receive
from lazaretto.engine.workers.workers import LoseClient
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import Suspects

from .actions import kinds, send, states

PATH = EntityPath.parse("q")
LOCK = 60.0


@pytest.fixture
def served(broker: Broker) -> Broker:
    """A broker that receives for clients, as a server's."""
    store_of(broker).hold_for_clients()
    return broker


def create(broker: Broker, deliveries: int = 10, **options: Any) -> None:
    policy = PoisonPolicy.service_bus(deliveries)
    broker.create_queue("q", QueueOptions(policy=policy, blame_clients=True, **options))


def lose(broker: Broker, working: Sequence[ReceivedMessage], waiting: Sequence[ReceivedMessage] = ()) -> None:
    store_of(broker).run(LoseClient(PATH, working, waiting))


def take(broker: Broker, suspects: Suspects, most: int = 10) -> tuple[list[int], bool]:
    """Receive as a connection does; return the numbers, and whether a suspect was skipped."""
    receive = Receive(PATH, most, suspects=suspects)
    found = store_of(broker).run(receive)
    assert isinstance(found, list)
    return [message.sequence_number for message in found], receive.skipped


def charged(broker: Broker) -> dict[int, int]:
    return {m.sequence_number: m.delivery_count for m in broker.peek("q", 100) if m.delivery_count}


def test_what_was_not_begun_is_free_at_once_and_the_rest_when_its_lock_ends(
    served: Broker, clock: ManualClock
) -> None:
    create(served)
    for _ in range(5):
        send(served, b"x")
    held = served.receiver("q").receive(5)
    lose(served, held[:2], held[2:])
    assert [m.sequence_number for m in served.receiver("q").receive(5)] == [3, 4, 5]
    clock.advance(LOCK + 1)
    assert take(served, Suspects.FIRST) == ([1], False)
    assert [m.delivery_count for m in served.peek("q", 2)] == [0, 0]
    assert "suspects_held" in kinds(served.events())


def test_a_client_that_lives_settles_what_it_worked_on(served: Broker, clock: ManualClock) -> None:
    create(served)
    send(served, b"x")
    [held] = served.receiver("q").receive()
    lose(served, [held])
    served.receiver("q").renew_lock(held)
    clock.advance(LOCK - 1)
    served.receiver("q").complete(held)
    assert served.queue("q").counts.active == served.queue("q").counts.suspect == 0


def test_suspects_hold_up_nobody_who_is_busy(served: Broker, clock: ManualClock) -> None:
    create(served)
    for _ in range(6):
        send(served, b"x")
    lose(served, served.receiver("q").receive(2))
    clock.advance(LOCK + 1)
    assert take(served, Suspects.SKIPPED, 2) == ([3, 4], True)
    assert take(served, Suspects.FIRST) == ([1], False)
    assert take(served, Suspects.FIRST) == ([2], False)
    assert take(served, Suspects.FIRST) == ([5, 6], False)


def test_a_suspect_that_completes_is_cleared(served: Broker, clock: ManualClock) -> None:
    create(served)
    send(served, b"x")
    lose(served, served.receiver("q").receive())
    clock.advance(LOCK + 1)
    [found] = served.receiver("q").receive()
    assert found.delivery_count == 0
    served.receiver("q").complete(found)
    assert kinds(served.events())[-1] == "suspect_cleared"


def test_a_suspect_that_is_abandoned_is_charged_for_that_alone(served: Broker, clock: ManualClock) -> None:
    create(served)
    send(served, b"x")
    lose(served, served.receiver("q").receive())
    clock.advance(LOCK + 1)
    served.receiver("q").abandon(served.receiver("q").receive())
    assert states(served) == [(b"x", MessageState.ACTIVE)]
    assert charged(served) == {1: 1}


def test_a_killer_is_charged_with_all_its_deaths(served: Broker, clock: ManualClock) -> None:
    create(served, deliveries=3)
    for _ in range(50):
        send(served, b"x")
    held = served.receiver("q").receive(50)
    lose(served, held[:4], held[4:])
    deaths = 1
    clock.advance(LOCK + 1)
    while served.queue("q").counts.dead_letter == 0:
        found = served.receiver("q").receive()
        if found[0].sequence_number == 3:
            lose(served, found)
            deaths += 1
            clock.advance(LOCK + 1)
            served.receiver("q").release(served.receiver("q").receive())
        else:
            served.receiver("q").complete(found)
    assert deaths == 3
    assert [(m.sequence_number, m.reason) for m in served.dead_letters("q")] == [(3, "WorkerCrashed")]
    assert charged(served) == {}
    assert [(e.sequence_number, e.detail["deaths"]) for e in served.events(kind="killer_found")] == [
        (3, 2), (3, 1),
    ]  # fmt: skip


def test_a_lock_that_a_living_client_lets_expire_is_charged(served: Broker, clock: ManualClock) -> None:
    create(served)
    send(served, b"x")
    served.receiver("q").receive()
    clock.advance(LOCK + 1)
    assert [m.delivery_count for m in served.receiver("q").receive()] == [1]


def test_a_session_is_free_at_once_and_its_suspect_stays_in_order(served: Broker) -> None:
    create(served, requires_session=True)
    for _ in range(4):
        send(served, b"x", session_id="s")
    receiver = served.receiver("q", session="s")
    held = receiver.receive(3)
    lose(served, held[:1])
    receiver.close()
    again = served.receiver("q", session="s")
    [suspect] = again.receive(4)
    assert (suspect.sequence_number, suspect.delivery_count) == (1, 0)
    again.complete(suspect)
    assert [m.sequence_number for m in again.receive(4)] == [2, 3, 4]
    assert charged(served) == {}


def test_a_killer_in_a_session_is_set_aside(served: Broker) -> None:
    create(served, deliveries=2, requires_session=True)
    for _ in range(2):
        send(served, b"x", session_id="s")
    for _ in range(2):
        receiver = served.receiver("q", session="s")
        lose(served, receiver.receive(1))
        receiver.close()
    assert [m.sequence_number for m in served.dead_letters("q")] == [1]
    assert [m.sequence_number for m in served.receiver("q", session="s").receive(5)] == [2]


def test_a_session_that_is_a_unit_is_charged_as_one(served: Broker) -> None:
    create(served, requires_session=True, on_poison_session="whole")
    for _ in range(2):
        send(served, b"x", session_id="s")
    receiver = served.receiver("q", session="s")
    lose(served, receiver.receive(2))
    receiver.close()
    assert charged(served) == {1: 1}


def test_what_is_gone_meanwhile_is_left_alone(served: Broker, clock: ManualClock) -> None:
    create(served)
    for _ in range(2):
        send(served, b"x")
    held = served.receiver("q").receive(2)
    served.receiver("q").complete(held[0])
    clock.advance(LOCK + 1)
    lose(served, held[:1], held[1:])
    assert [m.delivery_count for m in served.receiver("q").receive(2)] == [1]
    served.delete_queue("q")
    lose(served, held)
