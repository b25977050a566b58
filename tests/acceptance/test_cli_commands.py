"""`lazaretto command`: changes as JSON, once under a key, as a script runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_program import Program, set_aside


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
