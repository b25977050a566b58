"""Which partition a message goes to, and from which one a process takes: no store is needed."""

from __future__ import annotations

import itertools
from collections import deque

import pytest

from lazaretto.model.keys import lane_of, lanes_of, lower_bound, queue_of_lane, upper_bound
from lazaretto.model.partitions import LOOK_EVERY, SLACK, Rounds, partition_of

_TICK = 10_000


def test_the_hash_of_a_key_never_changes() -> None:
    assert [partition_of(key, 16) for key in ("", "a", "customer-7", "ä")] == [4, 15, 10, 9]


def test_lanes_share_out_the_keys_of_a_queue() -> None:
    lanes = lanes_of(5, 64)
    assert len(set(lanes)) == 64
    for lane in lanes:
        assert queue_of_lane(lane) == 5
        assert lane_of(lower_bound(lane) + 1, 64) == lane == lane_of(upper_bound(lane), 64)
        assert lower_bound(5) <= lower_bound(lane) < upper_bound(lane) <= upper_bound(5)
    assert all(upper_bound(one) + 1 == lower_bound(other) for one, other in itertools.pairwise(lanes))
    assert lanes_of(5, 1) == (5,) == (lane_of(upper_bound(5), 1),)


@pytest.mark.parametrize("hosts", [1, 2, 5])
@pytest.mark.parametrize("served", [30, 40])
def test_no_partition_is_left_behind(hosts: int, served: int) -> None:
    """Every partition gets as many messages, more than are taken or as many; each host has its home."""
    partitions = 16
    waiting: list[deque[int]] = [deque() for _ in range(partitions)]
    rounds = [Rounds(3 * host, partitions) for host in range(hosts)]
    worst, credit, now = 0, 0.0, 0
    for tick in range(2_000):
        now = tick * _TICK
        waiting[tick % partitions].append(now)
        waiting[(tick * 7 + 3) % partitions].append(now)
        credit += 2 * served / 40
        while credit >= 1:
            credit -= 1
            own = rounds[tick % hosts]
            if own.needs_look(now):
                own.note_look([queue[0] if queue else None for queue in waiting], now)
            for partition in own.order():
                queue = waiting[partition]
                taken = queue.popleft() if queue else None
                own.note_taken(partition, taken, any_taken=taken is not None)
                if taken is not None:
                    oldest = min((left[0] for left in waiting if left), default=taken)
                    worst = max(worst, taken - oldest)
                    break
    assert worst <= SLACK + SLACK + LOOK_EVERY
    assert worst < 1_000_000


def test_home_comes_first_unless_others_have_waited_longer() -> None:
    rounds = Rounds(2, 4)
    rounds.note_look([1_000, None, 1_000 + SLACK, 500], 0)
    assert rounds.order() == [3, 0, 2]
    rounds.note_look([1_000, None, 900 + SLACK, 900], 0)
    assert rounds.order()[0] == 2


def test_what_turned_out_wrong_is_looked_at_again() -> None:
    rounds = Rounds(0, 2)
    assert rounds.needs_look(0)
    rounds.note_look([5, 5], 10)
    assert not rounds.needs_look(10)
    assert rounds.needs_look(10 + LOOK_EVERY)
    assert rounds.needs_look(9)
    rounds.note_taken(0, None, any_taken=False)
    assert rounds.needs_look(10)
    rounds.note_look([None, None], 10)
    assert rounds.needs_look(10)
    rounds.note_sent(1, 10)
    assert not rounds.needs_look(10)
    assert rounds.order() == [1]
