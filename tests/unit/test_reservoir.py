"""Which completed messages are kept: the same whatever the batches, as many of any part, and bounded."""

from __future__ import annotations

import os
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from lazaretto.model.reservoir import Kept, _chosen, _is_chosen, choose, superfluous

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))


def test_what_is_chosen_at_a_level_is_among_what_is_chosen_below_it() -> None:
    for level in range(2, 10):
        below = {_chosen(block, level - 1) for block in range(200)}
        assert {_chosen(block, level) for block in range(100)} <= below


@given(st.integers(1, 1 << 34), st.lists(st.integers(1, 400), min_size=1, max_size=20), st.randoms())
@settings(max_examples=200, deadline=None)
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
