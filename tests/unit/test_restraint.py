"""Pauses before a look, by what a process heard and did."""

from __future__ import annotations

from lazaretto.store.postgres.restraint import LONGEST_PAUSE, SHORTEST_PAUSE, Restraint


def _pauses(*asked: tuple[int, int]) -> list[float]:
    """Return the pause before each look, for (commits heard, version of the own last commit)."""
    restraint = Restraint()
    return [restraint.before_looking(heard, version) for heard, version in asked]


def test_without_news_it_never_waits() -> None:
    assert _pauses((0, 7), (0, 7), (0, 7)) == [0, 0, 0]


def test_whoever_found_something_looks_at_once() -> None:
    assert _pauses((1, 7), (2, 9), (3, 11)) == [0, 0, 0]


def test_whoever_found_nothing_waits_a_little_and_each_time_longer_up_to_a_limit() -> None:
    _, *pauses = _pauses(*((heard, 7) for heard in range(1, 9)))
    longest = [min(SHORTEST_PAUSE * 2**i, LONGEST_PAUSE) for i in range(7)]
    assert all(limit * 0.5 <= pause <= limit * 1.5 for pause, limit in zip(pauses, longest, strict=True))


def test_finding_something_ends_the_wait() -> None:
    *_, before, after = _pauses((1, 7), (2, 7), (3, 7), (4, 7), (5, 8))
    assert before > 0
    assert after == 0


def test_two_processes_seldom_wait_equally_long() -> None:
    assert len({_pauses((1, 7), (2, 7))[1] for _ in range(10)}) > 1
