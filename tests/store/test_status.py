"""How queues stand, at a glance: the worst first, from what is kept, as `doctor` says it."""

from __future__ import annotations

from lazaretto import Broker, ManualClock, Message
from lazaretto.engine.workers.workers import Heartbeat
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.clock import to_datetime
from lazaretto.model.descriptions import BreakerDescription, Culprit
from lazaretto.model.entities import QueueOptions, QueueStatus
from lazaretto.model.trouble import ClientFailures, Standing, find_troubles

from .actions import Die, create, send, set_aside


def test_the_worst_comes_first(broker: Broker, clock: ManualClock) -> None:
    for path in ("a-waits", "b-dead", "c-off", "d-open", "e-dead"):
        create(broker, path)
    send(broker, b"x", path="a-waits")
    sent = to_datetime(clock.now())
    set_aside(broker, b"1", path="b-dead", reason="r")
    clock.advance(3_600)
    died = to_datetime(clock.now())
    set_aside(broker, b"1", b"2", path="e-dead", reason="r")
    broker.set_breaker("d-open", "open")
    broker.set_status("c-off", "disabled")
    found = broker.status()
    assert [queue.path for queue in found.queues] == [
        "a-waits", "c-off", "d-open", "e-dead", "b-dead", "$system/deadletter",
    ]  # fmt: skip
    assert (found.total, found.troubled, found.severe) == (6, 5, 3)
    by_path = {queue.path: queue for queue in found.queues}
    assert by_path["c-off"].troubles[0].command == "lazaretto queue resume c-off"
    waits = by_path["a-waits"]
    assert (waits.waiting, waits.exact, waits.oldest) == (1, True, sent)
    early, late = by_path["b-dead"], by_path["e-dead"]
    assert (early.died_this_hour, early.died_last_hour, early.growing) == (0, 1, False)
    assert early.died_by_hour == (*[0] * 22, 1, 0)
    assert (late.dead_letters, late.died_this_hour, late.growing, late.dead_since) == (2, 2, True, died)
    broker.purge("e-dead", [1, 2])
    assert broker.status(name_contains="E-DEAD").queues[0].troubles == ()


def test_a_page_and_a_part_of_the_path(broker: Broker) -> None:
    broker.create_queues([f"shop/{n}" for n in range(5)])
    broker.set_status("shop/3", "disabled")
    found = broker.status(limit=2, name_contains="SHOP/")
    assert [queue.path for queue in found.queues] == ["shop/3", "shop/0"]
    assert (found.total, found.troubled) == (5, 1)
    assert len(broker.status(limit=None).queues) == 6
    assert broker.status(name_contains="nothing").queues == ()


def test_many_waiting_messages_are_an_estimate(broker: Broker) -> None:
    create(broker)
    broker.sender("q").send([Message(b"x") for _ in range(150)])
    (queue,) = broker.status(name_contains="q", limit=1).queues
    assert (queue.waiting, queue.exact) == (150, False)
    receiver = broker.receiver("q")
    receiver.complete(receiver.receive(60))
    (queue,) = broker.status(name_contains="q", limit=1).queues
    assert (queue.waiting, queue.exact) == (90, True)


def test_held_sessions_and_subscriptions(broker: Broker) -> None:
    broker.create_topic("t")
    broker.create_subscription("t", "s")
    set_aside_in = "t/subscriptions/s"
    broker.sender("t").send(Message(b"x"))
    receiver = broker.receiver(set_aside_in)
    receiver.dead_letter(receiver.receive(), reason="r")
    assert broker.status().queues[0].path == set_aside_in
    assert broker.status().queues[0].dead_letters == 1


def test_every_trouble_has_a_command() -> None:
    time = to_datetime(0)
    culprit = Culprit(7, 1, 0, "MaxDeliveryCountExceeded", time, "ValueError: x")
    queue = Standing(
        path="q", status=QueueStatus.RECEIVE_DISABLED, updated=time, halted_by=culprit,
        dead_letter_halted_by=culprit, breaker=BreakerDescription(BreakerStatus.OPEN, time, None, "down"),
        held_sessions=2, dead_letters=1_000, died=time, options=QueueOptions(),
        client_failures=ClientFailures(messages=1_200, expired=20, since=time),
    )  # fmt: skip
    found = find_troubles(queue)
    assert [trouble.kind for trouble in found] == [
        "held_sessions", "breaker_open", "receive_disabled", "halted", "dead_letters_halted", "dead_letters",
        "client_failures",
    ]  # fmt: skip
    assert all(trouble.command.startswith("lazaretto ") for trouble in found)
    assert [trouble.severe for trouble in found] == [True] * 5 + [False] * 2
    assert "1,000 dead letters" in found[-2].text


def test_messages_that_nobody_takes_are_a_trouble(broker: Broker, clock: ManualClock) -> None:
    for path in ("waits", "served", "at-work", "off", "parted"):
        create(broker, path, partitions=16 if path == "parted" else 1)
        broker.sender(path).send([Message(b"x", session_id=None)] * 3)
    create(broker, "later")
    later = to_datetime(clock.now() + 86_400_000_000)
    broker.sender("later").send(Message(b"x", scheduled_enqueue_time=later))
    broker.set_status("off", "receive_disabled")
    at_work = broker.receiver("at-work")
    held = at_work.receive(1)
    served = broker.receiver("served")

    def unattended() -> dict[str, object]:
        # Whoever asks for rates has those of this process written first.
        broker.rates(limit=1)
        kinds = {queue.path: [trouble.kind for trouble in queue.troubles] for queue in broker.status().queues}
        return {path: kinds[path] for path in kinds if kinds[path]}

    assert unattended() == {"off": ["receive_disabled"]}
    sent = to_datetime(clock.now())
    for step in range(14):
        clock.advance(30)
        at_work.renew_lock(held)
        if step == 10:
            served.complete(served.receive(1))
    assert unattended() == {"off": ["receive_disabled"], "parted": ["unattended"], "waits": ["unattended"]}
    everything = broker.status()
    (trouble,) = next(queue for queue in everything.queues if queue.path == "waits").troubles
    assert (trouble.severe, trouble.since) == (True, sent)
    assert trouble.command == "lazaretto worker list --queue waits"
    assert everything.troubled == 3
    receiver = broker.receiver("waits")
    receiver.abandon(receiver.receive(1))
    assert "waits" not in unattended()


def test_messages_that_those_who_are_there_do_not_take(broker: Broker, clock: ManualClock) -> None:
    """They may be stuck: that is another trouble while they are there; takers of dead letters are not."""
    for path in ("Watched", "left", "letters"):
        create(broker, path)
    taking = [broker.receiver("watched"), broker.receiver("letters", subqueue="dead_letter")]
    for receiver in taking:
        assert receiver.receive(1) == []
    for path in ("Watched", "left", "letters"):
        send(broker, b"x", path=path)
    clock.advance(420)

    def troubles() -> dict[str, tuple[str, bool]]:
        status = broker.status()
        assert status.severe == sum(one.severe for queue in status.queues for one in queue.troubles)
        return {queue.path: (one.kind, one.severe) for queue in status.queues for one in queue.troubles}

    broker._store.run(Heartbeat(broker._store.presence.records()))
    nobody = ("unattended", True)
    assert troubles() == {"left": nobody, "letters": nobody, "Watched": ("stalled", False)}
    (stalled,) = broker.status(name_contains="watched").queues[0].troubles
    assert "those who take its messages have taken none for 5 minutes" in stalled.text
    assert stalled.command == "lazaretto worker list --queue Watched"
    broker._store.run(Die())
    assert troubles() == {"left": nobody, "letters": nobody, "Watched": nobody}
