"""`lazaretto worker`: list."""

from __future__ import annotations

import os
from pathlib import Path

from cli_program import Program

from lazaretto import Message


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
