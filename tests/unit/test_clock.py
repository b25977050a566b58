"""Clocks and the times they tell."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from lazaretto.model.clock import (
    LAST_MOMENT,
    ManualClock,
    SystemClock,
    iso,
    iso_of,
    to_datetime,
    to_ending,
    to_micros,
)


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(100)
    assert clock.now() == clock.now() == 100_000_000
    clock.advance(0.5)
    clock.advance(-1)
    assert clock.now() == 99_500_000
    assert not clock.ticks


def test_the_system_clock_tells_microseconds() -> None:
    before = datetime.now(UTC)
    assert abs((to_datetime(SystemClock().now()) - before).total_seconds()) < 60


@given(st.datetimes(timezones=st.just(UTC)))
def test_microseconds_and_back(moment: datetime) -> None:
    assert to_datetime(to_micros(moment)) == to_ending(to_micros(moment)) == moment


def test_beyond_the_year_9999() -> None:
    assert to_datetime(1 << 62) == to_datetime(LAST_MOMENT) == datetime.max.replace(tzinfo=UTC)
    assert to_datetime(-(1 << 62)) == datetime.min.replace(tzinfo=UTC)
    assert to_ending(LAST_MOMENT) is not None
    assert to_ending(LAST_MOMENT + 1) is to_ending(None) is None


@given(st.integers(-(1 << 62), 1 << 62) | st.integers(0, 1 << 51))
def test_a_time_is_told_the_same_from_microseconds(micros: int) -> None:
    assert iso_of(micros) == iso(to_datetime(micros))
