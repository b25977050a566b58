"""Rows of another source that failed: each is a message of the queue once, whatever is settled again."""

from __future__ import annotations

import pytest

from lazaretto import Broker, PoisonPolicy, QueueOptions
from lazaretto.broker.broker import store_of
from lazaretto.engine.claims.settle_claims import StagedRow
from lazaretto.engine.claims.settle_rows import BeginRows, OtherRow, SettleRows, StageRows
from lazaretto.model.entities import EntityPath, PoisonSession
from lazaretto.model.failure import Failure
from lazaretto.model.policy import Outcome
from lazaretto.store.records.messages import NewMessage

PATH = EntityPath.parse("work")
#: A body that does not stand in a message's row.
LARGE = b"x" * 1_000_000


def other(name: str, content: str, body: bytes = b"?") -> OtherRow:
    """Return a row that failed, of a place and with a content."""
    failed = StagedRow(0, Outcome.FAILED.value, Failure("ValueError", "no"))
    return OtherRow(NewMessage(body, None, None, None, None, None, None), failed, name, content)


def of_session(name: str, session: str, outcome: Outcome) -> OtherRow:
    """Return a row of a session that failed, or waits behind one that did."""
    failure = Failure("ValueError", "no") if outcome is Outcome.FAILED else None
    message = NewMessage(name.encode(), None, session, None, None, None, None)
    return OtherRow(message, StagedRow(0, outcome.value, failure), name, name)


def settle(broker: Broker, batch: int, *rows: OtherRow) -> None:
    """Settle a micro-batch in which these rows failed."""
    store, stage = store_of(broker), f"stage-{batch}"
    has_session = any(row.message.session_id for row in rows)
    begun = store.run(BeginRows(PATH, "rows", "writer", batch, has_session))
    store.run(StageRows(PATH, stage, rows))
    store.run(SettleRows(PATH, "rows", "writer", batch, begun.number, len(rows), [stage], {stage: 0}))


def bodies(broker: Broker) -> list[bytes]:
    return [letter.message.body for letter in broker.dead_letters("work") if letter.message is not None]


def events(broker: Broker) -> list[str]:
    return [event.kind for event in broker.events(queue="work")]


def test_many_rows_are_letters_once_each(broker: Broker) -> None:
    broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
    # Names that a list of texts must quote, one that is large, and one that comes twice.
    names = [f'{number}"\\,{{}}NULL' for number in range(150)]
    rows = [other(f"at {name}", name, str(at).encode()) for at, name in enumerate(names)]
    settle(broker, 0, *rows, rows[3], other("large", "large", LARGE))
    assert sorted(bodies(broker)) == sorted([*(b"%d" % at for at in range(150)), LARGE])
    letter = next(iter(broker.dead_letters("work")))
    assert (letter.error_type, letter.reason) == ("ValueError", "MaxDeliveryCountExceeded")
    # The source gives the same rows again, and a new one.
    settle(broker, 1, *rows, other("new", "new", b"new"))
    assert len(bodies(broker)) == len(rows) + 2
    assert broker.check() == []


def test_one_row_is_a_letter_and_a_place_that_comes_with_another_row_is_told(broker: Broker) -> None:
    broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
    settle(broker, 0, other("place", "first", b"1"))
    settle(broker, 1, other("place", "second", b"2"), other("place", "third", b"3"))
    assert sorted(bodies(broker)) == [b"1", b"2", b"3"]
    assert events(broker).count("origin_reused") == 2


def test_an_attempt_is_in_the_history(broker: Broker) -> None:
    broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=2)))
    settle(broker, 0, *(other(f"{number}", f"{number}") for number in range(100)))
    assert bodies(broker) == []
    counts = broker.queue("work").counts
    assert counts.total == 100


@pytest.mark.parametrize("policy", [PoisonSession.SKIP, PoisonSession.PARK])
def test_rows_behind_one_that_failed_wait_in_the_queue(broker: Broker, policy: PoisonSession) -> None:
    broker.create_queue(
        "work",
        QueueOptions(
            policy=PoisonPolicy(receive_retry_count=0), requires_session=True, on_poison_session=policy
        ),
    )
    settle(
        broker,
        0,
        of_session("1", "a", Outcome.FAILED),
        of_session("2", "b", Outcome.FAILED),
        of_session("3", "a", Outcome.RELEASED),
        of_session("4", "a", Outcome.RELEASED),
    )
    assert sorted(bodies(broker)) == [b"1", b"2"]
    counts = broker.queue("work").counts
    assert counts.total - counts.dead_letter == len([b"3", b"4"])
    for letter in list(broker.dead_letters("work")):
        broker.purge("work", letter.sequence_number)
    with broker.receiver("work", session="a") as receiver:
        assert [message.body for message in receiver.receive(10)] == [b"3", b"4"]
    assert broker.check() == []
