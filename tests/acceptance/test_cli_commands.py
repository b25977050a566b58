"""`lazaretto command`: changes as JSON, once under a key, as a script runs them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli_program import Program, set_aside

from lazaretto import Message


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    program = Program(tmp_path / "store.db")
    with program.broker() as broker:
        set_aside(broker, "orders", [b"no 1", b"no 2", b"no 3"])
    return program


def test_a_change_is_made_once_under_its_key(cli: Program) -> None:
    fields = json.dumps({"path": "orders", "sequence_numbers": [1, 2]})
    given = ("command", "run", "resubmit", fields, "--actor", "ann", "--idempotency-key", "again")
    first = cli.ok(*given).json
    assert first["resubmitted"] == {"1": 4, "2": 5}
    assert cli.ok(*given).json == first
    with cli.broker() as broker:
        assert broker.queue("orders").counts.active == 2
        assert [entry.actor for entry in broker.audit(limit=1)] == ["ann"]
    other = cli("command", "run", "resubmit", fields, "--actor", "bob", "--idempotency-key", "again")
    assert (other.code, other.err.partition("]")[0]) == (1, "error[idempotency_conflict")


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("no_such", "{}"),
        ("purge", "{"),
        ("purge", '{"path": "orders"}'),
        ("purge", '{"path": "orders", "sequence_numbers": [1], "more": 1}'),
        ("purge", '{"path": "orders", "sequence_numbers": ["1"]}'),
        ("purge", "\udcff"),
    ],
)
def test_what_is_no_command(cli: Program, name: str, fields: str) -> None:
    result = cli("command", "run", name, fields)
    assert (result.code, result.err.partition(":")[0]) == (2, "error[usage]")
    with cli.broker() as broker:
        assert broker.queue("orders").counts.dead_letter == 3


def test_all_are_listed(cli: Program) -> None:
    found = {row["command"]: row for row in cli.ok("command", "list", "--json").json}
    assert found["purge"]["fields"] == ["path", "sequence_numbers"]
    assert found["plan_repair"]["permission"] == "operate"


def test_programs_that_follow_from_a_change(cli: Program) -> None:
    """Their arguments and options are its fields; what nothing takes back, they ask before."""
    with cli.broker() as broker:
        broker.triage("orders")
        broker.sender("orders").send([Message(b"a"), Message(b"b")])
    done = cli.ok("triage", "purge", "orders", "1", "--actor", "ann").out
    assert done == "set 3 dead letters of cause 1 of orders aside; 0 remain\n"
    assert cli.ok("triage", "restore", "orders", "--json").json == {"letters": 3, "remaining": 0}
    assert cli("queue", "delete-messages", "orders", "1").code == 2
    assert cli.ok("queue", "delete-messages", "orders", "1", "--yes").out == "deleted 1 messages of orders\n"
    assert cli("triage", "purge", "orders", "9").code == 3
    assert cli("session", "free", "orders", "s").code == 1
    with cli.broker() as broker:
        assert broker.queue("orders").counts.active == 1
        assert [entry.actor for entry in broker.audit() if entry.action == "purge"] == ["ann"]


#: Changes by programs of their own, in an order in which each has what it needs.
CHANGES = [
    "queue create parts --lock-duration 5",
    "topic create prices",
    "subscription create prices web",
    "rule add prices web big --filter size>5",
    "breaker open orders",
    "triage note orders 1 known",
    "triage recount orders",
    "triage purge orders 1",
    "triage restore orders",
    "queue delete-messages other 1 --yes",
    "dead-letter purge orders 1",
    "dead-letter restore orders 1",
    "dead-letter move orders 1 --to other",
    "dead-letter resubmit orders 2",
    "repair plan orders 3 --name mend",
    "repair pace mend --rate 5",
    "repair pace mend --in-flight 7",
    "repair cancel mend",
    "redaction set body.card --queue orders",
    "access grant ana viewer --queue orders",
    "subscription delete prices web --yes",
]


@pytest.mark.skipif("LAZARETTO_SOAK" not in os.environ, reason="starts a hundred programs: LAZARETTO_SOAK=1")
def test_each_program_changes_once_under_its_key(cli: Program) -> None:
    """Run again with its key, it says the same, changes nothing and is not in the audit log again."""
    with cli.broker() as broker:
        broker.create_queue("other")
        broker.triage("orders")
        for number, line in enumerate(CHANGES):
            given = (*line.split(), "--json", "--actor", "ann", "--idempotency-key", f"key-{number}")
            first = cli.ok(*given).json
            entries = broker.audit(limit=1000)
            assert entries[0].actor == "ann", line
            event = broker.last_event()
            assert cli.ok(*given).json == first, line
            # It is named by its path.
            assert "delete" not in line or first == {"deleted": "prices/subscriptions/web"}
            assert (broker.audit(limit=1000), broker.last_event()) == (entries, event), line
        assert len([entry for entry in broker.audit(limit=1000) if entry.actor == "ann"]) == len(CHANGES)


def test_a_key_goes_with_numbers(cli: Program) -> None:
    for given in (("--all",), ("--reason", "broken"), ()):
        refused = cli("dead-letter", "resubmit", "orders", *given, "--idempotency-key", "k")
        assert refused.code == 2, given
    for edit in (("--edit-body", "-"), ("--edit",)):
        refused = cli("dead-letter", "resubmit", "orders", "2", "--idempotency-key", "k", *edit, stdin="x")
        assert (refused.code, "--idempotency-key cannot be combined" in refused.err) == (2, True), refused
    with cli.broker() as broker:
        assert broker.queue("orders").counts.dead_letter == 3
