"""Two attempts of one task at the same time: what is settled and what stands in the results are the same."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lazaretto import Broker, Message

from .acts import act_first, act_second
from .driver import Driver, seen

COUNT = 12


@pytest.mark.parametrize("winner", ["first", "second"])
@pytest.mark.parametrize("reads", [0, 1])
def test_of_two_attempts_one_is_settled_and_seen(
    broker: Broker, url: str, tmp_path: Path, winner: str, reads: int
) -> None:
    folder, gate, begun = tmp_path / "results", tmp_path / "gate", tmp_path / "begun"
    os.mkfifo(begun)
    bodies = [b"%d" % n for n in range(COUNT)]
    bodies[4] = os.fsencode(tmp_path)
    numbers = broker.sender("work").send([Message(body) for body in bodies])
    driver = Driver(broker, url, folder)
    taken = driver.take()
    assert taken is not None
    claim: int = taken
    ((_, shard),) = driver.consumer.shards(0, claim)
    for _ in range(reads):
        # An attempt that has died: now messages are run one at a time, and noted.
        driver.consumer.start(shard.token, "a task")
    told: dict[str, list[dict[str, Any]]] = {}
    with gate.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        slow = threading.Thread(target=lambda: told.update(first=driver.attempt(claim, act_first, 90)))
        slow.start()
        # It is in the middle of its work; a second attempt does all of it.
        begun.read_bytes()
        told["second"] = driver.attempt(claim, act_second, 91)
        if winner == "second":
            driver.settle(told["second"])
    slow.join()
    if winner == "first":
        driver.settle(told["first"])
    while (following := driver.take()) is not None:
        driver.settle(driver.attempt(following, act_second, 91))
    dead = [letter.sequence_number for letter in broker.dead_letters("work")]
    results = seen(folder)
    assert sorted([*dead, *(number for number, _ in results)]) == numbers
    assert sorted((int(m.body), m.subject) for m in broker.peek("out", 100)) == results
    assert broker.queue("work").counts.total == len(dead)
    # The attempts differ in whether messages fail, and what is seen is of one of them.
    assert len({text for _, text in results}) == 1 or reads
    assert not list(folder.glob("claim=*/_stage-*")) or winner == "second"
