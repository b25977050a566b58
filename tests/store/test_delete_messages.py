"""Messages that are deleted without being received."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lazaretto import Broker, ManualClock, Message, NotAllowed

from .actions import create, fail, send, take
from .conftest import Connect


def left(broker: Broker, path: str = "q") -> list[bytes]:
    return [message.body for message in broker.peek(path, 100)]


def moment(clock: ManualClock) -> datetime:
    return datetime.fromtimestamp(clock.now() / 1e6, UTC)


def test_the_first_go_first(broker: Broker) -> None:
    create(broker)
    *_, last = send(broker, b"a", b"b", b"c")
    assert broker.delete_messages("q", 2) == 2
    assert left(broker) == [b"c"]
    assert broker.delete_messages("q", 2) == 1
    assert broker.delete_messages("q", 2) == 0
    # Numbers go on where they were.
    assert send(broker, b"d") == last + 1
    assert broker.queue("q").counts.total == 1


def test_what_somebody_holds_or_wants_later_stays(broker: Broker, clock: ManualClock) -> None:
    create(broker, lock_duration=30)
    send(broker, b"locked")
    take(broker)
    send(broker, b"deferred")
    receiver = broker.receiver("q")
    receiver.defer(receiver.receive())
    with broker.sender("q") as sender:
        sender.schedule(Message(b"later"), moment(clock) + timedelta(hours=1))
    send(broker, b"failed", b"new")
    fail(broker)
    assert broker.delete_messages("q", 100) == 2
    assert left(broker) == [b"locked", b"deferred", b"later"]
    clock.advance(31)
    assert broker.delete_messages("q", 100) == 1


def test_a_time_is_a_limit(broker: Broker, clock: ManualClock) -> None:
    create(broker)
    send(broker, b"old", b"old")
    clock.advance(10)
    until = moment(clock)
    send(broker, b"new")
    assert broker.delete_messages("q", 100, enqueued_before=until) == 2
    assert left(broker) == [b"new"]


def test_one_session(broker: Broker) -> None:
    create(broker, "s", requires_session=True)
    for session in "abab":
        send(broker, session.encode(), path="s", session_id=session)
    assert broker.delete_messages("s", 1, session_id="b") == 1
    assert broker.delete_messages("s", 5, session_id="b") == 1
    assert left(broker, "s") == [b"a", b"a"]
    assert broker.delete_messages("s", 5) == 2
    create(broker)
    with pytest.raises(NotAllowed, match="has no sessions"):
        broker.delete_messages("q", 1, session_id="a")


def test_dead_letters(broker: Broker) -> None:
    create(broker, receive_retry_count=0)
    send(broker, b"bad")
    fail(broker)
    (letter,) = broker.dead_letters("q")
    assert broker.delete_messages("q", 5, subqueue="dead_letter") == 1
    assert list(broker.dead_letters("q")) == []
    assert broker.message_history("q", letter.sequence_number).generations[0].state == "dropped"


def test_where_nothing_can_be_received(broker: Broker) -> None:
    create(broker, "to")
    create(broker, "from", forward_to="to")
    for path, subqueue in (("from", None), ("to", "retry")):
        with pytest.raises(NotAllowed):
            broker.delete_messages(path, 1, subqueue=subqueue)


def test_who_did_it_is_kept(connect: Connect, broker: Broker) -> None:
    create(broker)
    send(broker, b"a", b"b")
    connect().delete_messages("q", 5, actor="ann")
    (entry,) = [one for one in broker.audit() if one.action == "delete_messages"]
    assert (entry.actor, entry.queue, entry.detail["count"]) == ("ann", "q", 2)
