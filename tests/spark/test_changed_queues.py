"""What a query works on changes under it: its queue goes or is made anew, its policy, its lease runs out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lazaretto import (
    Broker,
    ClaimFenced,
    EntityNotFound,
    InvalidOption,
    Message,
    PoisonPolicy,
    PoisonSession,
    QueueOptions,
)
from lazaretto.spark import process

from .acts import act, act_second
from .driver import Driver, seen

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)
both_stores = pytest.mark.stores("sqlite", "postgres")
#: `act_second` fails on each third number, and sends one message for each other.
COUNT, BAD = 12, 4


def send(broker: Broker, **fields: Any) -> list[int]:
    return broker.sender("work").send([Message(b"%d" % n, **fields) for n in range(COUNT)])


@both_stores
@pytest.mark.parametrize("anew", [False, True], ids=["deleted", "made anew"])
def test_a_queue_that_goes_while_a_claim_is_open(
    broker: Broker, url: str, tmp_path: Path, anew: bool
) -> None:
    send(broker)
    driver = Driver(broker, url, tmp_path)
    claim = driver.take()
    assert claim is not None
    told = driver.attempt(claim, act_second)
    broker.delete_queue("work")
    error: type[Exception] = EntityNotFound
    if anew:
        broker.create_queue("work")
        send(broker)
        error = ClaimFenced
    for step in (
        lambda: driver.settle(told),
        lambda: driver.attempt(claim, act_second),
        driver.consumer.renew,
        driver.take,
    ):
        with pytest.raises(error, match=r"no queue exists at 'work'|'work' is not there: the queue was del"):
            step()
    # What the old queue's messages have come to is nowhere.
    assert not broker.peek("out", 1)
    assert not seen(tmp_path)
    if anew:
        assert broker.queue("work").counts.active == COUNT
        with pytest.raises(InvalidOption, match="which was created again: each consumer needs a folder"):
            Driver(broker, url, tmp_path)
        again = Driver(broker, url, tmp_path / "new")
        claim = again.take()
        assert claim == 1
        again.settle(again.attempt(claim, act_second))
        assert len(seen(tmp_path / "new")) == COUNT - BAD


def test_a_query_on_a_queue_that_was_made_anew(spark: Any, broker: Broker, url: str, tmp_path: Path) -> None:
    send(broker)

    def start(folder: str, checkpoint: str) -> Any:
        return process(
            spark, act, store=url, queue="work", checkpoint=str(tmp_path / checkpoint),
            results=str(tmp_path / folder), schema="n bigint, text string",
            trigger={"processingTime": "200 milliseconds"},
        )  # fmt: skip

    query = start("results", "checkpoint")
    query.processAllAvailable()
    broker.delete_queue("work")
    broker.create_queue("work")
    send(broker)
    with pytest.raises(Exception, match=r"consumer 'spark' of 'work' is not there: the queue was deleted"):
        query.awaitTermination(120)
    with pytest.raises(InvalidOption, match="created again"):
        start("results", "checkpoint")
    with pytest.raises(Exception, match="use another checkpoint folder"):
        start("new", "checkpoint").awaitTermination(120)
    assert broker.queue("work").counts.active == COUNT
    query = start("new", "new-checkpoint")
    query.processAllAvailable()
    query.stop()
    assert len(seen(tmp_path / "new")) == COUNT


@both_stores
def test_the_policy_that_counts_is_that_of_the_moment_of_settling(
    broker: Broker, url: str, tmp_path: Path
) -> None:
    send(broker)
    driver = Driver(broker, url, tmp_path)
    claim = driver.take()
    assert claim is not None
    told = driver.attempt(claim, act_second)
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=1))
    driver.settle(told)
    counts = broker.queue("work").counts
    assert (counts.active, counts.dead_letter) == (BAD, 0)
    claim = driver.take()
    assert claim is not None
    told = driver.attempt(claim, act_second)
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=5))
    driver.settle(told)
    assert broker.queue("work").counts.active == BAD
    claim = driver.take()
    assert claim is not None
    told = driver.attempt(claim, act_second)
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=0))
    driver.settle(told)
    counts = broker.queue("work").counts
    assert (counts.total, counts.dead_letter) == (BAD, BAD)
    assert len(seen(tmp_path)) == COUNT - BAD


@both_stores
def test_a_session_policy_that_changes_while_a_claim_is_open(
    broker: Broker, url: str, tmp_path: Path
) -> None:
    broker.delete_queue("work")
    policy = PoisonPolicy(receive_retry_count=0)
    broker.create_queue("work", QueueOptions(requires_session=True, policy=policy))
    send(broker, session_id="s")
    driver = Driver(broker, url, tmp_path)
    claim = driver.take()
    assert claim is not None
    told = driver.attempt(claim, act_second)
    broker.update_queue("work", on_poison_session=PoisonSession.BLOCK)
    driver.settle(told)
    # The third is bad: the session is held behind it.
    assert [number for number, _ in seen(tmp_path)] == [1, 2]
    assert [held.session_id for held in broker.held_sessions("work")] == ["s"]
    assert driver.take() is None
    assert broker.queue("work").counts.total == COUNT - 2


@both_stores
@pytest.mark.parametrize("done", [False, True], ids=["at work", "done"])
def test_a_driver_that_sleeps_longer_than_its_lease(
    broker: Broker, url: str, tmp_path: Path, done: bool
) -> None:
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=5))
    numbers = send(broker)
    driver = Driver(broker, url, tmp_path, lease=4)
    claim = driver.take()
    assert claim is not None
    told = driver.attempt(claim, act_second) if done else []
    # Whoever receives takes over what has run out; an attempt counts where it was worked on.
    receiver = broker.receiver("work")
    taken: list[int] = []
    while len(taken) < COUNT // 2:
        found = receiver.receive(COUNT // 2 - len(taken), max_wait=60)
        assert {message.delivery_count for message in found} <= {0, int(done)}
        receiver.complete(found)
        taken += [message.sequence_number for message in found]
    told = told or driver.attempt(claim, act_second)
    driver.settle(told)
    assert not seen(tmp_path)
    assert not broker.peek("out", 1)
    while (following := driver.take()) is not None:
        driver.settle(driver.attempt(following, act))
    assert [number for number, _ in seen(tmp_path)] == sorted(set(numbers) - set(taken))
    assert broker.queue("work").counts.total == 0
