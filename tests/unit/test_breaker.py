"""The breaker's decisions by themselves: poison or outage, probes, the ramp."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazaretto.errors import InvalidOption
from lazaretto.model.breaker import (
    FULL,
    BreakerPolicy,
    BreakerState,
    BreakerStatus,
    BreakerWindow,
    Passage,
    client_failed,
    clients_completed,
    failed_again,
    opened,
    passage,
    probing,
    succeeded,
)

DOWN = "the dependency"
POLICY = BreakerPolicy()


def test_many_different_messages_failing_in_one_way_are_an_outage() -> None:
    window = BreakerWindow(POLICY)
    found = [window.note([(key, DOWN)], key / 100) for key in range(1, 11)]
    assert found == [None] * 9 + [DOWN]
    assert window.take_charges(DOWN) == dict.fromkeys(range(1, 11), 1)
    assert window.note([(11, DOWN)], 1.0) is None


def test_one_message_failing_again_and_again_is_poison() -> None:
    window = BreakerWindow(POLICY)
    assert [window.note([(1, DOWN)], n / 100) for n in range(1000)] == [None] * 1000


def test_many_messages_failing_in_different_ways_are_poison() -> None:
    window = BreakerWindow(POLICY)
    assert [window.note([(n, f"way {n % 5}")], n / 100) for n in range(1000)] == [None] * 1000


def test_failures_among_many_successes_are_poison() -> None:
    window, draw = BreakerWindow(POLICY), random.Random(1)
    outcomes = [(key, DOWN if draw.random() < 0.2 else None) for key in range(20_000)]
    assert [window.note(outcomes[i : i + 100], i / 1000) for i in range(0, 20_000, 100)] == [None] * 200


def test_an_outage_after_a_good_time_is_seen_once_it_fills_the_window() -> None:
    window = BreakerWindow(POLICY)
    window.note([(key, None) for key in range(1000)], 0.0)
    found = [window.note([(key, DOWN)], 1.0) for key in range(1000, 1020)]
    assert found.index(DOWN) == 15


def test_every_charge_of_a_retried_message_is_given_back() -> None:
    window = BreakerWindow(POLICY)
    for key in range(9):
        window.note([(key, DOWN)] * 10, 0.0)
    assert window.note([(9, DOWN)], 0.0) == DOWN
    assert window.take_charges(DOWN) == {**dict.fromkeys(range(9), 10), 9: 1}


def test_messages_that_all_succeed_may_be_noted_by_their_keys() -> None:
    window = BreakerWindow(POLICY)
    for key in range(9):
        window.note([(key, DOWN)], 0.0)
    window.note_completed(range(100, 1100), 0.0)
    assert window.note([(9, DOWN)], 0.0) is None


def test_failures_older_than_the_window_are_no_part_of_it() -> None:
    window = BreakerWindow(POLICY)
    for key in range(9):
        window.note([(key, DOWN)], 0.0)
    assert window.note([(9, DOWN)], POLICY.window + 1) is None
    assert window.take_charges(DOWN) == {9: 1}


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from([None, "a", "b"]))))
def test_the_window_agrees_with_counting_again(outcomes: list[tuple[int, str | None]]) -> None:
    """Whatever came in whatever order: the verdict is that of the latest different messages."""
    policy = BreakerPolicy(messages=3, share=0.5)
    window = BreakerWindow(policy)
    latest: dict[int, str | None] = {}
    for key, fingerprint in outcomes:
        latest.pop(key, None)
        latest[key] = fingerprint
        for oldest in list(latest)[: max(0, len(latest) - 6)]:
            del latest[oldest]
        ways = [f for f in latest.values() if f is not None]
        outage = [w for w in ("a", "b") if ways.count(w) >= max(3, 0.5 * len(latest))]
        found = window.note([(key, fingerprint)], 0.0)
        assert (found in outage) if outage and fingerprint is not None else (found is None)


def test_probes_wait_longer_and_longer_to_a_limit() -> None:
    state = opened(POLICY, DOWN, "gone", 0)
    assert (state.status, state.probe_at) == (BreakerStatus.OPEN, 1_000_000)
    waits = []
    for key in range(6):
        now = state.probe_at
        state = probing(POLICY, state, key, now)
        waits.append((state.probe_at - now) / 1_000_000)
    assert waits == [1.5, 2.25, 3.375, 5.0, 5.0, 5.0]
    assert state.probed == 5


def test_the_ramp_doubles_until_it_is_closed() -> None:
    state: BreakerState | None = opened(POLICY, DOWN, "gone", 0)
    limits = []
    while state is not None:
        state = succeeded(state)
        if state is not None:
            assert state.status is BreakerStatus.RAMPING
            limits.append(state.limit)
    assert limits == [2, 4, 8, 16]
    assert limits[-1] * 2 == FULL


def test_a_failure_in_the_ramp_opens_it_again() -> None:
    ramping = succeeded(opened(POLICY, DOWN, "gone", 0))
    assert ramping is not None
    again = failed_again(POLICY, ramping, 7_000_000)
    assert (again.status, again.limit, again.probe_at) == (BreakerStatus.OPEN, 1, 8_000_000)
    assert again.since == 0
    assert failed_again(POLICY, again, 9_000_000) is again


@pytest.mark.parametrize(
    "wrong",
    [{"messages": 1}, {"share": 0}, {"share": 1.5}, {"window": 0}, {"probe_interval": -1}, {"msgs": 3}],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidOption):
        BreakerPolicy(**wrong)  # type: ignore[arg-type]


class Ramp:
    """What a ramp of clients says, message by message."""

    def __init__(self) -> None:
        opened_ = probing(POLICY, opened(POLICY, DOWN, "", 0), 7, 1_000_000)
        state = clients_completed(opened_, [7], 2_000_000)
        assert state is not None
        self.state: BreakerState | None = state

    def complete(self, count: int) -> None:
        assert self.state is not None
        self.state = clients_completed(self.state, range(count), 3_000_000)

    def fail(self, *keys: int) -> None:
        for key in keys:
            assert self.state is not None
            self.state = client_failed(POLICY, self.state, key, 3_000_000)

    @property
    def status(self) -> BreakerStatus:
        return BreakerStatus.CLOSED if self.state is None else self.state.status


@pytest.mark.parametrize(
    ("status", "now", "expected"),
    [
        (None, 0, Passage(9)),
        (BreakerStatus.HELD_CLOSED, 0, Passage(9)),
        (BreakerStatus.HELD_OPEN, 10**9, None),
        (BreakerStatus.OPEN, 99, None),
        (BreakerStatus.OPEN, 100, Passage(4, 5, decides=True)),
        (BreakerStatus.RAMPING, 0, Passage(4, 5, decides=True)),
    ],
)
def test_what_may_pass(status: BreakerStatus | None, now: int, expected: Passage | None) -> None:
    state = None if status is None else BreakerState(status, 0, probe_at=100, probed=5, limit=4)
    assert passage(state, 9, now) == expected


@pytest.mark.parametrize(
    ("completed", "failed", "status"),
    [
        (0, [1], BreakerStatus.RAMPING),
        (0, [1, 1, 1, 1], BreakerStatus.RAMPING),
        (0, [1, 2], BreakerStatus.OPEN),
        (3, [1, 2, 3, 4], BreakerStatus.RAMPING),
        (3, [1, 2, 3, 4, 5], BreakerStatus.OPEN),
        (FULL, [], BreakerStatus.CLOSED),
    ],
)
def test_a_ramp_of_clients(completed: int, failed: list[int], status: BreakerStatus) -> None:
    ramp = Ramp()
    if completed:
        ramp.complete(completed)
    ramp.fail(*failed)
    assert ramp.status is status


def test_only_probes_of_clients_end_an_outage() -> None:
    state = opened(POLICY, DOWN, "", 0)
    for key in (1, 2, 3):
        state = probing(POLICY, state, key, 1_000_000)
    assert clients_completed(state, [9], 2_000_000) is state
    assert client_failed(POLICY, state, 3, 2_000_000) is state
    after = clients_completed(state, [9, 2], 2_000_000)
    assert after is not None and (after.status, after.ramping) == (BreakerStatus.RAMPING, 2_000_000)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=200))
def test_a_ramp_opens_by_different_failures_and_closes_by_completions(steps: list[tuple[bool, int]]) -> None:
    ramp, failing, completed = Ramp(), set[int](), 0
    for fails, key in steps:
        if fails:
            failing.add(key)
            ramp.fail(key)
        else:
            completed += 1
            ramp.complete(1)
        if ramp.status is BreakerStatus.OPEN:
            assert fails and len(failing) >= completed + 2
            break
        if ramp.status is BreakerStatus.CLOSED:
            assert not fails and completed + 2 >= FULL
            break
        assert len(failing) < completed + 2 < FULL
