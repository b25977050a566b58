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
    first_key,
    in_main,
    last_key,
    main_key,
    queue_of,
    sequence_of,
)

QUEUES = st.integers(1, LAST_QUEUE)
SEQUENCES = st.integers(1, LAST_SEQUENCE)


@given(queue=QUEUES, number=SEQUENCES, subqueue=st.sampled_from(list(Subqueue)))
def test_the_parts_come_back(queue: int, number: int, subqueue: Subqueue) -> None:
    key = first_key(queue, subqueue) + number
    assert (queue_of(key), sequence_of(key)) == (queue, number)
    assert first_key(queue, subqueue) < key <= last_key(queue, subqueue)
    assert in_main(key) is (subqueue in (Subqueue.MAIN, Subqueue.RETRY))


@given(queue=QUEUES, number=SEQUENCES)
def test_a_dead_letter_keeps_its_number(queue: int, number: int) -> None:
    key = first_key(queue) + number
    dead = dead_key(key)
    assert dead == first_key(queue, Subqueue.DEAD_LETTER) + number
    assert (sequence_of(dead), main_key(dead), in_main(dead)) == (number, key, False)


@given(queue=st.integers(1, LAST_QUEUE - 1))
def test_subqueues_and_queues_do_not_overlap(queue: int) -> None:
    parts = (Subqueue.MAIN, Subqueue.DEAD_LETTER, Subqueue.TRANSFER_DEAD_LETTER)
    for part, following in itertools.pairwise(parts):
        assert last_key(queue, part) < first_key(queue, following) + 1
    assert last_key(queue, parts[-1]) < first_key(queue + 1)


def test_the_highest_key_fits_in_64_bits() -> None:
    assert last_key(LAST_QUEUE, Subqueue.TRANSFER_DEAD_LETTER) < 1 << 63


def test_messages_that_wait_for_a_retry_stay_in_their_place() -> None:
    assert first_key(5, Subqueue.RETRY) == first_key(5)
