"""`lazaretto repair`: plan, canary, apply, pause, undo, and what is said of them."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from cli_program import Program, set_aside


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    """A program whose queue `orders` has six dead letters, none of which can be processed by itself."""
    program = Program(tmp_path / "store.db")
    with program.broker() as broker:
        set_aside(broker, "orders", [b'{"n": %d}' % n for n in range(6)])
    return program


def test_plan(cli: Program) -> None:
    shown = cli.ok("repair", "plan", "orders", "--all", "--name", "fix", "--edit", '{"x": 1}').out
    assert "repair fix of orders: planned" in shown
    assert "changed           6" in shown
    assert "+ " in shown
    assert shown.endswith("next: lazaretto repair canary fix\nnext: lazaretto repair apply fix\n")
    planned = cli.ok("repair", "plan", "orders", "2", "3", "--json").json
    assert (planned["letters"], planned["phase"], planned["preview"]["looked_at"]) == (2, "planned", 2)
    assert [row["name"] for row in cli.ok("repair", "list", "--json").json] == ["repair-2", "fix"]
    assert "fix" in cli.ok("repair", "list", "--queue", "orders").out


def test_apply_and_undo(cli: Program) -> None:
    cli.ok("repair", "plan", "orders", "--all", "--name", "fix")
    shown = cli.ok("repair", "apply", "fix", "--in-flight", "none").out
    assert "repair fix of orders: done" in shown
    assert "waiting       6" in shown
    with cli.broker() as broker:
        receiver = broker.receiver("orders")
        receiver.complete(receiver.receive(2))
    assert "taken back    4" in cli.ok("repair", "undo", "fix").out
    assert [row["outcome"] for row in cli.ok("repair", "letters", "fix", "--json").json] == [
        "processed", "processed", "undone", "undone", "undone", "undone",
    ]  # fmt: skip
    actions = [entry["action"] for entry in cli.ok("audit", "--json").json]
    assert actions[:2] == ["repair: nothing left to take back", "repair: undo"]


def test_try(cli: Program, tmp_path: Path) -> None:
    (tmp_path / "trying.py").write_text(
        "def handle(message):\n    assert b'good' in message.body\n"
        "def mend(letter):\n"
        "    from lazaretto import Message\n"
        "    return Message(b'good') if b'1' in letter.message.body else None\n"
    )
    cli.environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    edit = tmp_path / "edit.txt"
    edit.write_text("trying:mend")
    cli.ok("repair", "plan", "orders", "--all", "--name", "fix", "--edit", f"@{edit}")
    tried = cli("repair", "try", "fix", "--handler", "trying:handle", "--json")
    assert tried.code == 1
    assert (tried.json["tried"], tried.json["succeeded"], tried.json["edited"]) == (6, 1, 1)
    shown = cli("repair", "try", "fix", "--handler", "trying:handle", "--sample", "2").out
    assert "tried 2 of 6 dead letters" in shown
    assert cli("repair", "try", "fix").code == 2
    assert "planned" in cli.ok("repair", "show", "fix").out


def test_a_canary_that_fails(cli: Program) -> None:
    cli.ok("repair", "plan", "orders", "--all", "--name", "fix", "--canary", "1")
    cli.ok("repair", "canary", "fix", "--detach")
    over = threading.Event()

    def fail() -> None:
        with cli.broker() as broker, broker.receiver("orders") as receiver:
            while not over.is_set():
                for message in receiver.receive(1, max_wait=0.2):
                    receiver.dead_letter(message, reason="again")

    consumer = threading.Thread(target=fail)
    consumer.start()
    try:
        shown = cli.ok("repair", "run", "fix").out
    finally:
        over.set()
        consumer.join()
    assert "repair fix of orders: failed" in shown
    assert shown.endswith("next: lazaretto repair undo fix\n")
    cli.fails(1, "repair_error", "repair", "apply", "fix")


def test_pace_pause_and_cancel(cli: Program) -> None:
    cli.ok("repair", "plan", "orders", "--all", "--name", "fix")
    cli.ok("repair", "apply", "fix", "--detach")
    assert "rate        5 a second" in cli.ok("repair", "pace", "fix", "--rate", "5").out
    assert "repair fix of orders: paused" in cli.ok("repair", "pause", "fix").out
    cli.ok("repair", "resume", "fix", "--detach")
    assert cli.ok("repair", "cancel", "fix", "--json").json["phase"] == "cancelled"


def test_what_is_wrong(cli: Program) -> None:
    cli.fails(3, "repair_not_found", "repair", "show", "none")
    cli.fails(2, "usage", "repair", "plan", "orders")
    cli.fails(2, "invalid_option", "repair", "plan", "orders", "--all", "--order", "size")
    cli.fails(2, "invalid_option", "repair", "plan", "orders", "--all", "--name", "a b")


def test_resubmit_as_a_repair(cli: Program) -> None:
    with cli.broker() as broker:
        broker.create_queue("desk")
    options = ["--all", "--limit", "4", "--to", "desk", "--edit", "SET body.x = 1"]
    shown = cli.ok("dead-letter", "resubmit", "orders", *options, "--yes").out
    assert "repair repair-1 of orders: done" in shown
    assert "body.x" not in shown.partition("letters\n")[2]
    with cli.broker() as broker:
        assert [m.body for m in broker.peek("desk", 10)] == [b'{"n": %d, "x": 1}' % n for n in range(4)]
    cli.ok("repair", "undo", "repair-1")
    assert len(cli.ok("dead-letter", "list", "orders", "--json").json) == 6
    assert cli("dead-letter", "resubmit", "orders", "--all", "--limit", "1", "--dry-run").code == 2


class TestResubmitEdited:
    """`lazaretto dead-letter resubmit --edit` shows what it would do, and asks."""

    @pytest.fixture(params=["SET body.x = 1", "mending:mend"])
    def edit(self, request: pytest.FixtureRequest, cli: Program, tmp_path: Path) -> list[str]:
        (tmp_path / "mending.py").write_text(
            "from lazaretto import Message\n\ndef mend(letter):\n"
            "    return Message(letter.message.body[:-1] + b', \"x\": 1}')\n"
        )
        cli.environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
        return ["dead-letter", "resubmit", "orders", "--all", "--edit", request.param]

    def test_nobody_to_ask(self, cli: Program, edit: list[str]) -> None:
        for more in ([], ["--json"]):
            assert "needs --yes" in cli.fails(2, "usage", *edit, *more)
        assert cli.ok("repair", "list", "--json").json == []

    def test_no(self, cli: Program, edit: list[str]) -> None:
        code, shown = cli.on_terminal(*edit, typed=b"n\n")
        assert (code, "nothing was resubmitted" in shown) == (1, True)
        assert "Send 6 dead letters?" in shown
        assert "+ body.x: 1" in shown
        assert ["changed", "6"] in [line.split() for line in shown.splitlines()]
        assert len(cli.ok("dead-letter", "list", "orders", "--json").json) == 6
        (repair,) = cli.ok("repair", "list", "--json").json
        assert repair["phase"] == "cancelled"

    def test_yes(self, cli: Program, edit: list[str]) -> None:
        code, shown = cli.on_terminal(*edit, typed=b"y\n")
        assert code == 0, shown
        with cli.broker() as broker:
            assert [m.body for m in broker.peek("orders", 10)] == [b'{"n": %d, "x": 1}' % n for n in range(6)]
