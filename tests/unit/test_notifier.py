"""The notifier that wakes whoever waits for news."""

from __future__ import annotations

import threading
import time

import pytest

from lazaretto.errors import BrokerClosed
from lazaretto.store.runtime.notifier import Notifier


class Waiter(threading.Thread):
    """Waits at a place, and keeps what came of it."""

    def __init__(self, notifier: Notifier, place: int, seconds: float = 30, alike: str | None = None) -> None:
        super().__init__(daemon=True)
        self.notifier, self.place, self.seconds, self.alike = notifier, place, seconds, alike
        self.seen = notifier.count(place)
        self.found: bool | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.found = self.notifier.wait(self.place, self.seen, self.seconds, self.alike)
        except Exception as error:
            self.error = error


def _await_waiting(notifier: Notifier, count: int) -> None:
    end = time.monotonic() + 120
    while notifier.waiting < count:
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def notifier() -> Notifier:
    return Notifier(lambda: None)


def test_news_that_came_before_the_wait_is_not_missed(notifier: Notifier) -> None:
    seen = notifier.count(5)
    notifier.notify({5: 1})
    assert notifier.wait(5, seen, 0)


def test_the_time_may_run_out(notifier: Notifier) -> None:
    assert not notifier.wait(5, notifier.count(5), 0.001)
    assert notifier.waiting == 0


def test_a_ring_wakes_who_waits_there_and_nobody_else(notifier: Notifier) -> None:
    here, there = Waiter(notifier, 1), Waiter(notifier, 2)
    _await_waiting(notifier, 2)
    notifier.notify({1: 1})
    here.join(120)
    assert here.found
    assert there.is_alive()
    notifier.notify({2: 1})
    there.join(120)
    assert there.found


def test_a_ring_from_another_process_wakes_everybody(notifier: Notifier) -> None:
    waiters = [Waiter(notifier, place) for place in range(3)]
    _await_waiting(notifier, 3)
    notifier.notify_all()
    for waiter in waiters:
        waiter.join(120)
        assert waiter.found


def test_closing_wakes_everybody_for_good(notifier: Notifier) -> None:
    waiter = Waiter(notifier, 1)
    _await_waiting(notifier, 1)
    notifier.close()
    waiter.join(120)
    assert isinstance(waiter.error, BrokerClosed)
    with pytest.raises(BrokerClosed):
        notifier.wait(1, notifier.count(1), 5)


def test_the_first_to_wait_is_announced() -> None:
    calls: list[int] = []
    notifier = Notifier(lambda: calls.append(1))
    notifier.wait(1, notifier.count(1), 0)
    notifier.wait(2, notifier.count(2), 0)
    assert len(calls) == 2


def _await_woken(waiters: list[Waiter], count: int) -> None:
    end = time.monotonic() + 120
    while sum(waiter.found is not None for waiter in waiters) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_as_many_of_those_who_are_alike_as_there_are_messages(notifier: Notifier) -> None:
    waiters = [Waiter(notifier, 1, alike="any") for _ in range(20)]
    alone = Waiter(notifier, 1)
    _await_waiting(notifier, 21)
    notifier.notify({1: 3})
    _await_woken(waiters, 3)
    alone.join(120)
    assert alone.found
    assert notifier.waiting == 17
    # Who found something says so, and one more looks.
    notifier.pass_on(1, "any")
    _await_woken(waiters, 4)
    notifier.notify_all()
    _await_woken(waiters, 5)
    assert notifier.waiting == 15
    notifier.close()
    for waiter in waiters:
        waiter.join(120)
        assert not waiter.is_alive()


def test_who_is_interrupted_passes_the_wake_on(notifier: Notifier) -> None:
    class Interrupted(Exception):
        pass

    waiters = [Waiter(notifier, 1, alike="any") for _ in range(2)]
    _await_waiting(notifier, 2)
    plain = notifier.count

    def count(place: int) -> int:
        # As a signal's exception would, in whoever is woken first.
        notifier.count = plain  # type: ignore[method-assign]
        raise Interrupted

    with notifier._lock:
        notifier.count = count  # type: ignore[method-assign]
        notifier._counts[1] = 1
        notifier._wake(1, 1)
    _await_woken(waiters, 1)
    for waiter in waiters:
        waiter.join(120)
    assert [type(waiter.error) for waiter in waiters if waiter.error] == [Interrupted]
