"""Creating what exists already: the same is returned, and another one is left as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import lazaretto
import lazaretto.aio
from lazaretto import (
    Broker,
    CorrelationFilter,
    EntityExists,
    PoisonPolicy,
    QueueOptions,
    Rule,
    SqlAction,
    SqlFilter,
    TopicOptions,
)

OPTIONS = QueueOptions(lock_duration=30, policy=PoisonPolicy(receive_retry_count=2))
RULE = Rule("large", SqlFilter("n > 5"))


@pytest.fixture
def entities(broker: Broker) -> Broker:
    broker.create_queue("orders", OPTIONS)
    broker.create_topic("news", TopicOptions(default_time_to_live=60))
    broker.create_subscription("news", "audit", OPTIONS)
    broker.create_subscription("news", "rules", rules=[RULE, Rule("all")])
    return broker


#: Each creates what there is.
SAME: list[Callable[[Broker], Any]] = [
    lambda b: b.create_queue("Orders", OPTIONS, exist_ok=True),
    lambda b: b.create_queues(["orders"], OPTIONS, exist_ok=True),
    lambda b: b.create_topic("NEWS", TopicOptions(default_time_to_live=60), exist_ok=True),
    lambda b: b.create_subscription("news", "audit", OPTIONS, exist_ok=True),
    lambda b: b.create_subscription("news", "rules", exist_ok=True),
    lambda b: b.create_subscription("news", "rules", rules=[Rule("all"), RULE], exist_ok=True),
    lambda b: b.add_rule("news", "rules", RULE, exist_ok=True),
]
OTHER: list[tuple[Callable[[Broker], Any], str]] = [
    (
        lambda b: b.create_queue("orders", QueueOptions(lock_duration=5), exist_ok=True),
        r"queue 'orders' already exists with other options, and is left as it is: lock_duration is 30\.0, "
        r"expected 5\.0; policy\.receive_retry_count is 2, expected 9\. ",
    ),
    (
        lambda b: b.create_queue(
            "orders",
            QueueOptions(lock_duration=30, policy=PoisonPolicy(receive_retry_count=9)),
            exist_ok=True,
        ),
        r"left as it is: policy\.receive_retry_count is 2, expected 9\. ",
    ),
    (lambda b: b.create_queues(["new", "orders"], exist_ok=True), "queue 'orders' already exists with"),
    (lambda b: b.create_queue("news", exist_ok=True), "a topic already exists at 'news', and no queue"),
    (lambda b: b.create_topic("orders", exist_ok=True), "a queue already exists at 'orders', and no topic"),
    (lambda b: b.create_topic("news", exist_ok=True), r"default_time_to_live is 60\.0, expected None"),
    (lambda b: b.create_subscription("news", "audit", exist_ok=True), r"lock_duration is 30\.0"),
    (
        lambda b: b.create_subscription("news", "audit", OPTIONS, [RULE], exist_ok=True),
        "it has no rule 'large'",
    ),
    (
        lambda b: b.create_subscription("news", "rules", rules=[Rule("all")], exist_ok=True),
        "it has the rule 'large' too",
    ),
    (
        lambda b: b.add_rule("news", "rules", Rule("large", SqlFilter("n > 6")), exist_ok=True),
        "rule 'large': filter.expression is 'n > 5', expected 'n > 6'",
    ),
    (
        lambda b: b.add_rule(
            "news", "rules", Rule("large", RULE.filter, SqlAction("SET x = 1")), exist_ok=True
        ),
        "rule 'large': action is None, expected",
    ),
    (
        lambda b: b.add_rule("news", "rules", Rule("large", CorrelationFilter(subject="x")), exist_ok=True),
        "rule 'large': filter is SqlFilter",
    ),
]


def standing(broker: Broker) -> list[object]:
    return [
        [(queue.path, queue.options) for queue in broker.queues()],
        [(topic.path, topic.options) for topic in broker.topics()],
        [(one.name, one.queue.options, one.rules) for one in broker.subscriptions("news")],
        len(broker.audit()),
        broker.last_event(),
    ]


@pytest.mark.parametrize("create", SAME)
def test_the_same_is_returned_and_nothing_changes(entities: Broker, create: Callable[[Broker], Any]) -> None:
    before = standing(entities)
    found = create(entities)
    first = found[0] if isinstance(found, list) else found
    described = [
        entities.queue("orders"),
        entities.topic("news"),
        *entities.subscriptions("news"),
    ]
    assert first in described
    assert standing(entities) == before


@pytest.mark.parametrize(("create", "told"), OTHER)
def test_another_is_left_as_it_is(entities: Broker, create: Callable[[Broker], Any], told: str) -> None:
    before = standing(entities)
    with pytest.raises(EntityExists, match=told):
        create(entities)
    assert standing(entities) == before


def test_without_it_the_error_says_that_it_is_there(entities: Broker) -> None:
    for create in (
        lambda: entities.create_queue("orders", OPTIONS),
        lambda: entities.create_topic("news"),
        lambda: entities.create_subscription("news", "audit"),
        lambda: entities.add_rule("news", "rules", RULE),
    ):
        with pytest.raises(EntityExists, match="with exist_ok=True it is taken as it is"):
            create()


def test_of_several_those_are_made_that_are_missing(entities: Broker) -> None:
    entities.sender("orders").send(lazaretto.Message(b"x"))
    found = entities.create_queues(["a", "orders", "B"], OPTIONS, exist_ok=True, actor="ann")
    assert [(queue.path, queue.counts.active) for queue in found] == [("a", 0), ("orders", 1), ("B", 0)]
    made = {entry.queue for entry in entities.audit(actor="ann") if entry.action == "create"}
    assert made == {"a", "B"}


def test_it_is_created_where_it_is_not(broker: Broker) -> None:
    assert broker.create_queue("q", exist_ok=True).path == "q"
    broker.create_topic("t", exist_ok=True)
    assert broker.create_subscription("t", "s", exist_ok=True).rules == (Rule(),)
    assert len(broker.add_rule("t", "s", RULE, exist_ok=True).rules) == 2


def test_aio_has_it(place: str) -> None:
    async def create() -> str:
        async with await lazaretto.aio.connect(place) as broker:
            for _ in range(2):
                found = await broker.create_queue("q", OPTIONS, exist_ok=True)
            return found.path

    assert asyncio.run(create()) == "q"
