"""Coroutines of one batch run at the same time; what one does to their process costs only itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from lazaretto.isolation import Sandbox, SandboxOptions, Status, Verdict


def setup() -> Callable[[bytes], Coroutine[Any, Any, bytes | None]]:
    """Return a coroutine function: what it does is the item's first word."""
    import asyncio
    import contextlib
    import ctypes
    import os
    import time

    def crash() -> None:
        time.sleep(0.3)
        ctypes.string_at(0)

    async def act(item: bytes) -> bytes | None:
        what, _, rest = item.decode().partition(" ")
        if what == "nap":
            await asyncio.sleep(float(rest))
            return None
        if what == "say":
            await asyncio.sleep(0.01)
            return rest.encode()
        if what == "die":
            await asyncio.sleep(float(rest))
            os._exit(3)
        if what == "task":
            await asyncio.gather(asyncio.create_task(act(rest.encode())))
        if what == "thread":
            await asyncio.to_thread(crash)
        if what == "raise":
            await asyncio.sleep(0)
            raise ValueError(rest)
        if what == "exit":
            raise SystemExit(7)
        if what == "block":
            await asyncio.sleep(0.02)
            time.sleep(60)
        if what == "stubborn":
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
        if what == "fork":
            if os.fork() == 0:
                return b"a child"
            return b"forked"
        return None

    return act


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(setup, SandboxOptions(deadline=1.5)) as sandbox:
        yield sandbox


DONE = Verdict(Status.DONE)


def statuses(verdicts: list[Verdict]) -> list[str]:
    return [verdict.status.value for verdict in verdicts]


def test_they_run_at_the_same_time(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    assert sandbox.run([b"nap 0.5"] * 40) == [DONE] * 40
    assert time.monotonic() - begun < 10
    assert sandbox.run([b"say a", b"nap 0", b"say b"]) == [
        Verdict(Status.DONE, b"a"),
        DONE,
        Verdict(Status.DONE, b"b"),
    ]


def test_the_verdicts_on_those_that_have_ended_are_told_while_others_run(sandbox: Sandbox) -> None:
    told: list[tuple[int, Verdict]] = []
    sandbox.start([b"nap 1.2", b"say a", b"raise b"])
    verdicts = sandbox.collect(told.extend)
    assert statuses(verdicts) == ["done", "done", "error"]
    assert sorted(place for place, _ in told) == [1, 2]
    assert all(verdicts[place] == verdict for place, verdict in told)


def test_each_has_the_deadline_for_itself(sandbox: Sandbox) -> None:
    verdicts = sandbox.run([b"nap 60", b"say a", b"nap 1"])
    assert statuses(verdicts) == ["timeout", "done", "done"]
    assert verdicts[0].error_message == "no answer within 1.5 s"
    assert "asyncio.sleep" in (verdicts[0].stack or "")
    assert sandbox.deaths == 0


def test_one_that_does_not_heed_its_cancellation_is_left_alone(sandbox: Sandbox) -> None:
    assert statuses(sandbox.run([b"stubborn", b"say a"])) == ["timeout", "done"]
    assert sandbox.run([b"say b"]) == [Verdict(Status.DONE, b"b")]


def test_one_that_blocks_the_loop_is_ended_and_the_others_are_not_charged(sandbox: Sandbox) -> None:
    verdicts = sandbox.run([b"nap 1.2", b"block", b"say a"])
    assert statuses(verdicts) == ["not_run", "timeout", "done"]
    assert "time.sleep(60)" in (verdicts[1].stack or "") or "in act" in (verdicts[1].stack or "")


@pytest.mark.parametrize("killer", [b"die 0.1", b"task die 0.1"])
def test_a_death_is_charged_to_the_one_whose_step_ran(sandbox: Sandbox, killer: bytes) -> None:
    verdicts = sandbox.run([b"nap 1", b"say a", killer, b"nap 1"])
    assert statuses(verdicts) == ["not_run", "done", "crash", "not_run"]
    assert verdicts[2].exit_status == 3


def test_a_death_in_a_thread_is_charged_to_nobody_until_each_is_alone(sandbox: Sandbox) -> None:
    items = [b"nap 1", b"thread", b"nap 1"]
    assert statuses(sandbox.run(items)) == ["not_run"] * 3
    assert statuses(sandbox.run(items)) == ["done", "crash", "done"]


def test_what_one_raises_is_its_own(sandbox: Sandbox) -> None:
    verdicts = sandbox.run([b"exit", b"task exit", b"raise a", b"say b"])
    assert statuses(verdicts) == ["error", "error", "error", "done"]
    assert [v.error_type for v in verdicts[:3]] == ["SystemExit", "SystemExit", "ValueError"]
    assert sandbox.deaths == 0


def test_a_child_that_one_forks_runs_nothing_else(sandbox: Sandbox) -> None:
    verdicts = sandbox.run([b"nap 0.3", b"fork", b"say a"])
    assert verdicts == [DONE, Verdict(Status.DONE, b"forked"), Verdict(Status.DONE, b"a")]


def test_in_order_they_stop_at_the_first_failure(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    verdicts = sandbox.run([b"nap 0.2", b"nap 0.2", b"raise a", b"say b"], stop_on_failure=True)
    assert statuses(verdicts) == ["done", "done", "error", "not_run"]
    assert time.monotonic() - begun >= 0.4
    assert statuses(sandbox.run([b"say a", b"die 0.1", b"say b"], stop_on_failure=True)) == [
        "done",
        "crash",
        "not_run",
    ]


def test_told_to_stop_it_lets_them_finish_within_the_grace(sandbox: Sandbox) -> None:
    sandbox.start([b"nap 0.2", b"nap 1.4"])
    time.sleep(0.1)
    sandbox.stop(0.6)
    assert statuses(sandbox.collect()) == ["done", "not_run"]
