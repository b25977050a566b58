"""The causes of a queue's dead letters, and what their letters have that good messages lack."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from lazaretto import (
    Broker,
    CauseDifference,
    ComparedWith,
    DeadLetterFilter,
    InvalidOption,
    Message,
    PoisonPolicy,
    QueueOptions,
)

from .actions import stored

POLICY = PoisonPolicy(receive_retry_count=0)


@pytest.fixture
def queue(broker: Broker) -> str:
    broker.create_queue("orders", QueueOptions(policy=POLICY, breaker=None))
    return "orders"


def order(r: random.Random, **fields: Any) -> dict[str, Any]:
    made = {
        "id": r.randrange(10**9),
        "amount": r.randrange(1_000),
        "to": r.choice("ABCDEFGHIJ"),
        "tax": r.choice([1, 2]),
    }
    return {**made, **fields}


def send(broker: Broker, queue: str, bodies: list[dict[str, Any]]) -> None:
    with broker.sender(queue) as sender:
        sender.send([Message(json.dumps(body).encode()) for body in bodies])


def kill(broker: Broker, queue: str, bodies: list[dict[str, Any]], error: Exception) -> None:
    """Let messages fail for good with an error."""
    send(broker, queue, bodies)
    with broker.receiver(queue) as receiver:
        while messages := receiver.receive(500):
            for message in messages:
                receiver.abandon(message, error=error)


def test_each_cause_has_its_difference_from_waiting_messages(broker: Broker, queue: str) -> None:
    r = random.Random(1)
    kill(broker, queue, [order(r, to=r.choice(["X", "Y"])) for _ in range(90)], KeyError("unknown"))
    kill(broker, queue, [order(r, amount=None) for _ in range(60)], TypeError("amount"))
    kill(broker, queue, [order(r) for _ in range(30)], TimeoutError("slow"))
    send(broker, queue, [order(r) for _ in range(400)])
    unknown, missing, slow = broker.explain(queue)
    assert (unknown.error_type, unknown.letters, unknown.filter) == (
        "KeyError",
        90,
        "body.to IN ('X', 'Y')",
    )
    assert (missing.error_type, missing.letters, missing.filter) == (
        "TypeError",
        60,
        "body.amount IS NULL",
    )
    assert (slow.letters, slow.filter, slow.unexplained) == (30, None, 30)
    assert unknown.differences[0].letters == 90
    assert unknown.differences[0].good == unknown.unexplained == 0
    assert {e.good for e in (unknown, missing, slow)} == {400}
    assert {e.compared_with for e in (unknown, missing, slow)} == {ComparedWith.WAITING}
    (only,) = broker.explain(queue, DeadLetterFilter(error_type="TypeError"))
    assert only == missing


def test_without_good_messages_the_other_causes_are_compared(broker: Broker, queue: str) -> None:
    r = random.Random(2)
    kill(broker, queue, [order(r, to="X") for _ in range(60)], KeyError("unknown"))
    assert [(e.compared_with, e.good, e.filter) for e in broker.explain(queue)] == [
        (ComparedWith.NOTHING, 0, None)
    ]
    kill(broker, queue, [order(r, tax=3) for _ in range(50)], ValueError("tax"))
    first, second = broker.explain(queue)
    assert (first.compared_with, first.good, first.letters) == (ComparedWith.OTHER_CAUSES, 50, 60)
    # What one cause has, the other lacks: both ways to say it are true.
    for cause, text in ((first, "body.to = 'X'"), (second, "body.tax = 3")):
        (difference,) = cause.differences
        assert text in (difference.filter, *difference.also)
        assert (difference.letters, difference.good) == (cause.letters, 0)
    assert broker.explain("orders", DeadLetterFilter(reason="none")) == []


def test_good_messages_can_be_given_bodies_decoded_and_fields_left_out(broker: Broker, queue: str) -> None:
    r = random.Random(3)
    kill(broker, queue, [order(r, to="X", tax=5) for _ in range(40)], KeyError("unknown"))
    bodies = [order(r) for _ in range(200)]
    good = [Message(json.dumps(body).encode(), subject="well") for body in bodies]
    (plain,) = broker.explain(queue, good=good, leave_out=["sys.Label"])
    assert plain.filter in ("body.to = 'X'", "body.tax >= 3", "body.tax = 5")
    assert plain.compared_with is ComparedWith.GIVEN
    (left,) = broker.explain(queue, good=good, leave_out=["sys.Label", "body.tax", "body.to"])
    assert left.filter is None
    upper = [Message(json.dumps(body).upper().encode()) for body in bodies]
    (decoded,) = broker.explain(queue, good=upper, decode=lambda body: {"k": json.loads(body.lower())})
    assert decoded.filter in ("body.k.to = 'X'", "body.k.to = 'x'", "body.k.tax >= 3", "body.k.tax = 5")


def test_wrong_options_are_refused(broker: Broker, queue: str) -> None:
    wrong: list[dict[str, Any]] = [
        {"which": 5},
        {"decode": 5},
        {"leave_out": "body"},
        {"leave_out": [5]},
        {"good": ["x"]},
    ]
    for options in wrong:
        with pytest.raises(InvalidOption):
            broker.explain(queue, **options)


def samples(broker: Broker) -> list[Any]:
    return stored(broker, "SELECT key, body FROM lazaretto_samples ORDER BY key")


def complete(broker: Broker, queue: str, bodies: list[dict[str, Any]], size: int = 100) -> None:
    send(broker, queue, bodies)
    with broker.receiver(queue) as receiver:
        while messages := receiver.receive(size):
            receiver.complete(messages)


def test_some_completed_messages_are_kept_and_compared(broker: Broker, queue: str) -> None:
    r = random.Random(4)
    for size in (1, 100, 1_000):
        complete(broker, queue, [order(r) for _ in range(250 if size == 1 else 2_000)], size)
    kept = samples(broker)
    assert 55 <= len(kept) <= 70
    assert all(json.loads(bytes(body))["tax"] in (1, 2) for _, body in kept)
    kill(broker, queue, [order(r, to="X") for _ in range(60)], KeyError("unknown"))
    (cause,) = broker.explain(queue)
    assert (cause.compared_with, cause.good, cause.filter) == (
        ComparedWith.COMPLETED,
        len(kept),
        "body.to = 'X'",
    )
    assert samples(broker) == kept, "what failed is not kept"


def test_what_is_kept_is_bounded_goes_with_the_option_and_with_the_queue(broker: Broker) -> None:
    r = random.Random(5)
    broker.create_queue("few", QueueOptions(kept_samples=20))
    broker.create_queue("none", QueueOptions(kept_samples=0))
    for path in ("few", "none"):
        complete(broker, path, [{"n": n} for n in range(12_000)], 4_000)
    assert 0 < len(samples(broker)) <= 20 + 64
    broker.update_queue("few", kept_samples=0)
    assert samples(broker) == []
    broker.update_queue("few", kept_samples=10)
    complete(broker, "few", [order(r) for _ in range(500)])
    assert samples(broker)
    broker.delete_queue("few")
    broker.create_queue("few")
    assert broker.explain("few") == []


def test_long_bodies_are_not_kept(broker: Broker, queue: str) -> None:
    complete(broker, queue, [{"text": "x" * 70_000} for _ in range(200)])
    assert samples(broker) == []


def test_causes_are_those_of_triage_and_siblings_are_united(broker: Broker, queue: str) -> None:
    r = random.Random(6)
    for code in ("XA", "XB", "XC"):
        kill(broker, queue, [order(r, to=code) for _ in range(40)], KeyError(f"no airport '{code}' here"))
    kill(broker, queue, [order(r, amount=None) for _ in range(30)], TypeError("amount"))
    send(broker, queue, [order(r) for _ in range(400)])
    numbers = {cause.number: cause.error_type for cause in broker.triage(queue).causes}
    united, single = broker.explain(queue)
    assert (united.letters, united.filter) == (120, "body.to IN ('XA', 'XB', 'XC')")
    assert set(united.causes) == {number for number, kind in numbers.items() if kind == "KeyError"}
    assert [numbers[number] for number in single.causes] == ["TypeError"]
    (one,) = broker.explain(queue, DeadLetterFilter(cause=united.causes[0]))
    assert one.causes == united.causes[:1]


def test_a_cause_keeps_what_explains_it(broker: Broker, queue: str) -> None:
    r = random.Random(7)
    kill(broker, queue, [order(r, to="X") for _ in range(60)], KeyError("unknown"))
    kill(broker, queue, [order(r) for _ in range(30)], TimeoutError("slow"))
    send(broker, queue, [order(r) for _ in range(300)])
    first, second = broker.triage(queue).causes
    assert first.difference is second.difference is None
    assert first.to_explain
    broker.explain(queue, DeadLetterFilter(error_type="KeyError"))
    assert broker.cause(queue, first.number).difference is None, "these need not be all letters of a cause"
    found = broker.triage(queue, explain_for=60)
    assert found.left == ()
    assert [cause.difference for cause in found.causes] == [
        CauseDifference("body.to = 'X'", 60, 60, 0, 300, "waiting messages", (), (first.number,), 60),
        CauseDifference(None, 0, 30, 0, 300, "waiting messages", (), (second.number,), 30),
    ]
    assert not any(cause.to_explain for cause in found.causes)
    complete(broker, queue, [])
    kill(broker, queue, [order(r, to="X") for _ in range(59)], KeyError("unknown"))
    assert not broker.cause(queue, first.number).to_explain
    kill(broker, queue, [order(r, to="X") for _ in range(2)], KeyError("unknown"))
    assert broker.cause(queue, first.number).to_explain
    send(broker, queue, [order(r) for _ in range(300)])
    broker.explain(queue, DeadLetterFilter(cause=first.number))
    kept = broker.cause(queue, first.number).difference
    assert kept is not None
    assert (kept.letters, kept.counted, kept.waiting) == (121, 121, 121)
    broker.merge_causes(queue, [first.number, second.number])
    assert broker.cause(queue, first.number).difference is None, "other letters, other differences"


def test_united_causes_keep_the_difference_of_all_of_them(broker: Broker, queue: str) -> None:
    r = random.Random(8)
    for code in ("XA", "XB", "XC"):
        kill(broker, queue, [order(r, to=code) for _ in range(40)], KeyError(f"no airport '{code}' here"))
    send(broker, queue, [order(r) for _ in range(400)])
    (united,) = broker.explain(queue)
    kept = [cause.difference for cause in broker.triage(queue).causes]
    assert [(k.filter, k.counted, k.waiting, k.causes) for k in kept if k is not None] == [
        (united.filter, 120, 40, united.causes)
    ] * 3


def test_what_time_does_not_suffice_for_is_named(broker: Broker, queue: str) -> None:
    r = random.Random(9)
    kill(broker, queue, [order(r, to="X") for _ in range(60)], KeyError("unknown"))
    kill(broker, queue, [order(r, tax=3) for _ in range(50)], ValueError("tax"))
    found = broker.triage(queue, explain_for=1e-6)
    assert found.left == tuple(cause.number for cause in found.causes)
    assert all(cause.difference is None for cause in found.causes)
    # Without good messages, a cause by itself is compared with the others too.
    (one,) = broker.explain(queue, DeadLetterFilter(cause=found.causes[0].number))
    assert (one.compared_with, one.good) == (ComparedWith.OTHER_CAUSES, 50)
    (kept, _) = (cause.difference for cause in broker.triage(queue).causes)
    assert kept is not None
    assert kept.filter == one.filter is not None
    with pytest.raises(InvalidOption):
        broker.triage(queue, explain_for=-1)
