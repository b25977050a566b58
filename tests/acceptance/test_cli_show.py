"""`lazaretto show`: one message, as a person and as a program sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import Program, fill

from lazaretto import PoisonPolicy


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    program = Program(tmp_path / "store.db")
    with program.broker() as broker:
        fill(broker, "orders", [b'{"item": "unicorn"}'], policy=PoisonPolicy(receive_retry_count=0))
        with broker.receiver("orders") as receiver:
            receiver.abandon(receiver.receive(), error=ValueError("no \x1b[31municorns"))
    return program


def test_a_dead_letter_that_was_sent_back_and_is_gone(cli: Program) -> None:
    waiting = cli.ok("show", "orders", "1").out
    assert waiting.startswith("message 1 of orders ($deadletterqueue): a dead letter\n")
    assert '{"item": "unicorn"}' in waiting
    assert "\x1b" not in waiting
    cli.ok("dead-letter", "resubmit", "orders", "1")
    assert "became       message 2 of orders: active" in cli.ok("show", "orders", "1").out
    cli.ok("receive", "orders", "--complete")
    shown = cli.ok("show", "orders", "1").out
    assert "became       message 2 of orders: gone: completed, discarded or deleted" in shown
    steps = [row.split()[4] for row in shown.splitlines()[-4:]]
    assert steps == ["sent", "failed:", "dead-lettered:", "resubmitted"]
    assert max(map(len, shown.splitlines())) <= 100


def test_as_json(cli: Program) -> None:
    found = cli.ok("show", "orders", "1", "--json").json
    (generation,) = found["generations"]
    assert (generation["state"], generation["error_type"]) == ("dead_lettered", "ValueError")
    assert generation["attempts"][0]["outcome"] == "failed"
    assert found["message"]["body"] == '{"item": "unicorn"}'


def test_what_is_not_there(cli: Program) -> None:
    assert cli("show", "orders", "2").code == 3
    assert cli("show", "chairs", "1").code == 3
    assert cli("show", "orders", "0").code == 2
