"""Sends to topics and to queues that forward go out whole, whatever others do meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

import lazaretto
from lazaretto import (
    Broker,
    CorrelationFilter,
    Message,
    QueueOptions,
    QueueStatus,
    Rule,
    SqlAction,
    SqlFilter,
)
from lazaretto.store.postgres import settings

from .witness import Witness, waits_under_a_lock, without_flush


def stock(broker: Broker) -> None:
    """Create a topic with subscriptions of all kinds, and queues that forward to one another."""
    broker.create_topic("news")
    broker.create_subscription("news", "all")
    broker.create_subscription("news", "too")
    broker.create_subscription("news", "parts", QueueOptions(partitions=4))
    broker.create_subscription("news", "talks", QueueOptions(requires_session=True))
    broker.create_subscription("news", "brief", QueueOptions(default_time_to_live=600))
    broker.create_subscription("news", "red", rules=[Rule("red", CorrelationFilter(subject="red"))])
    changed = Rule("big", SqlFilter("sys.size > 10"), SqlAction("SET sys.Label = 'changed'"))
    broker.create_subscription("news", "big", rules=[changed])
    broker.create_queue("last")
    broker.create_subscription("news", "onward", QueueOptions(forward_to="last"))
    broker.create_queue("middle", QueueOptions(forward_to="last"))
    broker.create_queue("first", QueueOptions(forward_to="middle"))


def numbers(broker: Broker, path: str) -> list[tuple[bytes, int | None]]:
    return [(message.body, message.enqueued_sequence_number) for message in broker.peek(path, 10_000)]


def test_no_send_that_goes_on_waits_under_a_lock(hosts: tuple[Broker, Broker], witness: Witness) -> None:
    one, other = hosts
    stock(one)
    news, first, via = one.sender("news"), one.sender("first"), one.sender("work", via="other")
    message = Message(b"x", subject="red", session_id="s")
    calls: dict[str, Callable[[], object]] = {
        "publish": lambda: news.send(message),
        "publish many": lambda: news.send([message] * 10),
        "publish large": lambda: news.send(Message(b"x" * 5_000, session_id="s")),
        "forward": lambda: first.send([message] * 3),
        "send via": lambda: via.send([message] * 3),
    }
    said = witness.writing(one)
    for turn in range(3):
        for name, call in calls.items():
            other.sender("news").send([Message(b"theirs", session_id="t")] * 3)
            other.sender("first").send(Message(b"theirs"))
            said.clear()
            call()
            told = without_flush(said)
            assert not turn or [who for who, _ in told] == ["client", "server"], (name, told)
            assert not turn or not waits_under_a_lock(said), name
    assert one.check() == []


def test_messages_go_where_and_as_they_did(hosts: tuple[Broker, Broker], url: str) -> None:
    one, other = hosts
    stock(one)
    news = one.sender("news")
    assert news.send([Message(b"1", session_id="s"), Message(b"2", session_id="s")]) == [1, 2]
    assert other.sender("news").send(Message(b"3" * 20, subject="red", session_id="t")) == 3
    assert news.send(Message(b"4" * 3_000, session_id="s", time_to_live=60)) == 4
    expected = [(b"1", 1), (b"2", 2), (b"3" * 20, 3), (b"4" * 3_000, 4)]
    for name in ("all", "too", "talks", "brief", "parts"):
        assert sorted(numbers(one, f"news/subscriptions/{name}")) == sorted(expected), name
    assert numbers(one, "last") == expected
    assert numbers(one, "news/subscriptions/red") == expected[2:3]
    assert numbers(one, "news/subscriptions/big") == expected[2:]
    assert [m.subject for m in one.peek("news/subscriptions/big", 5)] == ["changed", "changed"]
    assert [m.session_id for m in one.peek("news/subscriptions/talks", 5)] == ["s", "s", "t", "s"]
    lives = [m.expires_at is not None for m in one.peek("news/subscriptions/all", 5)]
    assert lives == [False, False, False, True]
    assert all(m.expires_at is not None for m in one.peek("news/subscriptions/brief", 5))
    # The numbers of a queue that keeps nothing go on, also once it keeps messages again.
    first = one.sender("first")
    assert first.send([Message(b"5"), Message(b"6")]) == [1, 2]
    assert other.sender("first").send(Message(b"7")) == 3
    one.update_queue("first", forward_to=None)
    assert first.send(Message(b"8")) == 4
    assert [m.sequence_number for m in one.peek("first", 5)] == [4]
    assert numbers(one, "last")[-3:] == [(b"5", 1), (b"6", 2), (b"7", 3)]
    assert one.check() == []


def test_what_cannot_be_delivered_is_set_aside_as_before(hosts: tuple[Broker, Broker]) -> None:
    one, _ = hosts
    stock(one)
    first, news = one.sender("first"), one.sender("news")
    first.send(Message(b"1"))
    one.set_status("last", QueueStatus.SEND_DISABLED)
    assert first.send(Message(b"2")) == 2
    # It has no session, and a subscription asks for one.
    assert news.send(Message(b"3")) == 1
    assert [m.body for m in one.peek("middle/$Transfer/$DeadLetterQueue", 5)] == [b"2"]
    assert [m.body for m in one.peek("news/subscriptions/onward/$Transfer/$DeadLetterQueue", 5)] == [b"3"]
    one.set_status("last", QueueStatus.ACTIVE)
    assert first.send(Message(b"4")) == 3
    assert numbers(one, "last") == [(b"1", 1), (b"4", 3)]
    assert one.check() == []


def test_changes_of_others_are_seen_by_the_next_send(hosts: tuple[Broker, Broker]) -> None:
    one, other = hosts
    one.create_topic("news")
    news = one.sender("news")
    # Nobody wants it.
    assert news.send(Message(b"1")) == 1
    other.create_subscription("news", "a")
    assert news.send(Message(b"2")) == 2
    other.create_subscription("news", "b")
    assert news.send(Message(b"3")) == 3
    other.add_rule("news", "a", Rule("red", CorrelationFilter(subject="red")))
    other.remove_rule("news", "a", "$Default")
    assert news.send(Message(b"4")) == 4
    other.delete_subscription("news", "b")
    assert news.send(Message(b"5", subject="red")) == 5
    assert numbers(one, "news/subscriptions/a") == [(b"2", 2), (b"3", 3), (b"5", 5)]
    other.delete_subscription("news", "a")
    other.create_subscription("news", "a")
    assert news.send(Message(b"6")) == 6
    assert numbers(one, "news/subscriptions/a") == [(b"6", 6)]
    assert one.check() == []


def test_a_topic_of_more_subscriptions_than_a_commit_looks_at(
    hosts: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = hosts
    monkeypatch.setattr(settings, "MOST_SUBSCRIPTIONS", 2)
    one.create_topic("news")
    for name in "abc":
        one.create_subscription("news", name)
        assert one.sender("news").send(Message(b"x")) is not None
    assert [len(numbers(one, f"news/subscriptions/{name}")) for name in "abc"] == [3, 2, 1]


@pytest.mark.parametrize("partitions", [1, 4])
def test_hosts_that_publish_at_once(url: str, partitions: int) -> None:
    """Each message is once in each subscription, in order of its numbers; two topics meet in a queue."""
    with lazaretto.connect(url) as owner:
        owner.create_queue("both")
        for topic in ("news", "more"):
            owner.create_topic(topic)
            owner.create_subscription(topic, "own", QueueOptions(partitions=partitions))
            owner.create_subscription(topic, "onward", QueueOptions(forward_to="both"))
        owner.create_queue("before", QueueOptions(forward_to="news"))
        sent: dict[bytes, int] = {}

        def work(host: int) -> None:
            chance = random.Random(host)
            with lazaretto.connect(url) as broker:
                senders = [(name, broker.sender(name)) for name in ("news", "more", "before", "both")]
                for turn in range(25):
                    name, sender = chance.choice(senders)
                    bodies = [f"{name} {host} {turn} {n}".encode() for n in range(chance.choice((1, 1, 3)))]
                    sent.update(zip(bodies, sender.send([Message(b) for b in bodies]), strict=True))

        threads = [threading.Thread(target=work, args=(host,)) for host in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(body for body, _ in numbers(owner, "both")) == sorted(sent)
        for topic, sources in (("news", (b"news", b"before")), ("more", (b"more",))):
            found = numbers(owner, f"{topic}/subscriptions/own")
            assert sorted(found) == sorted((b, n) for b, n in sent.items() if b.split()[0] in sources)
            own = [n or 0 for body, n in found if body.split()[0] == topic.encode()]
            assert partitions > 1 or own == sorted(own)
            assert len(set(own)) == len(own)
        assert owner.check() == []
