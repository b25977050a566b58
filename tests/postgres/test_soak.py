"""Three processes do everything at once: what was sent is in the ledger once, whatever it went through."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import lazaretto
from lazaretto import NEXT_SESSION, DeadLetterFilter, ReceivedMessage

from .soaker import PLACES, set_up, work

SECONDS = 300.0 if os.environ.get("LAZARETTO_SOAK") else 6.0
CHILD = Path(__file__).with_name("soaker.py")


def test_three_processes_and_every_feature(url: str, tmp_path: Path) -> None:
    journals = [tmp_path / f"journal{n}" for n in range(3)]
    with lazaretto.connect(url, timeout=60) as broker:
        set_up(broker)
        words = [
            [sys.executable, CHILD, url, f"p{n}", journal, SECONDS] for n, journal in enumerate(journals)
        ]
        hosts = [subprocess.Popen(list(map(str, each))) for each in words]
        assert [host.wait(SECONDS + 120) for host in hosts] == [0, 0, 0]
        draw = random.Random(0)

        def worked_off() -> bool:
            broker.resubmit("work", DeadLetterFilter())
            while sum(work(broker, place, draw, 0.0) for place in PLACES):
                pass
            places = ["work", "in", "news/subscriptions/a", "news/subscriptions/b"]
            counts = [broker.queue(place).counts for place in places]
            return not any(each.total for each in counts)

        end = time.monotonic() + 120
        while not worked_off():
            assert time.monotonic() < end, [broker.queue("work").counts]
        heard: list[str] = []
        messages: list[ReceivedMessage] | None = None
        while messages is None or messages:
            with broker.receiver("chats", session=NEXT_SESSION) as receiver:
                messages = receiver.receive(100)
                receiver.complete(messages)
                heard += [message.message_id for message in messages]
        with broker.transaction() as tx:
            ledger = set(tx.execute("SELECT place, message_id FROM ledger").fetchall())
        assert broker.check() == []
    lines = [tuple(line.split()) for journal in journals for line in journal.read_text().splitlines()]
    assert {line for line in lines if line[0] in PLACES} == ledger
    spoken = {name for place, name in lines if place == "chats"}
    listened = Counter([*heard, *(name for place, name in lines if place == "heard")])
    assert set(listened) == spoken
    assert set(listened.values()) <= {1}
    assert len(ledger) > 100
