"""Coroutines of one batch run at the same time; what one does to their process costs only itself.

An item is steps, such as `wait a, touch b, die`; who goes first is decided by files that they wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until

from lazaretto.isolation import Sandbox, SandboxOptions, Status, Verdict

#: A deadline that tests wait for in full, and in which whatever is not to meet it ends many times over.
DEADLINE = 4.0


def setup() -> Callable[[bytes], Coroutine[Any, Any, bytes | None]]:
    """Return a coroutine function that does an item's steps."""
    import asyncio
    import contextlib
    import ctypes
    import os
    import threading
    import time

    present = 0

    def crash_after(event: threading.Event) -> None:
        event.wait()
        ctypes.string_at(0)

    async def act(item: bytes) -> bytes | None:
        nonlocal present
        for step in item.decode().split(", "):
            what, _, rest = step.partition(" ")
            if what == "wait":
                while not Path(rest).exists():
                    await asyncio.sleep(0.005)
            if what == "touch":
                # If it is the last step, the item's end is recorded before any other goes on.
                Path(rest).touch()
            if what == "meet":
                present += 1
                while present < int(rest):
                    await asyncio.sleep(0.005)
            if what == "alone":
                present += 1
                await asyncio.sleep(0.05)
                if present > 1:
                    raise RuntimeError("not alone")
                present -= 1
            if what == "pause":
                await asyncio.sleep(0.01)
            if what == "die":
                await asyncio.sleep(0)
                os._exit(3)
            if what == "task":
                await asyncio.gather(asyncio.create_task(act(rest.encode())))
            if what == "thread":
                left = threading.Event()
                # Not while the step of this item runs: it is known who runs then.
                asyncio.get_running_loop().call_soon(left.set)
                await asyncio.to_thread(crash_after, left)
            if what == "raise":
                await asyncio.sleep(0)
                raise ValueError(rest)
            if what == "exit":
                raise SystemExit(7)
            if what == "block":
                time.sleep(3600)
            if what == "stubborn":
                while True:
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(60)
            if what == "fork":
                return b"a child" if os.fork() == 0 else b"forked"
            if what == "say":
                return rest.encode()
        return None

    return act


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let items find their files."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(setup, SandboxOptions(deadline=120)) as sandbox:
        yield sandbox


@pytest.fixture
def brief() -> Iterator[Sandbox]:
    with Sandbox(setup, SandboxOptions(deadline=DEADLINE)) as sandbox:
        yield sandbox


DONE = Verdict(Status.DONE)


def statuses(verdicts: list[Verdict]) -> list[str]:
    return [verdict.status.value for verdict in verdicts]


def test_they_run_at_the_same_time(sandbox: Sandbox) -> None:
    assert sandbox.run([b"meet 40"] * 40) == [DONE] * 40
    assert sandbox.run([b"pause, say a", b"pause", b"say b"]) == [
        Verdict(Status.DONE, b"a"),
        DONE,
        Verdict(Status.DONE, b"b"),
    ]


def test_the_verdicts_on_those_that_have_ended_are_told_while_others_run(sandbox: Sandbox) -> None:
    told: list[tuple[int, Verdict]] = []

    def note(some: list[tuple[int, Verdict]]) -> None:
        told.extend(some)
        if len(told) == 2:
            Path("told").touch()

    sandbox.start([b"wait told", b"pause, say a", b"raise b"])
    verdicts = sandbox.collect(note)
    assert statuses(verdicts) == ["done", "done", "error"]
    # Only after the two could the first end; whether it is told before the batch is over is open.
    assert sorted(place for place, _ in told[:2]) == [1, 2]
    assert all(verdicts[place] == verdict for place, verdict in told)


def test_each_has_the_deadline_for_itself(brief: Sandbox) -> None:
    verdicts = brief.run([b"wait never", b"say a", b"pause, pause"])
    assert statuses(verdicts) == ["timeout", "done", "done"]
    assert verdicts[0].error_message == f"no answer within {DEADLINE:g} s"
    assert "asyncio.sleep" in (verdicts[0].stack or "")
    assert brief.deaths == 0


def test_one_that_does_not_heed_its_cancellation_is_left_alone(brief: Sandbox) -> None:
    assert statuses(brief.run([b"stubborn", b"pause, say a"])) == ["timeout", "done"]
    assert brief.run([b"say b"]) == [Verdict(Status.DONE, b"b")]


def test_one_that_blocks_the_loop_is_ended_and_the_others_are_not_charged(brief: Sandbox) -> None:
    verdicts = brief.run([b"wait never", b"wait others, block", b"pause, touch others"])
    assert statuses(verdicts) == ["not_run", "timeout", "done"]
    assert "in act" in (verdicts[1].stack or "")


@pytest.mark.parametrize("killer", [b"die", b"task die"])
def test_a_death_is_charged_to_the_one_whose_step_ran(sandbox: Sandbox, killer: bytes) -> None:
    items = [b"wait never", b"wait last, touch others", b"wait others, " + killer, b"touch last, wait never"]
    verdicts = sandbox.run(items)
    assert statuses(verdicts) == ["not_run", "done", "crash", "not_run"]
    assert verdicts[2].exit_status == 3


def test_a_death_in_a_thread_is_charged_to_nobody_until_each_is_alone(sandbox: Sandbox) -> None:
    items = [b"wait apart", b"wait last, thread", b"touch last, wait apart"]
    assert statuses(sandbox.run(items)) == ["not_run"] * 3
    Path("apart").touch()
    assert statuses(sandbox.run(items)) == ["done", "crash", "done"]


def test_what_one_raises_is_its_own(sandbox: Sandbox) -> None:
    verdicts = sandbox.run([b"exit", b"task exit", b"raise a", b"pause, say b"])
    assert statuses(verdicts) == ["error", "error", "error", "done"]
    assert [v.error_type for v in verdicts[:3]] == ["SystemExit", "SystemExit", "ValueError"]
    assert sandbox.deaths == 0


def test_a_child_that_one_forks_runs_nothing_else(sandbox: Sandbox) -> None:
    verdicts = sandbox.run([b"wait last", b"fork", b"pause, touch last, say a"])
    assert verdicts == [DONE, Verdict(Status.DONE, b"forked"), Verdict(Status.DONE, b"a")]


def test_in_order_they_stop_at_the_first_failure(sandbox: Sandbox) -> None:
    verdicts = sandbox.run([b"alone", b"alone", b"raise a", b"say b"], stop_on_failure=True)
    assert statuses(verdicts) == ["done", "done", "error", "not_run"]
    assert statuses(sandbox.run([b"say a", b"pause, die", b"say b"], stop_on_failure=True)) == [
        "done",
        "crash",
        "not_run",
    ]


def test_told_to_stop_it_lets_them_finish_within_the_grace(sandbox: Sandbox) -> None:
    sandbox.start([b"wait stopped", b"touch begun, wait never"])
    wait_until(Path("begun").exists)
    sandbox.stop(120)
    Path("stopped").touch()
    # Told again once the first has finished: the other one's grace is over half a second later.
    verdicts = sandbox.collect(lambda some: sandbox.stop(0.5))
    assert statuses(verdicts) == ["done", "not_run"]
