"""`lazaretto triage`: list, show, merge, split, note, acknowledge."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import Program, set_aside

from lazaretto import Message
from lazaretto.cli.triage_commands import sparkline


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    """A program whose queue `orders` has dead letters: 2 and 4 have a cause of their own."""
    program = Program(tmp_path / "store.db")
    with program.broker() as broker:
        set_aside(broker, "orders", [b"order 1", b"two: no", b"order 3", b"two: no", b"order 5"])
    return program


def test_list(cli: Program) -> None:
    for arguments in (["triage", "orders"], ["triage", "list", "orders"], ["triage", "orders;poison"]):
        rows = [row.split() for row in cli.ok(*arguments).out.splitlines()]
        assert rows[0][:2] == ["cause", "letters"]
        assert [row[:2] for row in rows[1:]] == [["1", "3"], ["2", "2"]]
    found = cli.ok("triage", "orders", "--json").json
    assert [(cause["number"], cause["letters"], cause["state"]) for cause in found] == [
        (1, 3, "new"),
        (2, 2, "new"),
    ]
    assert found[0]["template"] == "order ✱"
    assert len(found[0]["hours"]) == 24
    columns = cli.ok("triage", "orders", "--columns", "letters,text,last-24-h").out.splitlines()
    assert columns[1].split()[-1] == "·" * 23 + "█"
    assert cli("triage", "$system/deadletter").err.startswith("no dead letters in")


def test_show(cli: Program) -> None:
    shown = cli.ok("triage", "show", "orders", "1").out
    assert "cause 1 of orders" in shown
    assert "text        order ✱" in shown
    assert "example     lazaretto dead-letter show orders 1" in shown
    assert cli("triage", "show", "orders", "9").code == 3


def test_what_operators_say(cli: Program) -> None:
    cli.ok("triage", "orders")
    assert cli.ok("triage", "note", "orders", "1", "known bug").out == "noted cause 1 of orders\n"
    cli.ok("triage", "acknowledge", "orders", "1", "--until", "8h")
    assert "new, known" in cli.ok("triage", "orders").out
    assert cli.ok("triage", "merge", "orders", "1", "2").out == "merged into cause 1 of orders\n"
    cause = cli.ok("triage", "show", "orders", "1", "--json").json
    assert (cause["letters"], cause["note"]) == (5, "known bug")
    fingerprint = cause["fingerprints"][1]["fingerprint"]
    parted = cli.ok("triage", "unmerge", "orders", "1", f"2={fingerprint}").out
    assert parted == "parted 2 from cause 1 of orders\n"
    assert (
        cli.ok("triage", "show", "orders", "2", "--json").json["fingerprints"][0]["fingerprint"]
        == fingerprint
    )
    assert cli("triage", "unmerge", "orders", "1", "2").code == 2
    cli.ok("triage", "merge", "orders", "1", "2")
    assert cli.ok("triage", "split", "orders", "1", fingerprint).out == "made cause 3 of orders\n"
    assert cli("triage", "note", "orders", "1").code == 2
    assert cli("triage", "acknowledge", "orders", "1").code == 2


def test_differences(tmp_path: Path) -> None:
    cli = Program(tmp_path / "store.db")
    bodies = [b'{"id": %d, "to": "%s"}' % (n, b"XABC"[n % 4 : n % 4 + 1]) for n in range(200)]
    with cli.broker() as broker:
        set_aside(broker, "orders", [body.replace(b"}", b', "no": 1}') for body in bodies if b"X" in body])
        broker.sender("orders").send([Message(body.replace(b"X", b"A")) for body in bodies])
    shown = cli.ok("triage", "show", "orders", "1").out
    assert "difference  body." in shown
    assert "holds for   all; 0 of 200 good" in shown
    assert "compared    with 200 waiting messages" in shown
    (cause,) = cli.ok("triage", "orders", "--json").json
    known = cause["difference"]
    assert f"difference  {known['filter']}\n" in shown
    assert (known["letters"], known["counted"], known["good"], known["compared"]) == (50, 50, 0, 200)
    row = cli.ok("triage", "orders", "--columns", "difference,holds-for").out.splitlines()[1]
    assert row.split("  ")[0] == known["filter"]
    assert row.endswith("all; 0 of 200 good")


def test_no_difference_found_is_an_answer(cli: Program) -> None:
    with cli.broker() as broker:
        broker.sender("orders").send([Message(b"order 7")] * 3)
    assert [
        row.strip() for row in cli.ok("triage", "orders", "--columns", "difference").out.splitlines()
    ] == [
        "difference",
        "no difference found",
        "no difference found",
    ]
    assert "difference  no difference found" in cli.ok("triage", "show", "orders", "1").out


def test_chart(cli: Program) -> None:
    with cli.broker() as broker:
        set_aside(broker, "hostile", ["\x1b[31m\u202eevil <b>\n".encode() + b"x" * 200])
    shown = cli.ok("triage", "orders", "--chart").out
    rows = shown.splitlines()
    assert rows[0] == "5 │" + " " * 46 + "▓▓"
    assert rows[9] == "  │" + " " * 46 + "██"
    assert rows[13].split()[:4] == ["█", "3", "cause", "1"]
    assert rows[14].split()[:4] == ["▓", "2", "cause", "2"]
    hostile = cli.ok("triage", "hostile", "--chart").out
    assert "\x1b" not in hostile
    assert "\u202e" not in hostile
    assert max(map(len, hostile.splitlines())) <= 80
    with cli.broker() as broker:
        broker.create_queue("empty")
    assert cli.ok("triage", "empty", "--chart").out == "no dead letters came to empty in the last 24 hours\n"
    for other in ("--json", "--jsonl", "--csv", "--columns=cause"):
        assert cli("triage", "orders", "--chart", other).code == 2


def test_bars() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "··"
    assert sparkline([0, 1, 4, 8, 100]) == "·▁▁▁█"
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"
