"""An outage behind clients of AMQP and HTTP: the breaker opens, probes end it, and no attempt counts."""

from __future__ import annotations

from typing import Any

import pytest

from lazaretto import BreakerPolicy, Broker, ManualClock, PoisonPolicy, QueueOptions, ReceivedMessage
from lazaretto.broker.broker import store_of
from lazaretto.model.breaker import BreakerStatus

from .actions import send
from .conftest import Connect

FEW = 5
POLICY = BreakerPolicy(messages=FEW, clients=True)


def server(broker: Broker) -> Broker:
    """Return a broker that receives for clients from now on, as a server's."""
    store_of(broker).hold_for_clients()
    return broker


@pytest.fixture
def served(broker: Broker) -> Broker:
    return server(broker)


def create(broker: Broker, deliveries: int = 10, *, breaker: BreakerPolicy = POLICY, **options: Any) -> None:
    policy = PoisonPolicy.service_bus(deliveries)
    broker.create_queue("q", QueueOptions(policy=policy, breaker=breaker, **options))


def fill(broker: Broker, count: int = 50) -> None:
    for number in range(count):
        send(broker, str(number).encode())


def take(broker: Broker, most: int = 1) -> list[ReceivedMessage]:
    return broker.receiver("q").receive(most)


def fail(broker: Broker, most: int = 1) -> list[ReceivedMessage]:
    """Receive messages and abandon them, as a client does whose dependency is away."""
    found = take(broker, most)
    if found:
        broker.receiver("q").abandon(found)
    return found


def open_breaker(broker: Broker) -> None:
    """Let messages fail until the breaker opens."""
    for _ in range(3):
        fail(broker, FEW)
    assert status(broker) is BreakerStatus.OPEN


def status(broker: Broker) -> BreakerStatus:
    return broker.breaker("q").status


def charges(broker: Broker) -> set[int]:
    return {message.delivery_count for message in broker.peek("q", 100)}


def test_an_outage_opens_the_breaker_and_refunds_its_attempts(served: Broker) -> None:
    create(served)
    fill(served)
    fail(served, FEW - 1)
    assert (status(served), charges(served)) == (BreakerStatus.CLOSED, {0, 1})
    fail(served, FEW)
    assert (status(served), charges(served)) == (BreakerStatus.OPEN, {0})
    assert take(served) == []
    event = served.events(kind="breaker_opened")[0]
    assert event.detail["error"] == "most messages are abandoned by their clients"
    assert event.detail["given_back"] == FEW - 1


def test_messages_that_are_completed_one_by_one_keep_it_closed(served: Broker) -> None:
    create(served, deliveries=1)
    receiver = served.receiver("q")
    for _ in range(FEW + 1):
        fill(served, 1)
        fail(served)
        for _ in range(2 * FEW):
            fill(served, 1)
            receiver.complete(take(served))
    assert status(served) is BreakerStatus.CLOSED
    assert served.queue("q").counts.dead_letter == FEW + 1


def test_what_was_dead_lettered_by_count_comes_back(served: Broker) -> None:
    create(served, deliveries=1)
    fill(served)
    fail(served, FEW - 1)
    assert served.queue("q").counts.dead_letter == FEW - 1
    fail(served)
    counts = served.queue("q").counts
    assert (counts.dead_letter, counts.active, charges(served)) == (0, 50, {0})


def test_what_a_client_dead_lettered_itself_stays_there(served: Broker) -> None:
    create(served)
    fill(served)
    [first] = fail(served)
    [again] = take(served)
    assert again.sequence_number == first.sequence_number
    served.receiver("q").dead_letter(again, reason="no")
    fail(served, FEW)
    assert status(served) is BreakerStatus.OPEN
    assert served.queue("q").counts.dead_letter == 1


def test_locks_that_expire_are_an_outage_too(served: Broker, clock: ManualClock) -> None:
    create(served, breaker=BreakerPolicy(messages=FEW, clients=True, window=120))
    fill(served)
    take(served, FEW)
    clock.advance(61)
    assert take(served) == []
    assert (status(served), charges(served)) == (BreakerStatus.OPEN, {0})


def test_some_that_fail_among_many_that_complete_are_poison(served: Broker) -> None:
    create(served)
    fill(served)
    for _ in range(10):
        found = take(served, 4)
        served.receiver("q").complete(found[1:])
        served.receiver("q").abandon(found[0])
    assert status(served) is BreakerStatus.CLOSED
    assert max(charges(served)) == 10 or served.queue("q").counts.dead_letter == 1


def test_nothing_happens_unless_asked_for(served: Broker) -> None:
    create(served, breaker=BreakerPolicy(messages=FEW))
    fill(served)
    fail(served, 50)
    assert (status(served), charges(served)) == (BreakerStatus.CLOSED, {1})


def test_programs_that_have_the_store_are_not_clients(broker: Broker) -> None:
    create(broker)
    fill(broker)
    fail(broker, 50)
    assert (status(broker), charges(broker)) == (BreakerStatus.CLOSED, {1})


def test_probes_rotate_and_their_failures_cost_nothing(served: Broker, clock: ManualClock) -> None:
    create(served)
    fill(served)
    open_breaker(served)
    probed = []
    for _ in range(6):
        clock.advance(6)
        probed += [m.sequence_number for m in fail(served, 10)]
        assert take(served, 10) == []
    assert len(set(probed)) == len(probed) == 6
    assert (status(served), charges(served)) == (BreakerStatus.OPEN, {0})


def test_a_probe_that_completes_ends_it(served: Broker, clock: ManualClock) -> None:
    create(served)
    fill(served)
    open_breaker(served)
    clock.advance(1)
    [probe] = take(served, 10)
    served.receiver("q").complete(probe)
    assert status(served) is BreakerStatus.RAMPING
    handed = []
    while status(served) is BreakerStatus.RAMPING:
        found = take(served, 50)
        handed.append(len(found))
        served.receiver("q").complete(found)
    assert handed == [2, 4, 8, 16]
    assert [event.kind for event in served.events() if event.kind.startswith("breaker_")] == [
        "breaker_opened", "breaker_ramping", "breaker_closed",
    ]  # fmt: skip


def test_what_was_in_work_before_tells_nothing(served: Broker, clock: ManualClock) -> None:
    create(served)
    fill(served)
    early = take(served, 3)
    open_breaker(served)
    served.receiver("q").complete(early[0])
    served.receiver("q").abandon(early[1:])
    assert (status(served), charges(served)) == (BreakerStatus.OPEN, {0})
    clock.advance(1)
    late = take(served)
    clock.advance(5)
    take(served)
    # A probe may take longer than the next one waits.
    served.receiver("q").complete(late)
    assert status(served) is BreakerStatus.RAMPING


def test_it_opens_again_if_the_failures_come_back(served: Broker, clock: ManualClock) -> None:
    create(served, deliveries=1)
    fill(served)
    open_breaker(served)
    clock.advance(1)
    served.receiver("q").complete(take(served))
    fail(served, 2)
    assert (status(served), charges(served)) == (BreakerStatus.OPEN, {0})
    assert served.queue("q").counts.dead_letter == 0


def test_a_poison_message_in_a_ramp_is_counted(served: Broker, clock: ManualClock) -> None:
    create(served, deliveries=3)
    fill(served)
    open_breaker(served)
    clock.advance(1)
    served.receiver("q").complete(take(served))
    bad = 0
    while status(served) is BreakerStatus.RAMPING:
        found = take(served, 2)
        bad = bad or found[0].sequence_number
        served.receiver("q").complete([m for m in found if m.sequence_number != bad])
        served.receiver("q").abandon([m for m in found if m.sequence_number == bad])
    assert status(served) is BreakerStatus.CLOSED


def test_an_operator_holds_clients_back_and_lets_them_go(served: Broker) -> None:
    create(served)
    fill(served)
    served.set_breaker("q", "open")
    assert take(served) == []
    served.set_breaker("q", "close")
    fail(served, 50)
    assert (status(served), charges(served)) == (BreakerStatus.HELD_CLOSED, {1})


def test_attempts_are_refunded_once(served: Broker, clock: ManualClock) -> None:
    create(served)
    fill(served)
    open_breaker(served)
    served.set_breaker("q", "auto")
    clock.advance(1)
    fail(served, 1)
    for _ in range(3):
        fail(served, FEW)
    assert (status(served), charges(served)) == (BreakerStatus.OPEN, {0})
    events = served.events(kind="breaker_opened")
    assert [event.detail["given_back"] for event in events] == [FEW - 1, FEW - 1]


def test_all_servers_of_a_store_see_it(connect: Connect, clock: ManualClock) -> None:
    one, other = server(connect()), server(connect())
    create(one)
    fill(one)
    fail(other, FEW - 1)
    open_breaker(one)
    assert (take(other), status(other), charges(other)) == ([], BreakerStatus.OPEN, {0})
    clock.advance(1)
    found = take(other)
    assert (len(found), take(one)) == (1, [])
    other.receiver("q").complete(found)
    assert status(one) is BreakerStatus.RAMPING


def test_sessions_are_held_back_too(served: Broker, clock: ManualClock) -> None:
    create(served, requires_session=True)
    for number in range(20):
        send(served, b"x", session_id=str(number))
    receivers = [served.receiver("q", session=str(number)) for number in range(FEW)]
    for receiver in receivers:
        receiver.abandon(receiver.receive())
    assert (status(served), charges(served)) == (BreakerStatus.OPEN, {0})
    assert receivers[0].receive() == []
    clock.advance(1)
    probe = receivers[0].receive()
    assert receivers[1].receive() == []
    receivers[0].complete(probe)
    assert status(served) is BreakerStatus.RAMPING


def test_receiving_and_deleting_is_held_back_but_for_probes(served: Broker, clock: ManualClock) -> None:
    create(served)
    fill(served)
    open_breaker(served)
    deleting = served.receiver("q", mode="receive_and_delete")
    assert deleting.receive(10) == []
    clock.advance(1)
    assert len(deleting.receive(10)) == 1
    assert status(served) is BreakerStatus.RAMPING


def advice(broker: Broker) -> list[str]:
    """Return what is said of clients that failed."""
    troubles = (trouble for queue in broker.status().queues for trouble in queue.troubles)
    return [trouble.command for trouble in troubles if trouble.kind == "client_failures"]


@pytest.mark.parametrize("partitions", [1, 16])
def test_the_options_are_suggested_where_they_would_have_helped(
    served: Broker, clock: ManualClock, partitions: int
) -> None:
    create(served, deliveries=1, breaker=BreakerPolicy(), partitions=partitions, lock_duration=30)
    fill(served, 20)
    fail(served, 9)
    assert advice(served) == []
    fail(served, 1)
    assert advice(served) == ["lazaretto queue update q --breaker-clients"]
    # Clients that die leave locks, which run out.
    assert len(take(served, 5)) == 5
    clock.advance(31)
    take(served)
    assert advice(served) == ["lazaretto queue update q --breaker-clients --blame-clients"]
    served.update_queue("q", breaker=POLICY)
    assert advice(served) == ["lazaretto queue update q --blame-clients"]
    served.update_queue("q", blame_clients=True)
    assert advice(served) == []
    served.update_queue("q", blame_clients=False)
    clock.advance(90_000)
    assert advice(served) == []


def test_failures_of_handlers_in_python_suggest_nothing_for_clients(broker: Broker) -> None:
    create(broker, deliveries=1, breaker=BreakerPolicy())
    fill(broker, 20)
    fail(broker, 20)
    assert advice(broker) == []
