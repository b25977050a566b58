"""Group commit by itself, on a commit function that only notes what it is given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from lazaretto.errors import BrokerClosed, TransactionError
from lazaretto.store.sql import group_commit
from lazaretto.store.sql.group_commit import GroupCommit, Ticket
from lazaretto.store.sql.operation import Operation

#: Long enough for the slowest machine; a test that passes does not wait for it.
_PATIENCE = 120
#: Operations of this number and above need not wait for the disk.
_QUICK = 1_000_000


class Number(Operation[int]):
    """An operation that is told apart by a number."""

    def __init__(self, number: int) -> None:
        self.number = number


class Quick(Number):
    """One whose answer need not wait for the disk."""

    durable = False


class Commits:
    """A commit function: answers with twice the number, and keeps the groups."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.running = 0
        self.overlapped = False
        #: Called with each group before it is answered.
        self.before: Callable[[list[int]], None] = lambda numbers: None

    def __call__(self, tickets: list[Ticket]) -> None:
        self.running += 1
        self.overlapped = self.overlapped or self.running > 1
        try:
            numbers = [_number(ticket) for ticket in tickets]
            self.groups.append(numbers)
            self.before(numbers)
            for ticket in tickets:
                number = _number(ticket)
                if number < 0:
                    ticket.error = ValueError(number)
                else:
                    ticket.answer = 2 * number
        finally:
            self.running -= 1

    @property
    def seen(self) -> list[int]:
        return sorted(number for group in self.groups for number in group)


def _number(ticket: Ticket) -> int:
    assert isinstance(ticket.operation, Number)
    return ticket.operation.number


class Callers:
    """Threads that each run some numbers, and what came of them."""

    def __init__(self, group: GroupCommit, numbers: list[list[int]]) -> None:
        self.outcomes: dict[int, Any] = {}
        self._group = group
        self._threads = [threading.Thread(target=self._run, args=[mine], daemon=True) for mine in numbers]
        for thread in self._threads:
            thread.start()

    def _run(self, numbers: list[int]) -> None:
        for number in numbers:
            try:
                kind = Quick if number >= _QUICK else Number
                self.outcomes[number] = self._group.run(kind(number))
            except Exception as error:
                self.outcomes[number] = error

    def join(self) -> dict[int, Any]:
        for thread in self._threads:
            thread.join(_PATIENCE)
        assert not any(thread.is_alive() for thread in self._threads), "a caller was never answered"
        return self.outcomes


def _wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def _blocked_leader(commits: Commits) -> threading.Event:
    """Make the first commit wait for the event that is returned."""
    go = threading.Event()

    def before(numbers: list[int]) -> None:
        if len(commits.groups) == 1:
            assert go.wait(_PATIENCE)

    commits.before = before
    return go


def test_a_lone_caller_is_a_group_of_one() -> None:
    commits = Commits()
    group = GroupCommit(commits)
    assert [group.run(Number(n)) for n in (1, 2, 3)] == [2, 4, 6]
    assert commits.groups == [[1], [2], [3]]


def test_every_caller_is_answered_once_with_its_own_answer() -> None:
    commits = Commits()
    numbers = [[1000 * thread + n for n in range(100)] for thread in range(8)]
    outcomes = Callers(GroupCommit(commits), numbers).join()
    everything = sorted(n for mine in numbers for n in mine)
    assert outcomes == {n: 2 * n for n in everything}
    assert commits.seen == everything
    assert not commits.overlapped


def test_those_who_come_during_a_commit_share_the_next() -> None:
    commits = Commits()
    group = GroupCommit(commits)
    go = _blocked_leader(commits)
    first = Callers(group, [[0]])
    _wait_until(lambda: len(commits.groups) == 1)
    others = Callers(group, [[n] for n in range(1, 21)])
    _wait_until(lambda: group.waiting == 20)
    go.set()
    assert first.join() | others.join() == {n: 2 * n for n in range(21)}
    assert [len(numbers) for numbers in commits.groups] == [1, 20]


def test_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "_MOST", 256)
    commits = Commits()
    group = GroupCommit(commits)
    go = _blocked_leader(commits)
    first = Callers(group, [[0]])
    _wait_until(lambda: len(commits.groups) == 1)
    others = Callers(group, [[n] for n in range(1, 301)])
    _wait_until(lambda: group.waiting == 300)
    go.set()
    first.join()
    others.join()
    assert max(len(numbers) for numbers in commits.groups) == 256
    assert commits.seen == list(range(301))


def _two_kinds(commits: Commits, *, always_durable: bool) -> None:
    """Have three operations of each kind wait behind the first commit, one more quick one after the next."""
    group = GroupCommit(commits, always_durable=always_durable)
    go = _blocked_leader(commits)
    first = Callers(group, [[0]])
    _wait_until(lambda: len(commits.groups) == 1)
    others = Callers(group, [[1], [2], [3], [_QUICK], [_QUICK + 1], [_QUICK + 2]])
    _wait_until(lambda: group.waiting == 6)
    late: list[Callers] = []

    def one_more(numbers: list[int]) -> None:
        if len(commits.groups) == 2:
            late.append(Callers(group, [[_QUICK + 3]]))
            _wait_until(lambda: group.waiting == 7 - len(numbers))

    commits.before, blocked = one_more, commits.before
    assert blocked is not None
    go.set()
    outcomes = first.join() | others.join() | late[0].join()
    assert outcomes == {n: 2 * n for n in outcomes}
    assert len(outcomes) == 8


def test_what_need_not_wait_for_the_disk_goes_ahead_but_not_twice_in_a_row() -> None:
    commits = Commits()
    _two_kinds(commits, always_durable=False)
    quick = [_QUICK, _QUICK + 1, _QUICK + 2]
    assert [sorted(numbers) for numbers in commits.groups] == [[0], quick, [1, 2, 3, _QUICK + 3]]


def test_nothing_goes_ahead_where_all_must_be_on_disk() -> None:
    commits = Commits()
    _two_kinds(commits, always_durable=True)
    quick = [_QUICK, _QUICK + 1, _QUICK + 2]
    assert [sorted(numbers) for numbers in commits.groups] == [[0], [1, 2, 3, *quick], [_QUICK + 3]]


def test_an_error_goes_to_the_one_whose_it_is() -> None:
    commits = Commits()
    numbers = [[sign * (100 * thread + n) for n in range(1, 50) for sign in (1, -1)] for thread in range(6)]
    outcomes = Callers(GroupCommit(commits), numbers).join()
    for number, outcome in outcomes.items():
        if number < 0:
            assert isinstance(outcome, ValueError)
            assert outcome.args == (number,)
        else:
            assert outcome == 2 * number


def test_a_commit_that_fails_is_everybodys_error_and_the_next_one_works() -> None:
    commits = Commits()
    group = GroupCommit(commits)
    go = _blocked_leader(commits)
    first = Callers(group, [[0]])
    _wait_until(lambda: len(commits.groups) == 1)
    others = Callers(group, [[n] for n in range(1, 6)])
    _wait_until(lambda: group.waiting == 5)

    def fail(numbers: list[int]) -> None:
        if len(numbers) == 5:
            raise OSError("disk")

    commits.before, blocked = fail, commits.before
    assert blocked is not None
    go.set()
    assert first.join() == {0: 0}
    assert {type(outcome) for outcome in others.join().values()} == {OSError}
    assert group.run(Number(7)) == 14


def test_an_interrupt_is_for_its_own_thread_alone() -> None:
    commits = Commits()
    group = GroupCommit(commits)

    def interrupt(numbers: list[int]) -> None:
        raise KeyboardInterrupt

    commits.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        group.run(Number(1))
    commits.before = lambda numbers: None
    assert group.run(Number(2)) == 4


class TestHolding:
    """One caller keeps all others from writing."""

    def test_others_wait_and_are_answered_afterwards(self) -> None:
        commits = Commits()
        group = GroupCommit(commits)
        group.acquire()
        others = Callers(group, [[n] for n in range(5)])
        _wait_until(lambda: group.waiting == 5)
        assert commits.groups == []
        group.release()
        assert others.join() == {n: 2 * n for n in range(5)}

    def test_the_holder_cannot_run_an_operation_or_hold_again(self) -> None:
        group = GroupCommit(Commits())
        group.acquire()
        with pytest.raises(TransactionError, match="has run SQL and is open"):
            group.run(Number(1))
        with pytest.raises(TransactionError, match="end it first"):
            group.acquire()
        group.release()
        assert group.run(Number(1)) == 2

    def test_busy_callers_do_not_keep_the_holder_out(self) -> None:
        commits = Commits()
        # As long as a disk takes, so that somebody always waits for the next commit.
        commits.before = lambda numbers: time.sleep(0.001)
        group = GroupCommit(commits)
        stop, held = threading.Event(), threading.Event()

        def busy() -> None:
            while not stop.is_set():
                group.run(Number(1))

        def holder() -> None:
            for _ in range(20):
                group.acquire()
                group.release()
            held.set()

        threads = [threading.Thread(target=busy, daemon=True) for _ in range(4)]
        threads.append(threading.Thread(target=holder, daemon=True))
        for thread in threads:
            thread.start()
        came = held.wait(120)
        stop.set()
        for thread in threads:
            thread.join(_PATIENCE)
        assert came


def test_a_closed_group_refuses() -> None:
    commits = Commits()
    group = GroupCommit(commits)
    group.closed = True
    with pytest.raises(BrokerClosed):
        group.run(Number(1))
    assert commits.groups == []


def test_those_who_wait_for_the_holder_learn_that_it_closed() -> None:
    """They came while it was open, and get their turn when nothing is left to write to."""
    commits = Commits()
    group = GroupCommit(commits)
    group.acquire()
    callers = Callers(group, [[n] for n in range(8)])
    _wait_until(lambda: group.waiting == 8)
    group.closed = True
    group.release()
    assert {type(outcome) for outcome in callers.join().values()} == {BrokerClosed}
    assert not commits.groups


def test_an_operation_of_a_loop_that_comes_while_it_closes() -> None:
    """It was let in, but the thread that would write it is gone before it stands in the queue."""
    group = GroupCommit(Commits())
    group.submit(Ticket(Number(1), lambda tickets: None), lambda: None)

    class Late(Number):
        @property
        def durable(self) -> bool:  # type: ignore[override]
            group.close()
            assert group._server is not None
            group._server.join(_PATIENCE)
            return True

    told: list[Ticket] = []
    group.submit(Ticket(Late(2), told.extend), lambda: None)
    assert [type(ticket.error) for ticket in told] == [BrokerClosed]
