"""What an error suggests for a path where nothing is, of a few entities that stand near it."""

from __future__ import annotations

import pytest

from lazaretto import Broker, EntityNotFound, Message, QueueOptions

#: How many names are looked at, at most, however many there are.
LOOKED_AT = 300


def error_of(broker: Broker, path: str) -> EntityNotFound:
    with pytest.raises(EntityNotFound) as caught:
        broker.queue(path)
    return caught.value


def test_all_of_a_few_are_named(broker: Broker) -> None:
    broker.create_queues(["apples", "pears"])
    broker.create_topic("news")
    assert "did you mean 'apples'?" in str(error_of(broker, "aples"))
    told = str(error_of(broker, "zzzzzzzz"))
    assert told.endswith("; there are: $system/deadletter, apples, news, pears")
    with pytest.raises(EntityNotFound, match="no topic exists at 'newss'; did you mean 'news'"):
        broker.topic("newss")
    with pytest.raises(
        EntityNotFound, match=r"no topic exists at 'pears' \(it is a queue\); there are: news$"
    ):
        broker.topic("pears")
    with pytest.raises(EntityNotFound, match="did you mean 'pears'"):
        broker.create_queue("forwards", QueueOptions(forward_to="pear"))


def test_a_slip_among_many_is_found_near_it(broker: Broker) -> None:
    broker.create_queues([f"shop/orders-{n:04}" for n in range(1000)])
    broker.create_queues([f"work/orders-{n:04}" for n in range(1000)])
    for slip, meant in {
        "shop/orders-05OO": "shop/orders-0",
        "shop/orders0500": "shop/orders-0",
        "hsop/orders-0500": "shop/orders-0500",
        "xshop/orders-0500": "shop/orders-0500",
        "work/order-0999": "work/orders-0",
    }.items():
        error = error_of(broker, slip)
        assert f"did you mean '{meant}" in str(error)
        assert len(error.others) <= LOOKED_AT
    error = error_of(broker, "zzz")
    assert "; there are, among others: " in str(error)
    assert len(error.others) <= LOOKED_AT
    # Nothing near it is a topic, which does not say that there is none.
    with pytest.raises(EntityNotFound, match=r"no topic exists at 'shop/orders-x'$"):
        broker.topic("shop/orders-x")
    with pytest.raises(EntityNotFound, match="did you mean"):
        broker.sender("shop/orders-00000").send(Message(b"x"))
