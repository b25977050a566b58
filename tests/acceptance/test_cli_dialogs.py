"""Dialogs by the command: defined, looked into, decided on, read."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from cli_program import Program

SERVICES = """
[message_types]
Order = { validation = "json" }

[contracts.Ordering]
Order = "initiator"
DEFAULT = "target"

[services]
Front = { queue = "front" }
Shop = { queue = "shop", contracts = ["Ordering"], failures = 1, handler = "reading:shop" }
"""
READING = """
from lazaretto.dialogs import by_type

def order(message, work):
    if b"unicorn" in message.body:
        raise LookupError("no unicorns")
    work.send(message.conversation, body=b"done")

shop = by_type({"Order": order}, max_wait=0.1)
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path / "dialogs.db")


@pytest.fixture
def conversation(program: Program, tmp_path: Path) -> str:
    """Services from a file, and a dialog with one order that is held and one behind it."""
    (tmp_path / "services.toml").write_text(SERVICES)
    (tmp_path / "reading.py").write_text(READING)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    program.environment["PYTHONPATH"] = path
    assert program("dialog", "apply", str(tmp_path / "services.toml"), "--json").json[0] == {
        "verb": "create", "kind": "message_type", "name": "Order",
    }  # fmt: skip
    with program.broker() as broker, broker.dialogs.transaction() as work:
        handle = work.begin_dialog("Front", "Shop", "Ordering")
        work.send(handle, "Order", b'"unicorn"')
        work.send(handle, "Order", b'"lamp"')
    return handle


def read(program: Program) -> None:
    """Let the command's readers read what there is."""
    done = program("dialog", "run", "--stop-when-idle")
    assert (done.code, done.out) == (0, "")
    assert "reading for Shop" in done.err


def test_a_poison_message_from_beginning_to_end(program: Program, conversation: str) -> None:
    shop = f"{conversation[:-1]}t"
    read(program)
    (held,) = program("dialog", "list", "--held", "--json").json
    assert held["conversation"] == shop
    assert "poison message 1 (MaxDeliveryCountExceeded)" in held["waits"]
    shown = program("dialog", "show", conversation[:8]).out
    assert "target Shop" in shown
    assert "for a verdict on poison message 1" in shown
    lines = program("dialog", "timeline", conversation).out.splitlines()
    assert [line.split()[3] for line in lines[1:]] == [
        "begun",
        "sent",
        "sent",
        "arrived",
        "failed",
        "waiting",
        "waiting",
    ]
    assert "LookupError: no unicorns" in program("dialog", "timeline", conversation).out
    assert program("dialog", "resume", shop, "--verdict", "move").out == f"resumed: move {shop}\n"
    read(program)
    assert program("dialog", "list", "--held").err == "no conversations held\n"
    with program.broker() as broker, broker.dialogs.transaction("front") as work:
        assert [m.body for m in work.receive()] == [b"done"]
    assert program("dialog", "end", conversation, "--code", "7", "--text", "enough").code == 0
    read(program)
    assert program("dialog", "list").err == "no conversations\n"
    assert len(program("events", "--kind", "dialog_ended", "--json").json) == 1


def test_what_is_wrong_is_said(program: Program, conversation: str) -> None:
    for words, code, text in [
        (("end", "nothing"), 2, "expected a conversation's handle"),
        (("end", conversation, "--code", "1"), 2, "both --code and --text"),
        (("show", "00000000"), 3, "no dialog has an id that begins with"),
        (("show", "not hex"), 2, "expected a dialog's id"),
        (("resume", conversation, "--verdict", "retry"), 1, "is not held by a poison message"),
        (("cleanup", conversation), 2, "needs --yes"),
        (("run", "Shopp"), 1, "did you mean 'Shop'"),
        (("list", "--queue", "shopp"), 3, "no queue exists at 'shopp'"),
        (("apply", "missing.toml"), 2, "cannot be read"),
    ]:
        done = program("dialogs", *words)
        assert text in done.err
        assert done.code == code, words


def test_cleaning_both_ends_up(program: Program, conversation: str) -> None:
    assert program("dialog", "cleanup", conversation, "--both", "--yes", "--json").json == {
        "conversation": conversation[:32], "result": "cleaned up",
    }  # fmt: skip
    assert program("dialog", "list", "--json").json == []
    gone = program("dialog", "cleanup", conversation, "--both", "--yes")
    assert (gone.code, "conversation" in gone.err) == (3, True), gone


@pytest.mark.parametrize("one", [False, True], ids=["both", "one-is-gone"])
def test_cleaning_both_ends_up_once(program: Program, conversation: str, one: bool) -> None:
    """Under its key it says the same again, though there is nothing left; also where one end was gone."""
    if one:
        assert program("dialog", "cleanup", conversation, "--yes").code == 0
    given = ("dialog", "cleanup", conversation, "--both", "--yes", "--json", "--idempotency-key", "k")
    first = program(*given)
    assert first.json == {"conversation": conversation[:32], "result": "cleaned up"}
    assert program(*given) == first
    assert program("dialog", "list", "--json").json == []


def test_definitions_come_out_as_they_went_in(program: Program, conversation: str) -> None:
    tables = program("dialog", "definitions", "--json").json
    assert tables["contracts"] == {"Ordering": {"Order": "initiator", "DEFAULT": "target"}}
    assert tables["services"]["Shop"]["failures"] == 1


def test_definitions_one_by_one(program: Program, tmp_path: Path) -> None:
    schema = tmp_path / "order.json"
    schema.write_text('{"type": "object", "required": ["id"]}')
    create = ("dialog", "create")
    program.ok(*create, "message-type", "Order", "--validation", "json_schema", "--schema", str(schema))
    program.ok(*create, "contract", "Ordering", "Order=initiator", "DEFAULT=any")
    program.ok(*create, "service", "Front", "--queue", "front")
    shop = ("service", "Shop", "--queue", "shop", "--contract", "Ordering", "--retry-delay", "1m")
    made = program.ok(*create, *shop, "--failures", "5", "--retention", "--json").json
    assert made == {"verb": "create", "kind": "service", "name": "Shop"}
    program.ok(*create, "priority", "first", "9", "--contract", "Ordering")
    tables = program.ok("dialog", "definitions", "--json").json
    assert tables["services"]["Shop"] == {
        "queue": "shop",
        "contracts": ["Ordering"],
        "failures": 5,
        "retry_delay": 60.0,
        "retention": True,
    }
    assert tables["priorities"] == {"first": {"level": 9, "contract": "Ordering"}}
    program.fails(2, "usage", *create, "contract", "C", "Order=everybody")
    program.fails(1, "definition_error", "dialog", "delete", "contract", "Ordering")
    assert program.ok("dialog", "delete", "priority", "first").out == "deleted priority first\n"


def test_readers_end_by_sigterm(program: Program, conversation: str) -> None:
    with program.start("--json", "dialog", "run") as process:
        assert process.stderr is not None
        assert b"reading for Shop" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, b"")
    (status,) = json.loads(out)
    assert (status["service"], status["readers"]) == ("Shop", 0)
