"""How many messages a hand-over may have."""

from __future__ import annotations

from lazaretto.host.shared import EXPECTED, Pace


def settle_in(pace: Pace, each: float, most: int = 100, hand_overs: int = 12) -> int:
    """Return the size of the last of several hand-overs of messages that take so long."""
    size = 0
    for _ in range(hand_overs):
        size = min(most, pace.size)
        pace.note(size, size * each)
    return size


def test_it_starts_with_one_message_and_grows() -> None:
    pace = Pace()
    sizes = []
    for _ in range(5):
        sizes.append(min(100, pace.size))
        pace.note(sizes[-1], 1e-6 * sizes[-1])
    assert sizes == [1, 4, 16, 64, 100]


def test_a_hand_over_takes_as_long_as_expected() -> None:
    assert settle_in(Pace(), 0.0001) == 100
    assert settle_in(Pace(), EXPECTED / 10.5) == 10
    assert settle_in(Pace(), EXPECTED) == 1
    assert settle_in(Pace(), 60.0) == 1


def test_it_follows_a_handler_that_becomes_slower_or_faster() -> None:
    pace = Pace()
    settle_in(pace, 1e-6)
    assert settle_in(pace, 1.0, hand_overs=2) == 1
    assert settle_in(pace, 1e-6) == 100


def test_what_is_small_takes_nothing_back() -> None:
    pace = Pace()
    settle_in(pace, 1e-6)
    pace.note(1, 1e-6)
    assert pace.size >= 100


def test_the_next_waits_behind_one_that_is_quick() -> None:
    pace = Pace()
    assert not pace.is_quick(1)
    pace.note(1, EXPECTED / 4)
    assert pace.is_quick(4)
    assert not pace.is_quick(5)


def test_messages_that_run_at_once_count_as_one() -> None:
    pace = Pace(at_once=50)
    assert pace.size == 50
    pace.note(50, 10.0)
    assert pace.size == 50
    assert settle_in(Pace(at_once=50), 1e-6, most=10_000) == 10_000
