"""The phases of a repair, its ramp, its stop rule and its chunks, without a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazaretto.engine.repairs.course import PART, KeyList, members
from lazaretto.model.repairs import (
    CHUNK_SECONDS,
    ENDED,
    MOST_CHUNK,
    RECENT,
    RUNNING,
    TRANSITIONS,
    VERBS,
    Allowance,
    Pace,
    Phase,
    RepairEvent,
    after,
    diagram,
    least_share,
    next_chunk,
    next_verbs,
    why_stop,
    wider,
)

PAGE = Path(__file__).parents[2] / "docs" / "repairs.md"


def test_the_page_shows_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in PAGE.read_text("utf-8")


def test_every_phase_can_be_reached_and_left() -> None:
    reached = {Phase.PLANNED} | set(TRANSITIONS.values())
    assert reached == set(Phase)
    assert {before for before, _ in TRANSITIONS} == set(Phase) - {Phase.UNDONE}
    # What was sent can be taken back, whatever happened.
    sent = set(Phase) - {Phase.PLANNED, Phase.UNDOING, Phase.UNDONE}
    assert all(after(phase, RepairEvent.UNDO) is Phase.UNDOING for phase in sent)


def test_nothing_is_sent_unless_somebody_asks() -> None:
    # Whoever takes letters out of a canary that failed asks for the rest of it.
    asked = {*VERBS.values(), RepairEvent.EXCLUDE}
    into = {
        event for (before, event), then in TRANSITIONS.items() if then in RUNNING and before not in RUNNING
    }
    assert into <= asked
    for phase in ENDED:
        assert set(next_verbs(phase)) <= {"undo"}


@pytest.mark.parametrize(
    ("window", "following"), [(1, 2), (2, 5), (5, 10), (10, 20), (20, 50), (50, 100), (3, 5), (999, 1000)]
)
def test_steps_of_the_ramp(window: int, following: int) -> None:
    assert wider(window) == following


def test_the_window_grows_while_letters_are_processed() -> None:
    pace = Pace(in_flight=60)
    seen: list[int] = []
    for _ in range(200):
        pace = pace.after([True])
        if not seen or pace.window != seen[-1]:
            seen.append(pace.window)
    assert seen == [2, 5, 10, 20, 50, 60]


def test_the_window_is_halved_when_one_fails() -> None:
    pace = Pace(window=50).after([False])
    assert (pace.window, pace.streak) == (25, 0)
    assert Pace(window=1).after([False]).window == 1


@given(st.lists(st.booleans()), st.integers(1, 500))
def test_the_window_stays_within_bounds(outcomes: list[bool], most: int) -> None:
    pace = Pace(in_flight=most)
    for outcome in outcomes:
        pace = pace.after([outcome])
        assert 1 <= pace.window <= most
        assert pace.room(pace.window) == 0
    assert pace == Pace(in_flight=most).after(outcomes)
    assert len(pace.recent) == min(len(outcomes), RECENT)


def test_without_a_window_everything_may_go() -> None:
    pace = Pace(in_flight=None)
    assert pace.room(10**6) == MOST_CHUNK


def test_other_limits() -> None:
    assert Pace(window=500).changed(100, 5.0) == Pace(window=100, in_flight=100, rate=5.0)


@pytest.mark.parametrize(
    ("failed", "number", "stops"),
    [(0, 0, False), (0, 200, False), (1, 1, True), (1, 5, False), (2, 5, True), (1, 200, False),
     (10, 200, False), (15, 200, False), (17, 200, True), (200, 200, True)],
)  # fmt: skip
def test_the_stop_rule(failed: int, number: int, stops: bool) -> None:
    pace = Pace(recent="p" * (number - failed) + "f" * failed)
    assert (why_stop(pace) is not None) is stops
    assert why_stop(pace.afresh()) is None


def test_wilsons_bound() -> None:
    # From the literature: 10 of 20 is 0.299 to 0.701.
    assert least_share(10, 20) == pytest.approx(0.299, abs=0.001)
    assert least_share(0, 50) == 0.0


@given(st.integers(1, MOST_CHUNK), st.floats(1e-6, 10))
def test_chunks_take_about_their_time(size: int, seconds: float) -> None:
    following = next_chunk(size, seconds)
    assert 10 <= following <= max(10, min(MOST_CHUNK, 2 * size))
    if 10 < following < min(100, 2 * size):
        assert following * seconds / size == pytest.approx(CHUNK_SECONDS, rel=0.2)


def test_a_rate() -> None:
    allowance, sent = Allowance(), 0
    for tenth in range(101):
        now = tenth / 10
        allowed = allowance.allow(50.0, now)
        allowance.spend(allowed)
        sent += allowed
    assert 499 <= sent <= 506
    # What was not used for a while is not made up for.
    assert allowance.allow(50.0, 1000.0) == 10
    assert allowance.allow(None, 1000.0) == MOST_CHUNK


@given(st.lists(st.integers(0, 1 << 62), max_size=50), st.integers(1, 4))
def test_a_frozen_set_is_kept_in_its_order(keys: list[int], times: int) -> None:
    keys = keys * times * (PART // 20)
    packed = KeyList()
    for start in range(0, len(keys), 777):
        packed.extend(keys[start : start + 777])
    packed.finish()
    assert len(packed) == len(keys)
    for first, last in ((0, len(keys)), (len(keys) // 3, len(keys) // 2), (max(0, len(keys) - 5), len(keys))):
        assert members(packed.parts.__getitem__, first, last) == keys[first:last] if first < last else True
