"""Keys: queue, subqueue and sequence number in one integer."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import (
    LAST_QUEUE,
    LAST_SEQUENCE,
    dead_key,
    in_main,
    lower_bound,
    main_key,
    queue_of,
    runs_of,
    sequence_of,
    upper_bound,
)

QUEUES = st.integers(1, LAST_QUEUE)
SEQUENCES = st.integers(1, LAST_SEQUENCE)


@given(queue=QUEUES, number=SEQUENCES, subqueue=st.sampled_from(list(Subqueue)))
def test_the_parts_come_back(queue: int, number: int, subqueue: Subqueue) -> None:
    key = lower_bound(queue, subqueue) + number
    assert (queue_of(key), sequence_of(key)) == (queue, number)
    assert lower_bound(queue, subqueue) < key <= upper_bound(queue, subqueue)
    assert in_main(key) is (subqueue in (Subqueue.MAIN, Subqueue.RETRY))


@given(queue=QUEUES, number=SEQUENCES)
def test_a_dead_letter_keeps_its_number(queue: int, number: int) -> None:
    key = lower_bound(queue) + number
    dead = dead_key(key)
    assert dead == lower_bound(queue, Subqueue.DEAD_LETTER) + number
    assert (sequence_of(dead), main_key(dead), in_main(dead)) == (number, key, False)


@given(queue=st.integers(1, LAST_QUEUE - 1))
def test_subqueues_and_queues_do_not_overlap(queue: int) -> None:
    parts = (Subqueue.MAIN, Subqueue.DEAD_LETTER, Subqueue.TRANSFER_DEAD_LETTER)
    for part, following in itertools.pairwise(parts):
        assert upper_bound(queue, part) < lower_bound(queue, following) + 1
    assert upper_bound(queue, parts[-1]) < lower_bound(queue + 1)


def test_the_highest_key_fits_in_64_bits() -> None:
    assert upper_bound(LAST_QUEUE, Subqueue.TRANSFER_DEAD_LETTER) < 1 << 63


def test_messages_that_wait_for_a_retry_stay_in_their_place() -> None:
    assert lower_bound(5, Subqueue.RETRY) == lower_bound(5)


@given(keys=st.sets(st.integers(1, 60)), most=st.integers(1, 9))
def test_runs_hold_these_keys_and_no_others(keys: set[int], most: int) -> None:
    runs = runs_of(sorted(keys), most)
    assert [key for first, last in runs for key in range(first, last + 1)] == sorted(keys)
    assert all(last - first < most for first, last in runs)
    assert all(one[1] + 1 < two[0] or one[1] - one[0] == most - 1 for one, two in itertools.pairwise(runs))
