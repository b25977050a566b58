"""Repairs of partitioned queues: what they send, take back and leave, in the order of each key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from lazaretto import Broker, DeadLetterFilter, Message, QueueOptions, RepairCounts, RepairPhase
from lazaretto.broker.broker import store_of
from lazaretto.engine.repairs.advance import Advance, TakeRepair

from .actions import numbers
from .test_repairs import picture, plan, work

PARTITIONS = 8
KEYS = [f"key-{number}" for number in range(20)]
ROUNDS = 5
LETTERS = len(KEYS) * ROUNDS


@pytest.fixture(params=["key", "session"])
def path(request: pytest.FixtureRequest, broker: Broker) -> str:
    """A partitioned queue whose messages are dead letters: of five rounds, in each one of every key."""
    sessions = request.param == "session"
    broker.create_queue("p", QueueOptions(partitions=PARTITIONS, requires_session=sessions))
    sender = broker.sender("p")
    for turn in range(ROUNDS):
        sender.send([
            Message(
                b'{"turn": %d}' % turn,
                session_id=key if sessions else None,
                partition_key=None if sessions else key,
            )
            for key in KEYS
        ])  # fmt: skip
    for session in KEYS if sessions else [None]:
        with broker.receiver("p", session=session) as receiver:
            while messages := receiver.receive(LETTERS):
                receiver.dead_letter(messages, reason="why")
    assert len({number >> 36 for number in numbers(broker.dead_letters("p"))}) > PARTITIONS // 2
    return "p"


def by_key(messages: Iterable[Any]) -> dict[str, list[tuple[int, bytes]]]:
    """Return the partitions and bodies of the messages of each key or session, in their order."""
    found = defaultdict(list)
    for message in messages:
        found[message.session_id or message.partition_key].append(
            (message.sequence_number >> 36, message.body)
        )
    return found


def complete(broker: Broker, path: str, number: int = LETTERS) -> list[Any]:
    """Complete messages of all sessions there are, or of the queue; return them."""
    done: list[Any] = []
    for session in broker.sessions(path) if broker.queue(path).options.requires_session else [None]:
        with broker.receiver(path, session=session) as receiver:
            while len(done) < number and (messages := receiver.receive(number - len(done))):
                receiver.complete(messages)
                done += messages
    return done


def test_order_within_each_key(broker: Broker, path: str) -> None:
    places = by_key(letter.message for letter in broker.dead_letters(path) if letter.message is not None)
    repair = plan(broker, path=path)
    assert repair.status().letters == repair.preview(letters=None).looked_at == LETTERS
    repair.apply()
    assert work(repair) is RepairPhase.DONE
    assert by_key(complete(broker, path)) == places
    assert {len(turns) for turns in places.values()} == {ROUNDS}
    assert repair.status().counts == RepairCounts(left=0, processed=LETTERS)


def test_undo(broker: Broker, path: str) -> None:
    before = picture(broker)
    for edit in (None, '{"fixed": true}'):
        repair = plan(broker, path=path, edit=edit)
        repair.apply()
        assert work(repair) is RepairPhase.DONE
        assert numbers(broker.dead_letters(path)) == []
        repair.undo()
        assert work(repair) is RepairPhase.UNDONE
        assert picture(broker) == before


def test_a_canary_goes_first(broker: Broker, path: str) -> None:
    repair = plan(broker, path=path, canary=10)
    size = repair.status().canary
    assert size == 10
    repair.canary()
    work(repair)
    tried = complete(broker, path)
    assert len(tried) == size
    assert work(repair) is RepairPhase.PASSED
    repair.apply()
    assert work(repair) is RepairPhase.DONE
    rest = complete(broker, path)
    if broker.queue(path).options.requires_session:
        # Whole sessions go first.
        assert not set(by_key(tried)) & set(by_key(rest))
    for turns in by_key(rest).values():
        assert turns == sorted(turns)
    assert repair.status().counts == RepairCounts(left=0, processed=LETTERS)


def test_pause_and_resume(broker: Broker, path: str) -> None:
    places = by_key(letter.message for letter in broker.dead_letters(path) if letter.message is not None)
    repair = plan(broker, path=path)
    repair.apply()
    taken = store_of(broker).run(TakeRepair())
    assert taken is not None
    store_of(broker).run(Advance(*taken, 33))
    repair.pause()
    assert work(repair) is RepairPhase.PAUSED
    # All letters of a session go in one commit.
    assert repair.status().counts.sent == 33 + -33 % ROUNDS * broker.queue(path).options.requires_session
    repair.resume()
    assert work(repair) is RepairPhase.DONE
    assert by_key(complete(broker, path)) == places


def test_what_was_handed_out_stays(broker: Broker, path: str) -> None:
    repair = plan(broker, path=path)
    repair.apply()
    work(repair)
    done = complete(broker, path, 7)
    repair.undo()
    assert work(repair) is RepairPhase.UNDONE
    counts = repair.status().counts
    assert (counts.processed, counts.undone + counts.waiting) == (7, LETTERS - 7)
    # A session of which one was handed out is taken back behind it.
    assert counts.undone == LETTERS - 7
    left = by_key(letter.message for letter in broker.dead_letters(path) if letter.message is not None)
    assert sum(map(len, left.values())) == LETTERS - 7
    assert {m.sequence_number for m in done}.isdisjoint(numbers(broker.peek(path, LETTERS)))


def test_purged_letters_are_skipped_and_restored(broker: Broker, path: str) -> None:
    before = picture(broker)
    repair = plan(broker, path=path)
    some = numbers(broker.dead_letters(path))[::3]
    assert broker.purge(path, some) == some
    assert broker.purged(path) == some
    repair.apply()
    work(repair)
    assert repair.status().counts == RepairCounts(left=0, waiting=LETTERS - len(some), skipped=len(some))
    assert [letter.why for letter in repair.letters(skipped=True)] == ["already purged"] * len(some)
    repair.undo()
    work(repair)
    assert broker.restore(path).restored == some
    assert picture(broker) == before


def test_a_filter_and_a_limit(broker: Broker, path: str) -> None:
    every = numbers(broker.dead_letters(path))
    repair = broker.plan_repair(
        path, DeadLetterFilter(reason="why"), limit=30, canary=0, in_flight=None, name="some"
    )
    assert sorted(letter.sequence_number for letter in repair.left()) == sorted(every)[:30]
    repair.apply()
    work(repair)
    assert sorted(numbers(broker.dead_letters(path))) == sorted(every)[30:]


def test_to_and_from_another_queue(broker: Broker, path: str) -> None:
    places = by_key(letter.message for letter in broker.dead_letters(path) if letter.message is not None)
    sessions = broker.queue(path).options.requires_session
    broker.create_queue("other", QueueOptions(partitions=3, requires_session=sessions))
    before = picture(broker)
    repair = plan(broker, path=path, to="other")
    repair.apply()
    assert work(repair) is RepairPhase.DONE
    found = by_key(broker.peek("other", LETTERS))
    bodies = {key: [body for _, body in turns] for key, turns in found.items()}
    assert bodies == {key: [body for _, body in turns] for key, turns in places.items()}
    assert all(len({partition for partition, _ in turns}) == 1 for turns in found.values())
    repair.undo()
    assert work(repair) is RepairPhase.UNDONE
    assert picture(broker) == before
