"""Nothing of a dead letter is left once it is deleted for good."""

from __future__ import annotations

from lazaretto import Broker, DeadLetterFilter

from .actions import create, fail, send, stored

#: What is kept of a letter beside its message.
OF_A_LETTER = ("dead_letters", "attempts", "bodies", "messages")


def counts(broker: Broker) -> dict[str, int]:
    return {name: stored(broker, f"SELECT count(*) FROM lazaretto_{name}")[0][0] for name in OF_A_LETTER}


def test_purged_letters_that_are_deleted(broker: Broker) -> None:
    create(broker, receive_retry_count=1)
    before = counts(broker)
    for number in range(3):
        send(broker, b"%d" % number + b"x" * 5_000)
        for _ in range(2):
            fail(broker, error=ValueError(f"number {number}"))
    during = counts(broker)
    assert (during["dead_letters"], during["messages"], during["bodies"]) == (3, 3, 3)
    assert during["attempts"] >= 3
    (group,) = broker.triage("q").causes
    assert group.letters == 3
    broker.purge("q", DeadLetterFilter(), everything=True)
    assert counts(broker)["attempts"] == during["attempts"]
    assert broker.delete_purged("q", 3) == 3
    # That somebody has deleted them stays known for a while; nothing of what they were does.
    assert {**counts(broker), "dead_letters": 0} == before
    assert broker.purged("q") == []
    assert broker.triage("q").causes == ()
    assert broker.triage("q", over=True).letters == 0
    assert broker.check() == []
