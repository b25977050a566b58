"""Forks of the process, which wait for what threads of a broker do, but not for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest
from patience import wait_until

import lazaretto.aio
from lazaretto.store.runtime import forks
from lazaretto.store.runtime.forks import at_rest, at_work

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let forks wait longer than any thread needs."""
    monkeypatch.setattr(forks, "_PATIENCE", 120.0)


@pytest.fixture
def no_patience(patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let them wait no longer than a test may."""
    monkeypatch.setattr(forks, "_PATIENCE", 0.5)


def fork(code: int = 0) -> int:
    """Fork a child that works and forks itself; return how it ended."""
    pid = os.fork()
    if pid == 0:
        try:
            with at_work():
                pass
            if os.fork() == 0:
                os._exit(0)
            os._exit(code)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Worker(threading.Thread):
    """A thread at work, which rests when it is told to."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.begun, self.rests, self.over = threading.Event(), threading.Event(), threading.Event()
        self.rested = False

    def run(self) -> None:
        with at_work():
            self.begun.set()
            self.rests.wait(120)
            self.rested = True
            with at_rest():
                self.over.wait(120)


def test_a_fork_waits_until_threads_rest() -> None:
    workers = [Worker(), Worker()]
    for worker in workers:
        worker.start()
        assert worker.begun.wait(120)
    timers = [threading.Timer(0.05 * n, worker.rests.set) for n, worker in enumerate(workers, 1)]
    for timer in timers:
        timer.start()
    assert fork(7) == 7
    assert [worker.rested for worker in workers] == [True, True]
    for worker in workers:
        worker.over.set()
        worker.join(120)
    assert fork() == 0


@pytest.mark.usefixtures("no_patience")
def test_a_fork_does_not_wait_for_ever_for_a_thread_that_waits_for_the_one_that_forks() -> None:
    worker = Worker()
    worker.start()
    assert worker.begun.wait(120)
    assert fork(7) == 7
    assert not worker.rested
    worker.rests.set()
    worker.over.set()
    worker.join(120)
    assert worker.rested


@pytest.mark.usefixtures("no_patience")
def test_a_fork_that_waited_in_vain_is_not_followed_by_others_that_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker()
    worker.start()
    assert worker.begun.wait(120)
    assert fork() == 0
    # Who waits from now on does so beyond the test's end.
    monkeypatch.setattr(forks, "_PATIENCE", 3600.0)
    for _ in range(4):
        assert fork() == 0
    worker.rests.set()
    worker.over.set()
    worker.join(120)


def test_who_interrupts_a_fork_that_waits_is_heard() -> None:
    worker = Worker()
    worker.start()
    assert worker.begun.wait(120)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_until(lambda: main in forks._forks._forking)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        fork()
    worker.rests.set()
    worker.over.set()
    worker.join(120)
    with at_work():
        pass
    assert fork(7) == 7


def test_a_fork_waits_for_what_coroutines_have_done_in_threads(tmp_path: Path) -> None:
    begun, rests, done = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        rests.wait(120)
        done.append("work")

    async def go() -> None:
        async with await lazaretto.aio.connect(tmp_path / "one.db") as broker:
            working = asyncio.ensure_future(broker._call(work))  # type: ignore[attr-defined]
            await asyncio.to_thread(begun.wait, 60)
            threading.Timer(0.5, rests.set).start()
            assert await asyncio.to_thread(fork, 5) == 5
            assert done == ["work"]
            await working

    asyncio.run(go())
