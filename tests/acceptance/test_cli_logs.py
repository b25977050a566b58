"""`lazaretto events`, `lazaretto audit` and `lazaretto doctor`."""

from __future__ import annotations

import getpass
import json
import platform
import sqlite3
from pathlib import Path

import pytest
from cli_program import Program, fill, interrupt, set_aside

import lazaretto
from lazaretto import Disposition, PoisonMessageError, PoisonPolicy


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    """A program whose queue `orders` has two dead letters."""
    program = Program(tmp_path / "store.db")
    with program.broker() as broker:
        set_aside(broker, "orders", [b"one", b"two: no"])
        broker.create_queue("other")
    return program


def test_events_oldest_first(cli: Program) -> None:
    events = cli.ok("events", "--json").json
    assert [(e["position"], e["kind"], e["queue"]) for e in events] == [
        (1, "queue_created", "orders"),
        (2, "dead_lettered", "orders"),
        (3, "dead_lettered", "orders"),
        (4, "queue_created", "other"),
    ]
    assert events[1]["detail"]["error_type"] == "ValueError"
    rows = cli.ok("events").out.splitlines()
    assert rows[2].split()[0] == "2"
    assert "error type: ValueError" in rows[2]


def test_events_filtered(cli: Program) -> None:
    def positions(*arguments: str) -> list[int]:
        return [event["position"] for event in cli.ok("events", "--json", *arguments).json]

    assert positions("--after", "2") == [3, 4]
    assert positions("--kind", "queue_created") == [1, 4]
    assert positions("--queue", "ORDERS", "--limit", "2") == [2, 3]
    assert "dead_lettered" in cli.fails(2, "invalid_option", "events", "--kind", "dead_leterd")


def test_the_newest_in_order_of_time(cli: Program) -> None:
    every = [e["position"] for e in cli.ok("events", "--json").json]
    assert len(every) > 3
    for option in ("--limit", "-n", "--last"):
        assert [e["position"] for e in cli.ok("events", option, "2", "--json").json] == every[-2:]
    first = cli.ok("events", "--after", str(every[0]), "--limit", "2", "--json").json
    assert [e["position"] for e in first] == every[1:3]
    assert [e["position"] for e in cli.ok("events", "--since", "1h", "--json").json] == every
    assert cli.ok("events", "--since", "2999-01-01", "--json").json == []
    newest = cli.ok("events", "--kind", "dead_lettered", "--last", "1", "--json").json
    assert newest == cli.ok("events", "--kind", "dead_lettered", "--json").json[-1:]
    cli.fails(2, "usage", "events", "--since", "1h", "--last", "2")


def test_the_newest_and_what_comes_after_them(cli: Program) -> None:
    every = [e["position"] for e in cli.ok("events", "--json").json]
    with cli.start("events", "--follow", "--last", "2", "--json") as process:
        assert process.stdout is not None
        shown = [json.loads(process.stdout.readline())["position"] for _ in range(2)]
        process.terminate()
    assert shown == every[-2:]


def test_follow_from_a_position_is_lines_of_json(cli: Program) -> None:
    with cli.start("events", "--follow", "--after", "3", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["queue"] == "other"
        with cli.broker() as broker:
            broker.create_queue("third")
        assert json.loads(process.stdout.readline())["queue"] == "third"
        interrupt(process)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_follow_ends_at_its_limit(cli: Program) -> None:
    rows = cli.ok("events", "--follow", "--after", "0", "--limit", "2").out.splitlines()
    assert [row.split()[0] for row in rows] == ["position", "1", "2"]


def test_audit_says_who_did_what(cli: Program) -> None:
    cli.ok("dead-letter", "resubmit", "orders", "1")
    cli.ok("dead-letter", "purge", "orders", "--error-type", "KeyError")
    cli.ok("queue", "delete", "other", "--yes")
    entries = cli.ok("audit", "--json").json
    assert [(e["action"], e["queue"]) for e in entries[:3]] == [
        ("delete", "other"),
        ("purge", "orders"),
        ("resubmit", "orders"),
    ]
    assert entries[1]["detail"] == {"count": 1, "sequence_numbers": [2], "filter": {"error_type": "KeyError"}}
    assert entries[0]["actor"].startswith(getpass.getuser())
    assert "purge" in cli.ok("audit", "--queue", "orders", "--limit", "1").out
    below = str(entries[0]["position"])
    assert cli.ok("audit", "--before", below, "--json").json == entries[1:]
    assert cli.ok("audit", "--action", "purge", "--since", "1h", "--json").json == entries[1:2]
    assert cli.ok("audit", "--actor", "nobody", "--json").json == []
    assert cli.ok("audit", "--until", "1h", "--json").json == []
    cli.fails(2, "usage", "audit", "--before", "0")


def test_doctor_when_all_is_well(cli: Program) -> None:
    shown = cli.ok("doctor").out
    assert shown.endswith("no problems found\n")
    assert "notice: queue orders has 2 dead letters; see `lazaretto dead-letter groups orders`" in shown
    report = cli.ok("doctor", "--json").json
    assert (report["ok"], report["problems"], report["integrity"]) == (True, [], ["ok"])
    assert report["lazaretto"] == lazaretto.__version__
    assert report["python"] == platform.python_version()
    assert report["sqlite"] == sqlite3.sqlite_version
    assert report["store"]["path"] == str(cli.store)
    assert report["store"]["journal_mode"] == "wal"
    assert report["disk_free_bytes"] > 0


def test_doctor_finds_queues_that_stand_still(cli: Program) -> None:
    with cli.broker() as broker:
        halting = PoisonPolicy(receive_retry_count=0, on_poison=Disposition.FAULT)
        fill(broker, "halted", [b"1"], policy=halting)
        with pytest.raises(PoisonMessageError):
            broker.consume("halted", lambda message: 1 / 0, stop_when_idle=True)
        fill(broker, "off", [b"1"], policy=PoisonPolicy(disable_after_rollbacks=1))
        with broker.receiver("off") as receiver:
            receiver.abandon(receiver.receive())
    result = cli("doctor", "--json")
    assert (result.code, result.err, result.json["ok"]) == (1, "", False)
    halted, off = result.json["problems"]
    assert "lazaretto queue resume halted --verdict" in halted
    assert "queue off is disabled" in off
    assert cli("doctor").out.endswith("2 problems found\n")


def test_doctor_finds_damage(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "many", [bytes([i % 251]) * 3000 for i in range(400)])
    with sqlite3.connect(cli.store) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content = bytearray(cli.store.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 40_960] = b"\xaa" * 40_960
    cli.store.write_bytes(content)
    result = cli("doctor")
    # Found by the check, or met before it came to that.
    assert result.code in (1, 5)
    assert "damaged" in result.out + result.err
