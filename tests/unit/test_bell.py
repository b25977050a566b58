"""The bell that wakes whoever waits for news."""

from __future__ import annotations

import threading
import time

import pytest

from lazaretto.errors import BrokerClosed
from lazaretto.store.runtime.notifier import Bell


class Waiter(threading.Thread):
    """Waits at a place, and keeps what came of it."""

    def __init__(self, bell: Bell, place: int, seconds: float = 30, alike: str | None = None) -> None:
        super().__init__(daemon=True)
        self.bell, self.place, self.seconds, self.alike = bell, place, seconds, alike
        self.seen = bell.count(place)
        self.found: bool | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.found = self.bell.wait(self.place, self.seen, self.seconds, self.alike)
        except Exception as error:
            self.error = error


def _await_waiting(bell: Bell, count: int) -> None:
    end = time.monotonic() + 30
    while bell.waiting < count:
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def bell() -> Bell:
    return Bell(lambda: None)


def test_news_that_came_before_the_wait_is_not_missed(bell: Bell) -> None:
    seen = bell.count(5)
    bell.ring({5: 1})
    assert bell.wait(5, seen, 0)


def test_the_time_may_run_out(bell: Bell) -> None:
    assert not bell.wait(5, bell.count(5), 0.001)
    assert bell.waiting == 0


def test_a_ring_wakes_who_waits_there_and_nobody_else(bell: Bell) -> None:
    here, there = Waiter(bell, 1), Waiter(bell, 2)
    _await_waiting(bell, 2)
    bell.ring({1: 1})
    here.join(30)
    assert here.found
    assert there.is_alive()
    bell.ring({2: 1})
    there.join(30)
    assert there.found


def test_a_ring_from_another_process_wakes_everybody(bell: Bell) -> None:
    waiters = [Waiter(bell, place) for place in range(3)]
    _await_waiting(bell, 3)
    bell.ring_all()
    for waiter in waiters:
        waiter.join(30)
        assert waiter.found


def test_closing_wakes_everybody_for_good(bell: Bell) -> None:
    waiter = Waiter(bell, 1)
    _await_waiting(bell, 1)
    bell.close()
    waiter.join(30)
    assert isinstance(waiter.error, BrokerClosed)
    with pytest.raises(BrokerClosed):
        bell.wait(1, bell.count(1), 5)


def test_the_first_to_wait_is_announced() -> None:
    calls: list[int] = []
    bell = Bell(lambda: calls.append(1))
    bell.wait(1, bell.count(1), 0)
    bell.wait(2, bell.count(2), 0)
    assert len(calls) == 2


def _await_woken(waiters: list[Waiter], count: int) -> None:
    end = time.monotonic() + 30
    while sum(waiter.found is not None for waiter in waiters) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_as_many_of_those_who_are_alike_as_there_are_messages(bell: Bell) -> None:
    waiters = [Waiter(bell, 1, alike="any") for _ in range(20)]
    alone = Waiter(bell, 1)
    _await_waiting(bell, 21)
    bell.ring({1: 3})
    _await_woken(waiters, 3)
    alone.join(30)
    assert alone.found
    assert bell.waiting == 17
    # Who found something says so, and one more looks.
    bell.pass_on(1, "any")
    _await_woken(waiters, 4)
    bell.ring_all()
    _await_woken(waiters, 5)
    assert bell.waiting == 15
    bell.close()
    for waiter in waiters:
        waiter.join(30)
        assert not waiter.is_alive()


def test_who_is_interrupted_passes_the_wake_on(bell: Bell) -> None:
    class Interrupted(Exception):
        pass

    waiters = [Waiter(bell, 1, alike="any") for _ in range(2)]
    _await_waiting(bell, 2)
    plain = bell.count

    def count(place: int) -> int:
        # As a signal's exception would, in whoever is woken first.
        bell.count = plain  # type: ignore[method-assign]
        raise Interrupted

    with bell._lock:
        bell.count = count  # type: ignore[method-assign]
        bell._counts[1] = 1
        bell._wake(1, 1)
    _await_woken(waiters, 1)
    for waiter in waiters:
        waiter.join(30)
    assert [type(waiter.error) for waiter in waiters if waiter.error] == [Interrupted]
