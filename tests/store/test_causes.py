"""Causes of dead letters: counted in the commit, grouped by what they share, sticky in what operators say."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from lazaretto import (
    Broker,
    DeadLetterFilter,
    InvalidOption,
    ManualClock,
    MessageNotFound,
)
from lazaretto.engine.timers import CleanUp
from lazaretto.model.causes import CauseState
from lazaretto.model.clock import to_datetime
from lazaretto.store.postgres.dialect import within
from lazaretto.store.postgres.pipelined_transaction import PgTransaction
from lazaretto.store.sql import cause_tables
from lazaretto.store.sql.operation import Operation

from .actions import create, fail, send, set_aside
from .conftest import Connect

HOUR = 3600


@dataclasses.dataclass(slots=True)
class Execute(Operation[None]):
    """Run SQL on the store's own tables."""

    sql: str

    def run(self, tx: Any) -> None:
        if isinstance(tx, PgTransaction):
            self.sql = within(tx.context._statements["select_now"].sql.split('"')[1], self.sql)
        tx.context._execute(self.sql)


@pytest.fixture(autouse=True)
def queue(broker: Broker) -> None:
    create(broker, receive_retry_count=0)


def _fail(broker: Broker, *texts: str, kind: str = "ValueError", path: str = "q") -> list[int]:
    found = []
    for text in texts:
        send(broker, b"x", path=path)
        found.append(fail(broker, path, error=f"{kind}: {text}"))
    return found


def _counts(broker: Broker, path: str = "q") -> dict[str | None, int]:
    return {cause.template: cause.letters for cause in broker.triage(path).causes}


def _check(broker: Broker, *paths: str) -> None:
    """Compare what is counted with what is there."""
    for path in paths:
        expected = Counter((letter.reason, letter.error_type) for letter in broker.dead_letters(path))
        groups = broker.dead_letter_groups(path)
        assert {(g.reason, g.error_type): g.count for g in groups} == dict(expected)
        triage = broker.triage(path)
        assert triage.letters == sum(cause.letters for cause in triage.causes) == expected.total()
        waiting = {letter.sequence_number: letter for letter in broker.dead_letters(path)}
        for cause in triage.causes:
            assert cause.example in waiting
            assert sum(alike.letters for alike in cause.fingerprints) == cause.letters
    assert broker.check() == []


def _look_up(table: dict[str, int], *keys: str) -> list[BaseException]:
    """Return the errors that one line of code fails with."""
    errors: list[BaseException] = []
    for key in keys:
        try:
            table[key]
        except KeyError as error:
            errors.append(error)
    return errors


def _fail_with(broker: Broker, *errors: BaseException, path: str = "q") -> None:
    for error in errors:
        send(broker, b"x", path=path)
        with broker.receiver(path) as receiver:
            receiver.abandon(receiver.receive(1), error=error)


class TestValues:
    """Errors whose text is a value: at one place in the code they are one cause."""

    def test_values_of_one_line_are_one_cause_with_counts(self, broker: Broker) -> None:
        _fail_with(broker, *_look_up({}, "sofa", "lamp"))
        assert len(broker.triage("q").causes) == 1
        _fail_with(broker, *_look_up({}, "sofa", "it's", "sofa"))
        (cause,) = broker.triage("q").causes
        assert (cause.number, cause.letters, cause.template) == (1, 5, "\u2731")
        assert [(one.shape, one.letters) for one in cause.fingerprints] == [
            ("'sofa'", 3), *[(text, 1) for text in (cause.fingerprints[1].shape, cause.fingerprints[2].shape)]
        ]  # fmt: skip
        assert {one.shape for one in cause.fingerprints} == {"'sofa'", "'lamp'", '"it\'s"'}
        _check(broker, "q")

    def test_one_value_stays_as_it_reads(self, broker: Broker) -> None:
        _fail_with(broker, *_look_up({}, "sofa", "sofa"))
        (cause,) = broker.triage("q").causes
        assert cause.template == "'sofa'"

    def test_another_line_and_words_are_other_causes(self, broker: Broker) -> None:
        _fail_with(broker, *_look_up({}, "sofa", "lamp"))
        try:
            table: dict[str, int] = {}
            table["sofa"]
        except KeyError as error:
            _fail_with(broker, error)
        _fail_with(broker, *(type(e)("no such thing") for e in _look_up({}, "a")))
        _fail_with(broker, KeyError("here"), KeyError("there"))
        assert sorted(cause.letters for cause in broker.triage("q").causes) == [1, 1, 1, 1, 2]

    def test_an_operator_sets_a_value_apart(self, broker: Broker) -> None:
        _fail_with(broker, *_look_up({}, "sofa", "lamp", "desk"))
        (cause,) = broker.triage("q").causes
        (sofa,) = [one.fingerprint for one in cause.fingerprints if one.shape == "'sofa'"]
        broker.split_cause("q", cause.number, [sofa])
        _fail_with(broker, *_look_up({}, "chair", "sofa"))
        assert sorted(cause.letters for cause in broker.triage("q").causes) == [2, 3]

    def test_more_values_than_are_kept_apart(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cause_tables, "_MOST_OF_FAMILY", 5)
        _fail_with(broker, *_look_up({}, *map("key-{}x".format, "abcdefgh")))
        (cause,) = broker.triage("q").causes
        assert cause.letters == 8


def test_letters_that_differ_in_values_are_one_cause(broker: Broker) -> None:
    numbers = _fail(broker, "order 1 is gone", "order 2 is gone", "no such port")
    triage = broker.triage("q")
    assert [(c.number, c.letters, c.error_type, c.template) for c in triage.causes] == [
        (1, 2, "ValueError", "order ✱ is gone"),
        (2, 1, "ValueError", "no such port"),
    ]
    assert triage.letters == 3
    assert triage.queue == "q/$deadletterqueue"
    assert triage.causes[0].example == numbers[0]
    assert broker.triage("q;poison").causes == triage.causes


def test_a_letter_tells_its_fingerprint_and_an_attempt_its_site(broker: Broker) -> None:
    send(broker, b"x")
    try:
        int("a")
    except ValueError as error:
        number = fail(broker, error=error)
    letter = broker.dead_letter("q", number)
    (cause,) = broker.triage("q").causes
    assert letter.fingerprint == cause.fingerprints[0].fingerprint
    assert cause.site == f'{__name__}.test_a_letter_tells_its_fingerprint_and_an_attempt_its_site: int("a")'
    (attempt,) = letter.attempts
    assert attempt.site == cause.site
    assert attempt.fingerprint is not None


def test_a_word_that_takes_any_value_is_a_hole(broker: Broker) -> None:
    _fail(broker, "no user ann here")
    assert _counts(broker) == {"no user ann here": 1}
    _fail(broker, "no user bob here", "no user cid here", "no user dan here")
    (cause,) = broker.triage("q").causes
    assert (cause.number, cause.letters, cause.template) == (1, 4, "no user ✱ here")
    # Known from now on, whatever comes alone.
    _fail(broker, "no user eve here")
    assert _counts(broker) == {"no user ✱ here": 5}
    _check(broker, "q")


def test_counts_are_those_of_the_letters_whatever_happens(broker: Broker) -> None:
    rng = random.Random(5)
    create(broker, "other", receive_retry_count=0)
    texts = ["order {} is gone", "no port", "late by {} s"]
    for _step in range(60):
        waiting = [letter.sequence_number for letter in broker.dead_letters("q")]
        some = rng.sample(waiting, min(len(waiting), rng.randint(1, 4)))
        match rng.randrange(8):
            case 0 | 1 | 2:
                _fail(
                    broker, *(rng.choice(texts).format(rng.randint(1, 9)) for _ in range(rng.randint(1, 4)))
                )
            case 3:
                set_aside(broker, b"x", b"y", reason=rng.choice(["Manual", "Full"]), description="by hand 7")
            case 4 if some:
                report = broker.resubmit("q", some)
                assert len(report.resubmitted) == len(some)
                receiver = broker.receiver("q")
                for message in receiver.receive(len(some)):
                    if rng.random() < 0.5:
                        receiver.complete(message)
                    else:
                        receiver.abandon(message, error="KeyError: again")
            case 5 if some:
                broker.purge("q", some)
            case 6 if some:
                receiver = broker.receiver("q;poison")
                for message in receiver.receive(len(some)):
                    receiver.complete(message)
            case 7 if some:
                broker.move_dead_letters("q", some, "other")
                _fail_all(broker, "other")
        if _step % 6 == 0:
            _check(broker, "q", "other")
    _check(broker, "q", "other")


def _fail_all(broker: Broker, path: str) -> None:
    receiver = broker.receiver(path)
    for message in receiver.receive(100):
        receiver.abandon(message, error="KeyError: there too")


def test_a_transaction_that_is_rolled_back_counts_nothing(broker: Broker) -> None:
    create(broker, "r")
    send(broker, b"x", path="r")

    def attempt(*, commit: bool) -> None:
        with broker.transaction() as tx:
            (message,) = tx.receive("r")
            tx.dead_letter(message, reason="Manual")
            if not commit:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        attempt(commit=False)
    assert broker.triage("r").letters == 0
    attempt(commit=True)
    assert broker.triage("r").letters == 1
    _check(broker, "r")


def test_the_subqueues_count_apart(broker: Broker) -> None:
    _fail(broker, "no port")
    assert broker.triage("q/$transfer/$deadletterqueue").letters == 0
    assert broker.triage("q").letters == 1


def test_new_steady_over_and_back(broker: Broker, clock: ManualClock) -> None:
    numbers = _fail(broker, "no port")
    (cause,) = broker.triage("q").causes
    assert cause.state is CauseState.NEW
    clock.advance(25 * HOUR)
    (cause,) = broker.triage("q").causes
    assert cause.state is CauseState.STEADY
    assert (
        broker.triage("q", since=to_datetime(clock.now()) - timedelta(hours=30)).causes[0].state.value
        == "new"
    )
    broker.purge("q", numbers)
    assert broker.triage("q").causes == ()
    (cause,) = broker.triage("q", over=True).causes
    assert (cause.state, cause.letters, cause.total) == (CauseState.OVER, 0, 1)
    clock.advance(HOUR)
    _fail(broker, "no port")
    (cause,) = broker.triage("q").causes
    assert (cause.number, cause.state, cause.letters, cause.total) == (1, CauseState.REGRESSED, 1, 2)


def test_a_rising_cause(broker: Broker, clock: ManualClock) -> None:
    for _ in range(30):
        _fail(broker, "no port")
        clock.advance(HOUR)
    assert broker.triage("q").causes[0].state is CauseState.STEADY
    _fail(broker, *["no port"] * 20)
    (cause,) = broker.triage("q").causes
    assert cause.state is CauseState.RISING
    assert cause.hours == (*[1] * 23, 20)


def test_merged_causes_stay_one(broker: Broker) -> None:
    _fail(broker, "no port", "no port", "no light")
    _fail(broker, "gone", kind="KeyError")
    causes = broker.triage("q").causes
    assert [(c.number, c.letters) for c in causes] == [(1, 2), (2, 1), (3, 1)]
    moved = [alike.fingerprint for alike in broker.cause("q", 3).fingerprints]
    assert broker.merge_causes("q", [3, 1], actor="ann") == 1
    _fail(broker, "gone", kind="KeyError")
    assert {c.number: c.letters for c in broker.triage("q").causes} == {1: 4, 2: 1}
    assert len(broker.cause("q", 1).fingerprints) == 2
    # It goes by its old number, too.
    broker.note_cause("q", 3, "the port's")
    assert broker.cause("q", 1).note == "the port's"
    assert [(e.actor, e.action, e.detail) for e in broker.audit(limit=2)][1] == (
        "ann",
        "merge_causes",
        {"into": 1, "merged": [3], "fingerprints": {"3": moved}},
    )
    with pytest.raises(InvalidOption):
        broker.merge_causes("q", [1])
    _check(broker, "q")


def test_what_was_split_stays_apart(broker: Broker) -> None:
    _fail(broker, *(f"no user {name} here" for name in ("ann", "bob", "cid", "dan")))
    (cause,) = broker.triage("q").causes
    one = next(alike for alike in cause.fingerprints if alike.shape == "no user bob here")
    assert broker.split_cause("q", 1, [one.fingerprint]) == 2
    _fail(broker, "no user bob here", "no user eve here")
    assert {c.number: (c.letters, c.template) for c in broker.triage("q").causes} == {
        1: (4, "no user ✱ here"),
        2: (2, "no user bob here"),
    }
    assert broker.cause("q", 2).split_from == 1
    for wrong in ([], [one.fingerprint], ["x"]):
        with pytest.raises(InvalidOption):
            broker.split_cause("q", 2, wrong)
    _check(broker, "q")


def test_notes_and_acknowledgements(broker: Broker, clock: ManualClock) -> None:
    _fail(broker, "no port")
    assert broker.triage("q").causes[0].note is None
    until = to_datetime(clock.now()) + timedelta(hours=8)
    broker.note_cause("q", 1, "the port is closed at night")
    broker.acknowledge_cause("q", 1, until)
    cause = broker.cause("q", 1)
    assert (cause.note, cause.acknowledged_until) == ("the port is closed at night", until)
    broker.note_cause("q", 1, None)
    broker.acknowledge_cause("q", 1, None)
    cause = broker.cause("q", 1)
    assert (cause.note, cause.acknowledged_until) == (None, None)
    with pytest.raises(MessageNotFound):
        broker.note_cause("q", 7, "x")
    with pytest.raises(MessageNotFound):
        broker.cause("q", 7)


def test_letters_of_one_cause_are_listed(broker: Broker) -> None:
    numbers = _fail(broker, "order 1 is gone", "no port", "order 2 is gone")
    broker.triage("q")
    which = DeadLetterFilter(cause=1)
    assert [letter.sequence_number for letter in broker.dead_letters("q", which)] == [numbers[0], numbers[2]]
    assert broker.purge("q", which) == [numbers[0], numbers[2]]
    with pytest.raises(MessageNotFound):
        list(broker.dead_letters("q", DeadLetterFilter(cause=9)))
    _check(broker, "q")


def test_100_distinct_texts_are_few_causes(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cause_tables, "_MOST_OF_FAMILY", 5)
    monkeypatch.setattr(cause_tables, "_MOST_OF_PLACE", 12)
    rng = random.Random(2)
    words = ["".join(rng.choice("abcdefgh") for _ in range(6)) for _ in range(100)]
    _fail(broker, *(" ".join(rng.sample(words, 4)) for _ in range(40)))
    assert sum(len(c.fingerprints) for c in broker.triage("q").causes) == 6
    _check(broker, "q")
    for kind in range(20):
        _fail(broker, "x", kind=f"Kind{kind}")
    triage = broker.triage("q")
    assert triage.letters == 60
    assert sum(len(c.fingerprints) for c in triage.causes) == 13
    assert broker.check() == []


def test_hostile_texts_are_kept_and_counted(broker: Broker) -> None:
    _fail(broker, "\x1b[31m" * 500, "<script>" * 500, "\u202e\u202d", "\ud800", "a\0b", "", " ")
    set_aside(broker, b"x", reason="\x1b]0;x\x07", description="\0")
    assert broker.triage("q").letters == 8
    _check(broker, "q")


def test_the_order_of_arrival_makes_no_difference(broker: Broker) -> None:
    texts = [f"no user {name} here" for name in ("ann", "bob", "cid", "dan", "eve", "fay")]
    texts += ["order 1 is gone", "order 2 is gone", "no red light", "no green light", "no port"]
    found = []
    for seed in range(4):
        path, r = f"q{seed}", random.Random(seed)
        create(broker, path, receive_retry_count=0)
        r.shuffle(texts)
        cut = r.randint(1, len(texts) - 1)
        _fail(broker, *texts[:cut], path=path)
        broker.triage(path)
        _fail(broker, *texts[cut:], path=path)
        found.append(_counts(broker, path))
        _check(broker, path)
    assert found == [found[0]] * 4
    assert found[0]["no user \u2731 here"] == 6


def test_a_clock_that_jumps_counts_all_letters(broker: Broker, clock: ManualClock) -> None:
    for hours in (0, 40, -80, 24 * 400, -24 * 400, 1):
        clock.advance(hours * HOUR)
        _fail(broker, "no port")
        (cause,) = broker.triage("q").causes
        assert sum(cause.hours) <= cause.letters
        assert cause.first <= cause.last
    assert (cause.letters, cause.total) == (6, 6)
    assert [found.letters for found in broker.explain("q")] == [6]
    _check(broker, "q")


def test_causes_with_one_letter_are_explained_without_an_error(broker: Broker) -> None:
    _fail(broker, *(f"{word} is wrong in another way {word}" for word in ("one", "two", "three")))
    _fail(broker, "x", kind="Alone")
    found = broker.explain("q")
    assert [cause.letters for cause in found] == [1] * 4
    assert not any(cause.differences for cause in found)
    _check(broker, "q")


def test_letters_of_an_older_version_get_their_causes(broker: Broker) -> None:
    numbers = _fail(broker, "order 1 is gone", "no port", "order 2 is gone")
    forget_causes(broker)
    assert broker.check() == []
    assert {g.error_type: g.count for g in broker.dead_letter_groups("q")} == {"ValueError": 3}
    assert _counts(broker) == {"order ✱ is gone": 2, "no port": 1}
    broker.purge("q", numbers[:1])
    _check(broker, "q")


def forget_causes(broker: Broker) -> None:
    """Let the store be as an older version has left it."""
    broker._store.run(Execute("UPDATE lazaretto_dead_letters SET fingerprint = NULL"))
    for table in ("fingerprints", "cause_hours", "causes"):
        broker._store.run(Execute(f"DELETE FROM lazaretto_{table}"))


def test_check_finds_a_wrong_count(broker: Broker) -> None:
    _fail(broker, "no port")
    broker._store.run(Execute("UPDATE lazaretto_fingerprints SET waiting = 7"))
    assert broker.check() == ["causes of q that count another number of dead letters than wait: 1"]
    broker.recount_causes("q")
    _check(broker, "q")


def test_a_deleted_queue_leaves_nothing(broker: Broker) -> None:
    create(broker, "gone", receive_retry_count=0)
    _fail(broker, "no port", path="gone")
    broker.triage("gone")
    broker.delete_queue("gone")
    while broker._store.run(CleanUp()):
        pass
    assert broker._store.read(lambda tx: [tx.causes.fingerprints(place) for place in range(40)]) == [[]] * 40


def test_two_brokers_count_together(broker: Broker, connect: Connect) -> None:
    other = connect()
    for _ in range(3):
        _fail(broker, "no port")
        _fail(other, "no port", "no light")
    assert _counts(broker) == _counts(other) == {"no port": 6, "no light": 3}
    _check(other, "q")
