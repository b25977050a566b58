"""Followers of the event log: none misses an event behind a position it has seen, whoever commits when."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from forked import Forked

import lazaretto
from lazaretto import Broker, Event, Message
from lazaretto.broker.broker import store_of

from .event_child import main

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
PROCESSES = 4
#: Rounds of events of each process.
ROUNDS = 400 if SOAK else 10
PATIENCE = 120


class Pause:
    """Stops a broker in its next commit: all is written, and nothing is committed yet."""

    def __init__(self, broker: Broker) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        store: Any = store_of(broker)
        if "sqlite" in broker.facts():
            commits, name = store, "_save"
        else:
            commits, name = store._commits, "finish_with"
        commit = getattr(commits, name)

        def pause(*arguments: Any, **named: Any) -> Any:
            if arguments:
                # What was sent ahead is with the server when it has answered.
                arguments[0].execute("SELECT 1").fetchone()
            self.reached.set()
            assert self.go_on.wait(PATIENCE)
            return commit(*arguments, **named)

        setattr(commits, name, pause)


@pytest.mark.parametrize("sql", [False, True], ids=["own commit", "with SQL"])
def test_a_commit_that_is_held_open_hides_no_event_behind_later_ones(place: str, sql: bool) -> None:
    with lazaretto.connect(place) as slow, lazaretto.connect(place) as quick:
        if sql and "sqlite" in slow.facts():
            pytest.skip("whoever runs SQL has the file for itself")
        for path in ("slow", "quick"):
            slow.create_queue(path)
            slow.sender(path).send(Message(b""))

        def end(broker: Broker, path: str, paused: Callable[[], object] = bool) -> None:
            with broker.transaction() as tx:
                messages = tx.receive(path)
                paused()
                if sql:
                    tx.execute("SELECT 1")
                tx.dead_letter(messages)

        pauses: list[Pause] = []
        first = threading.Thread(target=end, args=(slow, "slow", lambda: pauses.append(Pause(slow))))
        first.start()
        end_by = time.monotonic() + PATIENCE
        while not pauses or not pauses[0].reached.is_set():
            assert time.monotonic() < end_by
            time.sleep(0.001)
        second = threading.Thread(target=end, args=(quick, "quick"))
        second.start()
        # Long enough to commit, if nothing keeps it from that.
        second.join(0.5)
        seen = quick.events(0)
        pauses[0].go_on.set()
        for thread in (first, second):
            thread.join(PATIENCE)
            assert not thread.is_alive()
        seen += quick.events(seen[-1].position)
        assert seen == quick.events(0)
        assert [e.kind for e in seen].count("dead_lettered") == 2


def test_followers_miss_nothing_while_processes_race(place: str) -> None:
    with lazaretto.connect(place) as broker, lazaretto.connect(place) as other:
        broker.create_queue("shared")
        followed: list[list[Event]] = [[], [], []]
        over = threading.Event()

        def follow(broker: Broker, found: list[Event], wait: float) -> None:
            position = 0
            while some := broker.events(position, max_wait=wait, limit=50) or not over.is_set():
                if isinstance(some, list):
                    found += some
                    position = some[-1].position

        threads = [
            threading.Thread(target=follow, args=arguments, daemon=True)
            for arguments in zip((broker, other, other), followed, (5.0, 5.0, 0.0), strict=True)
        ]
        for thread in threads:
            thread.start()
        processes = [Forked(main, place, str(n), ROUNDS) for n in range(PROCESSES)]
        codes = [process.wait(PATIENCE if not SOAK else 10 * PATIENCE) for process in processes]
        assert codes == [0] * PROCESSES
        time.sleep(0.1)
        over.set()
        broker.create_queue("end")
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        everything = [event for event in _all(broker) if event.queue != "end"]
        for found in followed:
            assert [event for event in found if event.queue != "end"] == everything
        assert sum(event.kind == "dead_lettered" for event in everything) == PROCESSES * ROUNDS * 2


def _all(broker: Broker) -> list[Event]:
    found: list[Event] = []
    while some := broker.events(found[-1].position if found else 0):
        found += some
    return found
