"""`lazaretto worker`: list."""

from __future__ import annotations

import os
from pathlib import Path

from cli_program import Program

from lazaretto import Message, QueueOptions


def test_list(tmp_path: Path) -> None:
    cli = Program(tmp_path / "store.db")
    with cli.broker() as broker:
        broker.create_queue("orders")
        broker.create_queue("other")
        broker.sender("orders").send([Message(b"%d" % n) for n in range(7)])
        assert cli("worker", "list") == (0, "", "no workers\n")
        assert broker.receiver("orders").take(7, 0, started=True) is not None
        (row,) = cli.ok("workers", "list", "--columns", "process,state,messages,holds").out.splitlines()[1:]
        assert row.split(maxsplit=3) == [str(os.getpid()), "alive", "7", "orders: 1, 2, 3, 4, 5 and 2 more"]
        (worker,) = cli.ok("worker", "list", "--queue", "orders", "--json").json
        assert worker["holds"] == [
            {"queue": "orders", "session_id": None, "sequence_numbers": [*range(1, 8)], "started": True}
        ]
        assert cli.ok("worker", "list", "--queue", "other", "--json").json == []


def test_what_a_receiver_holds(tmp_path: Path) -> None:
    cli = Program(tmp_path / "store.db")
    with cli.broker() as broker:
        broker.create_queue("calls", QueueOptions(requires_session=True))
        broker.create_queue("orders")
        broker.sender("orders").send([Message(b"%d" % n) for n in range(1_002)])
        columns = ("workers", "list", "--columns", "messages,holds")
        with broker.receiver("orders") as receiver, broker.receiver("calls", session="bad\x1b[2J"):
            kept = receiver.receive(2)
            row = cli.ok(*columns).out.splitlines()[1]
            assert row.split(maxsplit=1) == ["2", "calls session bad\\x1b[2J: no message; orders: 1, 2"]
            more = receiver.receive(1_000)
            row = cli.ok(*columns, "--queue", "orders").out.splitlines()[1]
            assert row.startswith("1000 or more")
            (worker,) = cli.ok("worker", "list", "--json").json
            assert not worker["complete"]
            assert worker["holds"][1]["sequence_numbers"] == [*range(1, 1_001)]
            receiver.release(kept + more)
        (worker,) = cli.ok("worker", "list", "--json").json
        assert (worker["holds"], worker["complete"]) == ([], True)
