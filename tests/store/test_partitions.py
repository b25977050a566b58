"""Partitioned queues: what they keep of a queue's promises, and what they promise instead."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta

import pytest

from lazaretto import (
    Broker,
    DeadLetterFilter,
    InvalidOption,
    ManualClock,
    Message,
    PoisonPolicy,
    QueueOptions,
    ReceivedMessage,
    TopicOptions,
)
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.model.clock import to_datetime
from lazaretto.model.partitions import partition_of as partition_of_key

from .conftest import Connect

PARTITIONS = 8
KEYS = [f"key-{number}" for number in range(20)]


@pytest.fixture
def broker(connect: Connect) -> Broker:
    found = connect()
    found.create_queue("orders", QueueOptions(partitions=PARTITIONS))
    return found


def send_keyed(broker: Broker, path: str = "orders", rounds: int = 3) -> None:
    """Send messages of every key, each of which says its place within its key."""
    sender = broker.sender(path)
    for turn in range(rounds):
        sender.send([Message(b"%d" % turn, partition_key=key) for key in KEYS])


def drain(broker: Broker, path: str = "orders", limit: int = 7) -> Iterator[ReceivedMessage]:
    """Yield all messages of a queue, completed."""
    with broker.receiver(path) as receiver:
        while found := receiver.receive(limit):
            receiver.complete(found)
            yield from found


def partition_of(message: ReceivedMessage) -> int:
    return message.sequence_number >> 36


def test_messages_of_a_key_keep_their_order_in_one_partition(broker: Broker) -> None:
    send_keyed(broker)
    by_key = defaultdict(list)
    for message in drain(broker):
        by_key[message.partition_key].append((partition_of(message), message.body))
    assert {key: [body for _, body in found] for key, found in by_key.items()} == {
        key: [b"0", b"1", b"2"] for key in KEYS
    }
    assert all(len({partition for partition, _ in found}) == 1 for found in by_key.values())
    assert len({found[0][0] for found in by_key.values()}) > PARTITIONS // 2


def test_a_host_sends_to_its_home_what_has_no_key(broker: Broker) -> None:
    broker.sender("orders").send([Message(b"one"), Message(b"two")])
    broker.sender("orders").send(Message(b"three"))
    found = list(drain(broker))
    assert [message.body for message in found] == [b"one", b"two", b"three"]
    assert len(set(map(partition_of, found))) == 1


def test_counts_peek_and_numbers_are_those_of_one_queue(broker: Broker) -> None:
    send_keyed(broker)
    assert broker.queue("orders").counts.active == 3 * len(KEYS)
    peeked = broker.peek("orders", max_messages=100)
    numbers = [message.sequence_number for message in peeked]
    assert len(set(numbers)) == 3 * len(KEYS)
    assert numbers == sorted(numbers)
    behind = broker.peek("orders", max_messages=100, from_sequence_number=numbers[30])
    assert [message.sequence_number for message in behind] == numbers[30:]


def test_deferred_messages_are_received_by_number(broker: Broker) -> None:
    send_keyed(broker, rounds=1)
    receiver = broker.receiver("orders")
    numbers = []
    while found := receiver.receive(10):
        for message in found:
            receiver.defer(message)
            numbers.append(message.sequence_number)
    assert len(numbers) == len(KEYS)
    again = receiver.receive_deferred(numbers)
    assert {message.sequence_number for message in again} == set(numbers)


def test_dead_letters_go_back_to_the_partition_of_their_key(broker: Broker) -> None:
    send_keyed(broker, rounds=1)
    receiver = broker.receiver("orders")
    places = {}
    while found := receiver.receive(10):
        for message in found:
            places[message.partition_key] = partition_of(message)
            receiver.dead_letter(message, reason="Bad")
    assert broker.queue("orders").counts.dead_letter == len(KEYS)
    report = broker.resubmit("orders", DeadLetterFilter())
    assert len(report.resubmitted) == len(KEYS)
    assert {m.partition_key: partition_of(m) for m in drain(broker)} == places


def test_failed_messages_come_back_and_become_dead_letters(connect: Connect) -> None:
    broker = connect()
    options = QueueOptions(partitions=4, policy=PoisonPolicy(receive_retry_count=1))
    broker.create_queue("orders", options)
    send_keyed(broker, rounds=1)
    receiver = broker.receiver("orders")
    handed_out = 0
    while found := receiver.receive(3):
        for message in found:
            handed_out += 1
            receiver.abandon(message, error=ValueError("no"))
    assert handed_out == 2 * len(KEYS)
    assert broker.queue("orders").counts.dead_letter == len(KEYS)


def test_expired_locks_come_back_from_every_partition(broker: Broker, clock: ManualClock) -> None:
    send_keyed(broker, rounds=1)
    receiver = broker.receiver("orders")
    first = []
    while found := receiver.receive(4):
        first += found
    clock.advance(61)
    second = []
    while found := receiver.receive(4):
        second += found
    assert {m.sequence_number for m in second} == {m.sequence_number for m in first}
    assert all(m.delivery_count == 1 for m in second)


def test_sessions_keep_their_order(connect: Connect) -> None:
    broker = connect()
    broker.create_queue("orders", QueueOptions(partitions=PARTITIONS, requires_session=True))
    sender = broker.sender("orders")
    for turn in range(3):
        sender.send([Message(b"%d" % turn, session_id=key) for key in KEYS])
    places = set()
    for key in KEYS:
        with broker.receiver("orders", session=key) as receiver:
            found = receiver.receive(10)
            assert [message.body for message in found] == [b"0", b"1", b"2"]
            assert len(set(map(partition_of, found))) == 1
            places.add(partition_of(found[0]))
            receiver.complete(found)
    assert len(places) > PARTITIONS // 2


def test_duplicates_are_found(connect: Connect) -> None:
    broker = connect()
    options = QueueOptions(partitions=PARTITIONS, requires_duplicate_detection=True)
    broker.create_queue("orders", options)
    sender = broker.sender("orders")
    first = sender.send([Message(b"", message_id=key) for key in KEYS])
    again = sender.send([Message(b"", message_id=key) for key in KEYS])
    assert again == first
    assert broker.queue("orders").counts.active == len(KEYS)
    assert len({number >> 36 for number in first}) > PARTITIONS // 2


def test_scheduled_messages_become_active_in_the_partition_of_their_key(
    broker: Broker, clock: ManualClock
) -> None:
    at = to_datetime(clock.now()) + timedelta(seconds=10)
    numbers = broker.sender("orders").send(
        [Message(b"", partition_key=key, scheduled_enqueue_time=at) for key in KEYS]
    )
    assert broker.queue("orders").counts.scheduled == len(KEYS)
    clock.advance(11)
    found = {message.partition_key: partition_of(message) for message in drain(broker)}
    assert found == dict(zip(KEYS, (number >> 36 for number in numbers), strict=True))


def test_a_queue_can_forward_to_partitions_and_out_of_them(connect: Connect) -> None:
    broker = connect()
    broker.create_queue("parts", QueueOptions(partitions=4))
    broker.create_queue("front", QueueOptions(forward_to="parts"))
    broker.create_queue("plain")
    send_keyed(broker, "front", rounds=1)
    assert broker.queue("parts").counts.active == len(KEYS)
    assert len({message.sequence_number >> 36 for message in broker.peek("parts", max_messages=50)}) > 1
    broker.update_queue("parts", forward_to="plain")
    broker.sender("parts").send(Message(b"more", partition_key="k"))
    assert len(list(drain(broker, "plain"))) == len(KEYS) + 1
    assert broker.queue("parts").counts.total == 0


def test_subscriptions_have_the_partitions_of_their_topic(connect: Connect) -> None:
    broker = connect()
    broker.create_topic("events", TopicOptions(partitions=4))
    paths = []
    for name in ("one", "two"):
        found = broker.create_subscription("events", name)
        assert found.queue.options.partitions == 4
        paths.append(found.queue.path)
    send_keyed(broker, "events")
    for path in paths:
        by_key = defaultdict(list)
        for message in drain(broker, path):
            by_key[message.partition_key].append(message.body)
        assert by_key == {key: [b"0", b"1", b"2"] for key in KEYS}


def test_an_empty_queue_grows_and_never_uses_a_number_twice(connect: Connect) -> None:
    broker = connect()
    broker.create_queue("orders")
    used = set(broker.sender("orders").send([Message(b"", partition_key=key) for key in KEYS]))
    with pytest.raises(InvalidOption, match="holds 20 messages"):
        broker.update_queue("orders", partitions=4)
    for partitions in (4, 16):
        assert len(list(drain(broker))) == len(KEYS)
        assert broker.update_queue("orders", partitions=partitions).options.partitions == partitions
        numbers = broker.sender("orders").send([Message(b"", partition_key=key) for key in KEYS])
        assert used.isdisjoint(numbers)
        used.update(numbers)
        assert len({number >> 36 for number in numbers}) > 1
    assert len(list(drain(broker))) == len(KEYS)
    with pytest.raises(InvalidOption, match="partitions"):
        broker.update_queue("orders", partitions=4)


def test_numbers_go_on_after_all_is_gone_and_the_store_is_opened_again(connect: Connect) -> None:
    broker = connect()
    broker.create_queue("orders", QueueOptions(partitions=4))
    used: set[int] = set()
    for _ in range(3):
        numbers = broker.sender("orders").send([Message(b"", partition_key=key) for key in KEYS])
        assert used.isdisjoint(numbers)
        used.update(numbers)
        assert len(list(drain(broker))) == len(KEYS)
        broker.close()
        broker = connect()


def test_a_waiting_receiver_hears_of_every_partition(broker: Broker) -> None:
    for key in KEYS:
        receiver = broker.receiver("orders")
        found: list[ReceivedMessage] = []
        thread = threading.Thread(target=lambda: found.extend(receiver.receive(1, max_wait=120)))  # noqa: B023
        thread.start()
        broker.sender("orders").send(Message(key.encode(), partition_key=key))
        thread.join(120)
        assert [message.body for message in found] == [key.encode()]
        receiver.complete(found)


def test_what_others_sent_is_found_in_every_partition(broker: Broker, connect: Connect) -> None:
    other = connect()
    for turn in range(3):
        send_keyed(other, rounds=1)
        assert len(list(drain(broker))) == len(KEYS), turn


def test_no_partition_waits_for_another(broker: Broker, clock: ManualClock) -> None:
    """One receiver, slower than the senders, is handed out nothing much younger than what waits."""
    sender, receiver = broker.sender("orders"), broker.receiver("orders")
    worst = 0.0
    for _ in range(40):
        sender.send([Message(b"", partition_key=key) for key in KEYS])
        clock.advance(0.1)
        for _ in range(3):
            found = receiver.receive(5)
            receiver.complete(found)
            oldest = min(message.enqueued_time for message in broker.peek("orders", max_messages=1_000))
            worst = max(worst, *((message.enqueued_time - oldest).total_seconds() for message in found))
    assert worst <= 1.0


@pytest.mark.parametrize("hosts", [2, 5])
@pytest.mark.parametrize("served", [1.0, 0.8], ids=["equal-load", "overload"])
def test_hosts_leave_no_partition_behind(
    broker: Broker, connect: Connect, clock: ManualClock, hosts: int, served: float
) -> None:
    """As much comes to each partition; hosts take as much, or less. All take from all, none is behind."""
    brokers = [broker, *[connect() for _ in range(hosts - 1)]]
    senders = [each.sender("orders") for each in brokers]
    receivers = [each.receiver("orders") for each in brokers]
    by_partition = {partition_of_key(f"k{n}", PARTITIONS): f"k{n}" for n in range(200)}
    waiting: dict[int, int] = {}
    worst, credit = 0, 0.0
    for tick in range(60):
        for partition, key in by_partition.items():
            (number,) = senders[(tick + partition) % hosts].send([Message(b"", partition_key=key)])
            waiting[number] = clock.now()
        clock.advance(0.05)
        credit += served * PARTITIONS
        while credit >= 1:
            receiver = receivers[int(credit) % hosts]
            found = receiver.receive(2)
            receiver.complete(found)
            credit -= len(found) or 1
            for message in found:
                handed_out = waiting.pop(message.sequence_number)
                oldest = min(waiting.values(), default=handed_out)
                worst = max(worst, handed_out - oldest)
    assert worst <= 1_000_000
    assert len(waiting) == broker.queue("orders").counts.active


def test_nobody_is_idle_while_a_message_waits_anywhere(broker: Broker, connect: Connect) -> None:
    brokers = [broker, *[connect() for _ in range(3)]]
    receivers = [each.receiver("orders") for each in brokers]
    by_partition = {partition_of_key(f"k{n}", PARTITIONS): f"k{n}" for n in range(200)}
    for turn, key in enumerate(by_partition.values()):
        for receiver in receivers:
            # Each has just seen that nothing waits, and hears of the next message from nobody.
            assert receiver.receive(1) == []
        brokers[turn % 4].sender("orders").send(Message(b"", partition_key=key))
        taker = receivers[(turn + 1) % 4]
        taker.complete(taker.receive(1))
    assert broker.queue("orders").counts.total == 0


def test_a_claim_takes_from_every_partition(broker: Broker) -> None:
    send_keyed(broker)
    consumer = ClaimConsumer(broker._store, "orders", "job")
    consumer.attach()
    seen: list[int] = []
    number = 0
    while consumer.take(number, max_rows=25, shards=3) is not None:
        number += 1
        for _, shard in consumer.shards(number - 1, number):
            seen += broker._store.read(lambda tx, s=shard: tx.claims.shard_keys(s, 1_000))  # type: ignore[misc]
        assert consumer.settle_whole(number, {}) is not None
    assert number <= 4
    assert len(seen) == len(set(seen)) == 3 * len(KEYS)
    assert broker.queue("orders").counts.total == 0


def test_numbers_are_not_given_again_once_a_claim_has_emptied_partitions(
    broker: Broker, connect: Connect
) -> None:
    send_keyed(broker, rounds=1)
    seen = {message.sequence_number for message in broker.peek("orders", 100)}
    consumer = ClaimConsumer(broker._store, "orders", "job")
    consumer.attach()
    assert consumer.take(0) == 1
    assert consumer.settle_whole(1, {}) is not None
    # One that remembers nothing of the messages that are gone.
    other = connect()
    send_keyed(other, rounds=1)
    assert seen.isdisjoint(message.sequence_number for message in other.peek("orders", 100))


def test_dialogs_have_no_partitions() -> None:
    with pytest.raises(InvalidOption, match="its order is that of its conversations"):
        QueueOptions(dialogs=True, requires_session=True, partitions=2)


@pytest.mark.parametrize("number", [0, 65, "4", 1.5, True])
def test_the_number_of_partitions_is_checked(number: object) -> None:
    with pytest.raises(InvalidOption, match="partitions"):
        QueueOptions(partitions=number)  # type: ignore[arg-type]


def test_each_process_has_a_home_of_its_own(connect: Connect) -> None:
    first = connect()
    first.create_queue("orders", QueueOptions(partitions=PARTITIONS))

    def home(broker: Broker) -> int:
        (number,) = broker.sender("orders").send([Message(b"")])
        return number >> 36

    brokers = [first] + [connect() for _ in range(PARTITIONS - 1)]
    assert sorted(map(home, brokers)) == list(range(PARTITIONS))
    left = home(brokers[3])
    brokers[3].close()
    # A server notices a little later that a process has gone.
    assert any(home(connect()) == left for _ in range(PARTITIONS))


def test_status_tells_of_all_partitions(broker: Broker, clock: ManualClock) -> None:
    # The oldest message is not in the first partition.
    last = next(key for key in KEYS if partition_of_key(key, PARTITIONS) == PARTITIONS - 1)
    sent = to_datetime(clock.now())
    broker.sender("orders").send(Message(b"old", partition_key=last))
    clock.advance(10)
    send_keyed(broker)
    (glance,) = (queue for queue in broker.status().queues if queue.path == "orders")
    assert (glance.waiting, glance.exact, glance.oldest) == (1 + 3 * len(KEYS), True, sent)
    send_keyed(broker, rounds=100)
    (glance,) = (queue for queue in broker.status().queues if queue.path == "orders")
    assert (glance.waiting, glance.exact, glance.oldest) == (1 + 103 * len(KEYS), False, sent)
