"""Several processes that touch the same queues in opposite orders: no deadlock, nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lazaretto
from lazaretto import Message, PoisonPolicy, QueueOptions, Rule, SqlFilter

from .deadlock_child import FRONT, QUEUES, SHOP, TALK, WORD

SECONDS = 120.0 if os.environ.get("LAZARETTO_SOAK") else 2.0
CHILD = Path(__file__).with_name("deadlock_child.py")
PROCESSES = 4
TOKENS = 60


@pytest.mark.partitioned
def test_opposite_orders(place: str, queues: str) -> None:
    with lazaretto.connect(place, timeout=60) as broker:
        policy = PoisonPolicy(receive_retry_count=1_000_000)
        broker.create_queue("a", QueueOptions(policy=policy))
        broker.create_queue("b", QueueOptions(policy=policy, requires_duplicate_detection=True))
        broker.create_queue("c", QueueOptions(policy=policy, max_size=1_000_000))
        broker.create_queue("through", QueueOptions(forward_to="b"))
        broker.create_topic("news")
        for side, target in enumerate(("c", "a")):
            rule = Rule("side", SqlFilter(f"side = {side}"))
            broker.create_subscription("news", target, QueueOptions(forward_to=target), [rule])
        dialogs = broker.dialogs
        dialogs.create_message_type(WORD)
        dialogs.create_contract(TALK, {WORD: "any"})
        dialogs.create_service(FRONT, "front")
        dialogs.create_service(SHOP, "shop", [TALK])
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE moves (place TEXT PRIMARY KEY, n INTEGER NOT NULL)")
            for path in QUEUES:
                tx.execute(f"INSERT INTO moves VALUES ('{path}', 0)")
        bodies = [b"%d" % n for n in range(TOKENS)]
        broker.sender("a").send([Message(body) for body in bodies])
        words = [sys.executable, str(CHILD), place]
        processes = [
            subprocess.Popen([*words, f"p{n}", str(SECONDS)], stdout=subprocess.PIPE)
            for n in range(PROCESSES)
        ]
        told = [process.communicate(timeout=SECONDS + 120)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * PROCESSES
        found = [m.body for path in QUEUES for m in broker.peek(path, 1000)]
        found += [d.message.body for path in QUEUES for d in broker.dead_letters(path) if d.message]
        assert sorted(found, key=int) == bodies
        with broker.transaction() as tx:
            ((moves,),) = tx.execute("SELECT sum(n) FROM moves").fetchall()
        assert moves == sum(map(int, told)) > 0
        assert broker.check() == []
