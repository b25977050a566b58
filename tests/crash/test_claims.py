"""Drivers of claims are killed while they settle: each message is completed once, and all of them go."""

from __future__ import annotations

import os
import signal
from collections import Counter
from multiprocessing import Pipe

from forked import Forked

import lazaretto
from lazaretto import Message
from lazaretto.engine.timers import Sweep

from .claim_child import CLAIM, POINTS, main

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))


def _run(store: str, point: str, count: int) -> int:
    """Let a driver work until it kills itself, or is done; return how it ended."""
    ready, told = Pipe(duplex=False)
    with ready, told, Forked(main, store, point, count, told) as process:
        ended = process.wait(120)
    assert ended in (0, -signal.SIGKILL)
    return ended


def test_killed_while_they_settle(place: str) -> None:
    messages = (20 if SOAK else 8) * CLAIM
    with lazaretto.connect(place) as broker:
        broker.create_queue("q")
        for _ in range(0, messages, CLAIM):
            broker.sender("q").send([Message(b"x")] * CLAIM)
        kills = 0
        for number, point in enumerate(list(POINTS) * (5 if SOAK else 1)):
            kills += _run(place, point, 1 + number % 5) != 0
            assert broker.check() == []
        assert kills == len(POINTS) * (5 if SOAK else 1)
        assert _run(place, "none", 0) == 0
        while broker._store.run(Sweep()):
            pass
        counts = broker.queue("q").counts
        assert (counts.total, counts.dead_letter) == (messages // 100, messages // 100)
        outcomes: Counter[str] = Counter()
        for event in broker.events(0, kind="claim_settled"):
            outcomes.update(event.detail["outcomes"])
        assert outcomes == {"completed": messages - messages // 100, "dead_lettered": messages // 100}
        assert {one.lease_until for one in broker.claims("q")} == {None}
        assert broker.check() == []
