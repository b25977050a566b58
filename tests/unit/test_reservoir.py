"""Which completed messages are kept: the same whatever the batches, as many of any part, and bounded."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazaretto.model.reservoir import (
    BYTES_EACH,
    Kept,
    _chosen,
    _is_chosen,
    choose,
    is_time_to_look,
    superfluous,
    unfair,
)

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))


def test_what_is_chosen_at_a_level_is_among_what_is_chosen_below_it() -> None:
    for level in range(2, 10):
        below = {_chosen(block, level - 1) for block in range(200)}
        assert {_chosen(block, level) for block in range(100)} <= below


@given(st.integers(1, 1 << 34), st.lists(st.integers(1, 400), min_size=1, max_size=20), st.randoms())
@settings(max_examples=200 if SOAK else 50, deadline=None)
def test_the_same_are_chosen_whatever_the_batches(start: int, sizes: list[int], r: random.Random) -> None:
    keys = [(7 << 44) + start + n for n in range(sum(sizes))]
    alone = {key for key in keys if choose([key])}
    together = []
    given_keys = keys[:]
    for size in sizes:
        batch, given_keys = given_keys[:size], given_keys[size:]
        r.shuffle(batch)
        together += choose(batch)
    assert sorted(together) == sorted(alone)
    some = r.sample(keys, len(keys) // 2 + 1)
    assert sorted(choose(some)) == sorted(alone & set(some))


def test_as_many_are_chosen_of_each_partition_as_of_a_queue_without() -> None:
    numbers = range(1, 5_000)
    alone = {n for n in numbers if choose([(7 << 44) + n])}
    parted = [(7 << 44) + (partition << 36) + n for n in numbers for partition in range(3)]
    chosen = choose(parted)
    assert sorted(chosen) == sorted((7 << 44) + (p << 36) + n for n in alone for p in range(3))
    assert sorted(key for key in parted if choose([key])) == sorted(chosen)


def test_one_of_each_block_is_chosen_without_bias_by_place() -> None:
    blocks = 65_536 if SOAK else 16_384
    level = 6
    counts = [0] * 64
    for block in range(blocks):
        place = _chosen(block, level) - (block << level)
        counts[place] += 1
    expected = blocks / 64
    chi_squared = sum((count - expected) ** 2 / expected for count in counts)
    # 63 degrees of freedom: above 103.4 once in a thousand.
    assert chi_squared < 103.4


def test_any_period_of_the_work_is_kept_alike() -> None:
    # Messages that come in turn from 7 senders: none of them is kept more often.
    counts = [0] * 7
    for key in choose([(3 << 44) + n for n in range(1, 130_000)]):
        counts[key % 7] += 1
    expected = sum(counts) / 7
    assert sum((count - expected) ** 2 / expected for count in counts) < 22.5


def test_what_is_too_much_goes_by_level_and_age() -> None:
    day = 86_400_000_000
    keys = choose([(3 << 44) + n for n in range(1, 100_000)])
    kept = [Kept(key, n * 10 * day // len(keys), 500) for n, key in enumerate(keys)]
    assert superfluous(kept, len(kept), 10 * day) == []
    gone = set(superfluous(kept, 120, 10 * day))
    left = [one for one in kept if one.key not in gone]
    assert len(left) == 90
    last, before = (sum(1 for one in left if (10 * day - one.kept) // day == age) for age in (0, 3))
    assert last > 2 * before
    large = [one._replace(size=60_000) for one in kept]
    held = set(superfluous(large, 400, 10 * day))
    assert sum(one.size for one in large if one.key not in held) <= 400 * 2_048


def test_the_rarest_level_still_finds_its_numbers() -> None:
    assert all(_is_chosen(_chosen(block, 20), 20) for block in range(50))


#: Above these once in ten thousand, by degrees of freedom.
CRITICAL = {1: 15.14, 2: 18.42, 4: 23.51, 6: 27.86, 7: 29.88, 9: 33.72, 15: 44.26, 23: 56.0, 59: 105.2}


def _chi_squared(counts: list[int]) -> float:
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 / expected for count in counts)


@pytest.mark.parametrize("period", [2, 3, 5, 7, 8, 10, 16, 24, 60])
def test_no_place_in_a_cycle_is_kept_more_often(period: int) -> None:
    counts = [0] * period
    for start in range(1 << 17, 1 << (21 if SOAK else 19), 1 << 17):
        for key in choose([(3 << 44) + n for n in range(start, start + (1 << 17))]):
            counts[key % period] += 1
    assert _chi_squared(counts) < CRITICAL[period - 1]


def _replay(seed: int, most: int, *, shuffled: bool) -> tuple[list[Kept], int]:
    """Complete messages in batches; return what is left the last time some go, and the most there was."""
    r, other = random.Random(seed), random.Random(7)
    kept: dict[int, Kept] = {}
    left: list[Kept] = []
    highest, number, now = 0, 1, 0
    while number < (400_000 if SOAK else 100_000):
        size = r.randint(1, 500)
        batch = [(3 << 44) + n for n in range(number, number + size)]
        number, now = number + size, now + 1_000 * size
        if shuffled:
            other.shuffle(batch)
        chosen = choose(batch)
        for key in chosen:
            kept[key] = Kept(key, now, 100 + key % 700)
        highest = max(highest, len(kept))
        gone = superfluous(list(kept.values()), most, now) if is_time_to_look(chosen) else []
        for key in gone:
            del kept[key]
        if gone:
            left = sorted(kept.values())
    return left, highest


def test_what_is_kept_is_bounded_without_bias_by_time_and_the_same_in_a_replay() -> None:
    most, thirds = 200, [0] * 3
    for seed in range(20 if SOAK else 5):
        left, highest = _replay(seed, most, shuffled=False)
        assert highest <= 2 * most
        assert sum(one.size for one in left) <= most * BYTES_EACH
        assert _replay(seed, most, shuffled=True)[0] == left
        end = left[-1].key - (3 << 44) + 1
        for one in left:
            thirds[(one.key - (3 << 44)) * 3 // end] += 1
    assert _chi_squared(thirds) < CRITICAL[2], thirds


def test_what_is_read_between_two_looks_is_without_bias_by_time() -> None:
    most, thirds, raw, sizes = 200, [0] * 3, [0] * 3, []
    for seed in range(40 if SOAK else 20):
        r = random.Random(seed)
        # Read at any moment, after several times at which some went.
        end = r.randint(60_000, 100_000)
        kept: dict[int, Kept] = {}
        for number in range(1, end, 100):
            chosen = choose([(3 << 44) + n for n in range(number, number + 100)])
            kept |= {key: Kept(key, number, 100) for key in chosen}
            for key in superfluous(list(kept.values()), most, number) if is_time_to_look(chosen) else []:
                del kept[key]
        gone = set(unfair(list(kept.values()), most, end))
        sizes.append(len(kept) - len(gone))
        for one in kept.values():
            third = min(2, (one.key - (3 << 44)) * 3 // end)
            raw[third] += 1
            thirds[third] += one.key not in gone
    assert _chi_squared(thirds) < CRITICAL[2], thirds
    assert _chi_squared(raw) > CRITICAL[2], "the last third would be kept more often"
    assert min(sizes) >= most // 2
    assert max(sizes) <= 0.75 * most
