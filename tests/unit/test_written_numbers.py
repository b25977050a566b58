"""Sequence numbers as clients of Service Bus get them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazaretto.servicebus.plain_messages import read_number, written_number


@pytest.mark.parametrize(
    ("number", "written"),
    [(0, 0), (1, 1), ((1 << 36) - 1, (1 << 36) - 1), (1 << 36, 1 << 48), ((15 << 36) + 7, (15 << 48) + 7)],
)
def test_the_partition_is_in_the_highest_bits(number: int, written: int) -> None:
    assert written_number(number) == written


@given(st.lists(st.integers(0, (1 << 44) - 1)))
def test_they_read_back_and_keep_their_order(numbers: list[int]) -> None:
    written = [written_number(number) for number in numbers]
    assert [read_number(number) for number in written] == numbers
    assert sorted(written) == [written_number(number) for number in sorted(numbers)]


def test_a_number_between_partitions_is_behind_all_of_the_first() -> None:
    assert read_number(1 << 40) == (1 << 36) - 1
