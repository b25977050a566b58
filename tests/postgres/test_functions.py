"""Functions of the server do plain verbs; what they cannot do, or may not, is done in another way."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from servers import Server

import lazaretto
from lazaretto import (
    Broker,
    ManualClock,
    Message,
    MessageLockLost,
    MessageTooLarge,
    QueueDisabled,
    QueueOptions,
    QueueStatus,
)
from lazaretto.store.postgres import listener
from lazaretto.store.postgres.listener import LISTENING, channel

_NAMES = ("send", "send_several", "take", "take_several", "complete_one", "complete")


def schema_in(url: str) -> str:
    name = re.search(r"schema=(\w+)", url)
    assert name is not None
    return name[1]


@contextmanager
def calls(postgres: Server, url: str) -> Iterator[dict[str, int]]:
    """Give, behind the block, how often each function was called by brokers at `counted(url)` within it."""
    counts: dict[str, int] = {}
    yield counts
    with psycopg.connect(postgres.url) as connection:
        rows = connection.execute(
            "SELECT funcname::text, calls FROM pg_stat_user_functions WHERE schemaname = %s",
            (schema_in(url),),
        )
        for name, amount in rows:
            counts[name.removeprefix("lazaretto_").rstrip("12").removesuffix("_v")] = amount


def counted(url: str) -> str:
    """Return an address whose functions the server counts; it tells once a connection has ended."""
    return f"{url}&options=-ctrack_functions%3Dpl"


def cycle(broker: Broker, amount: int = 1) -> None:
    broker.sender("work").send([Message(b"x")] * amount)
    receiver = broker.receiver("work")
    for _ in range(amount):
        (message,) = receiver.receive()
        receiver.complete(message)


def test_what_most_do_is_a_call_for_each_verb(postgres: Server, url: str) -> None:
    with calls(postgres, url) as counts, lazaretto.connect(counted(url)) as broker:
        broker.create_queue("work")
        for _ in range(10):
            cycle(broker)
            cycle(broker, 2)
    # The first one of each looks at more, and a few messages are kept as examples.
    assert counts["send"] >= 5
    assert counts["send_several"] >= 5
    assert counts["take"] >= 20
    assert counts["complete_one"] >= 20


def test_messages_with_all_that_they_can_have(url: str, clock: ManualClock) -> None:
    with lazaretto.connect(url, clock=clock) as broker:
        broker.create_queue("work", QueueOptions(default_time_to_live=60))
        cycle(broker)
        sender, receiver = broker.sender("work"), broker.receiver("work")
        large = Message(b"l" * 5_000, message_id="large", properties={"n": 1}, time_to_live=90)
        assert sender.send(large) == 2
        assert sender.send([Message(b"s" * 4_000), Message(b"t", time_to_live=1)]) == [3, 4]
        with pytest.raises(MessageTooLarge):
            sender.send(Message(b"h" * 300_000))
        (one,) = receiver.receive()
        assert (one.sequence_number, one.message_id, one.body, one.properties) == (
            2,
            "large",
            b"l" * 5_000,
            {"n": 1},
        )
        assert one.expires_at is not None
        receiver.complete(one)
        with pytest.raises(MessageLockLost):
            receiver.complete(one)
        clock.advance(2)
        (two,) = receiver.receive()
        assert two.sequence_number == 3
        receiver.complete(two)
        assert receiver.receive() == []
        clock.advance(100)
        assert broker.queue("work").counts.active == 0
        assert broker.check() == []


def test_a_number_is_never_given_twice(url: str) -> None:
    """Also if the message of the highest one became a dead letter, or is gone, and another process sends."""
    with lazaretto.connect(url) as one, lazaretto.connect(url) as other:
        one.create_queue("work")
        numbers = []
        for broker, another in ((one, other), (other, one)) * 4:
            numbers.append(broker.sender("work").send(Message(b"x")))
            receiver = another.receiver("work")
            (message,) = receiver.receive()
            if len(numbers) % 4 < 2:
                receiver.dead_letter(message, reason="bad")
            else:
                receiver.complete(message)
        assert numbers == [1, 2, 3, 4, 5, 6, 7, 8]
        assert one.check() == []


def test_what_another_process_sets_holds_at_once(url: str) -> None:
    with lazaretto.connect(url) as one, lazaretto.connect(url) as other:
        one.create_queue("work")
        for broker in (one, other, one):
            cycle(broker)
        other.sender("work").send(Message(b"waits"))
        other.set_status("work", QueueStatus.DISABLED)
        with pytest.raises(QueueDisabled):
            one.sender("work").send(Message(b"x"))
        with pytest.raises(QueueDisabled):
            one.receiver("work").receive()
        other.set_status("work", QueueStatus.ACTIVE)
        (message,) = one.receiver("work").receive()
        assert message.body == b"waits"


def test_what_comes_first_goes_first(url: str, clock: ManualClock) -> None:
    with lazaretto.connect(url, clock=clock) as one, lazaretto.connect(url, clock=clock) as other:
        one.create_queue("work", QueueOptions(lock_duration=30))
        for broker in (one, other):
            cycle(broker)
        one.sender("work").send([Message(b"1"), Message(b"2"), Message(b"3")])
        receiver, another = one.receiver("work"), other.receiver("work")
        (first,) = receiver.receive()
        (second,) = another.receive()
        receiver.release(first)
        (again,) = another.receive()
        assert (again.body, again.delivery_count) == (b"1", first.delivery_count)
        clock.advance(31)
        (expired,) = receiver.receive()
        assert expired.body == b"1"
        with pytest.raises(MessageLockLost):
            another.complete(second)


@pytest.mark.parametrize("lacks", ["right", "function", "new workers"])
def test_without_functions_all_goes_on(postgres: Server, url: str, lacks: str) -> None:
    role, schema = f"plain_{random.randrange(1 << 40):x}", schema_in(url)
    with lazaretto.connect(url) as broker:
        broker.create_queue("work")
        cycle(broker)
    with psycopg.connect(postgres.url, autocommit=True) as operator:
        operator.execute(
            f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role};"
            f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role};"
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}".encode()
        )
        if lacks == "right":
            operator.execute(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC".encode())
        elif lacks == "function":
            operator.execute(f"ALTER FUNCTION {schema}.lazaretto_take_v2 RENAME TO gone".encode())
        else:
            operator.execute(
                f"UPDATE {schema}.lazaretto_meta SET value = '23' WHERE name = 'oldest'".encode()
            )
        try:
            theirs = re.sub(r"//\w+@", f"//{role}@", url)
            with calls(postgres, url) as counts, lazaretto.connect(counted(url)) as broker:
                for _ in range(5):
                    cycle(broker)
            assert lacks == "right" or "take" not in counts
            with lazaretto.connect(theirs) as broker:
                for _ in range(5):
                    cycle(broker, 2)
                assert broker.queue("work").counts.active == 0
        finally:
            operator.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_a_sender_notifies_only_those_who_listen(postgres: Server, url: str) -> None:
    schema = schema_in(url)
    with lazaretto.connect(url) as broker, psycopg.connect(postgres.url, autocommit=True) as other:
        broker.create_queue("work")
        cycle(broker)
        other.execute(f"LISTEN {channel(schema)}".encode())

        def heard() -> int:
            broker.sender("work").send(Message(b"x"))
            broker.sender("work").send([Message(b"x"), Message(b"x")])
            # Behind a round trip, all that was notified before is there.
            other.execute("SELECT 1")
            return len(list(other.notifies(timeout=0)))

        assert heard() == 0
        number = zlib.crc32(schema.encode()) - (1 << 31)
        other.execute("SELECT pg_advisory_lock_shared(%s, %s::int)", (LISTENING, number))
        assert heard() == 2


@pytest.mark.parametrize("patience", [30_000, 1])
def test_who_comes_to_listen_waits_for_a_sender_that_did_not_notify(
    postgres: Server, url: str, monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    """Also again and again, if the sender's commit lasts longer than the lock is waited for."""
    monkeypatch.setattr(listener, "_LONGEST_COMMIT", patience)
    number = zlib.crc32(schema_in(url).encode()) - (1 << 31)
    with lazaretto.connect(url) as broker, psycopg.connect(postgres.url) as sender:
        broker.create_queue("work")
        cycle(broker)
        sender.execute("SELECT pg_advisory_xact_lock(%s, %s::int)", (LISTENING, number))
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(broker.receiver("work").receive, max_wait=30)
            while not sender.execute(
                "SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = %s AND NOT granted",
                (LISTENING,),
            ).rowcount:
                pass
            sender.rollback()
            with lazaretto.connect(url) as another:
                another.sender("work").send(Message(b"news"))
            assert [message.body for message in waiting.result()] == [b"news"]
