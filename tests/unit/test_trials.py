"""Which messages a client works on, and which connection tries a suspect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazaretto.model.messages import ReceivedMessage, Suspects
from lazaretto.servicebus.trials import ClientWork, Trials


def message(key: int, suspect: int = 0) -> ReceivedMessage:
    return ReceivedMessage(key, b"", "id", 0, None, b"", None, 1, 0, 0, 0, None, None, None, suspect=suspect)


def keys(messages: list[ReceivedMessage]) -> list[int]:
    return [one.key for one in messages]


@pytest.mark.parametrize(
    ("settled", "width", "working"),
    [
        ([], 0, [1, 2, 3, 4, 5, 6]),
        ([1], 1, [2]),
        ([1, 2, 3], 1, [4]),
        ([3], 3, [1, 2, 4]),
        ([3, 1, 2], 3, [4, 5, 6]),
        ([4, 3, 2, 1], 4, [5, 6]),
    ],
)
def test_settlements_show_what_is_worked_on(settled: list[int], width: int, working: list[int]) -> None:
    work = ClientWork()
    work.begin(map(message, range(1, 7)))
    for key in settled:
        work.end([message(key)], begun=True)
    assert (work.width, keys(work.split()[0])) == (width, working)


def test_a_batch_that_is_settled_in_order_shows_one_at_a_time() -> None:
    work = ClientWork()
    work.begin(map(message, range(1, 7)))
    work.end(map(message, range(1, 5)), begun=True)
    assert (work.width, keys(work.split()[0]), keys(work.split()[1])) == (1, [5], [6])


def test_what_is_given_back_shows_nothing() -> None:
    work = ClientWork()
    work.begin(map(message, range(1, 7)))
    work.end([message(6)], begun=False)
    assert (work.width, keys(work.split()[0])) == (0, [1, 2, 3, 4, 5])


def test_a_client_that_begins_with_any_works_on_all() -> None:
    work = ClientWork()
    work.begin(map(message, range(1000)))
    work.end([message(999)], begun=True)
    assert len(work.split()[0]) == 999


@given(st.integers(1, 8), st.lists(st.integers(0, 7), max_size=60))
def test_all_that_is_worked_on_is_found_once_it_was_seen(calls: int, ends: list[int]) -> None:
    """A client works on the first `calls` messages, and ends any of them."""
    work, waiting = ClientWork(), list(range(100))
    work.begin(map(message, waiting))
    at_work = [waiting.pop(0) for _ in range(calls)]
    for end in ends:
        work.end([message(at_work.pop(end % len(at_work)))], begun=True)
        at_work.append(waiting.pop(0))
    working, rest = work.split()
    assert keys(working) + keys(rest) == sorted(at_work) + waiting
    assert work.width <= calls
    if work.width == calls:
        assert keys(working) == sorted(at_work)


class Line:
    """A link that receives."""

    def __init__(self, path: str = "q") -> None:
        self.path = path
        self.holds = self.asks = False
        self.looked = self.stopped = 0

    def look(self) -> None:
        self.looked += 1

    def stop_waiting(self) -> None:
        self.stopped += 1
        self.asks = False


def connection(claims: dict[str, Trials], *lines: Line) -> Trials:
    return Trials(lambda: lines, claims)


def test_an_idle_connection_takes_suspects_first_and_others_skip_them() -> None:
    one, other = Line(), Line()
    trials = connection({}, one, other)
    assert trials.choose(one) is Suspects.FIRST
    other.asks = True
    assert trials.choose(one) is Suspects.SKIPPED
    other.asks, one.holds = False, True
    assert trials.choose(one) is Suspects.SKIPPED


def test_a_connection_makes_room_for_a_suspect_and_gets_nothing_meanwhile() -> None:
    one, other = Line(), Line()
    one.holds = other.asks = True
    trials = connection({}, one, other)
    assert trials.claim(one)
    assert (other.stopped, trials.blocks(one), trials.blocks(other)) == (1, True, True)
    trials.settled()
    assert one.looked == 0
    one.holds = False
    trials.settled()
    assert (one.looked, trials.blocks(one), trials.choose(one)) == (1, False, Suspects.FIRST)
    assert trials.take(one, [message(1, suspect=2)])
    one.holds = True
    assert trials.blocks(one)
    one.holds = False
    assert trials.take(one, [message(2)])
    assert (trials.blocks(one), trials.blocks(other), other.looked) == (False, False, 1)


def test_only_one_connection_of_a_queue_makes_room() -> None:
    claims: dict[str, Trials] = {}
    one, other, elsewhere = Line("Q"), Line("q"), Line("r")
    first, second, third = connection(claims, one), connection(claims, other), connection(claims, elsewhere)
    assert (first.claim(one), second.claim(other), third.claim(elsewhere)) == (True, False, True)
    first.end()
    assert second.claim(other)


def test_a_suspect_goes_back_unless_it_would_be_alone() -> None:
    one, other = Line(), Line()
    trials = connection({}, one, other)
    other.holds = True
    assert not trials.take(one, [message(1, suspect=1)])
    assert trials.is_tester(one)
    assert not trials.take(other, [message(2)])
    other.holds = False
    trials.settled()
    assert one.looked == 1
    assert trials.take(one, [message(1, suspect=1)])
