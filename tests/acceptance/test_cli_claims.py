"""`lazaretto claim`: what pipelines have taken, and giving it back."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import Program, fill

from lazaretto.broker.claims import ClaimConsumer


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    """A program whose queue `orders` has an open claim of two messages."""
    program = Program(tmp_path / "store.db")
    with program.broker() as broker:
        fill(broker, "orders", [b"1", b"2", b"3"])
        consumer = ClaimConsumer(broker._store, "orders", "nightly")
        consumer.attach()
        consumer.take(0, max_rows=2)
    return program


def test_claims_are_listed(cli: Program) -> None:
    (claim,) = cli.ok("claim", "list", "orders", "--json").json
    assert (claim["consumer"], claim["number"], claim["state"], claim["rows"]) == ("nightly", 1, "open", 2)
    shown = cli.ok("claim", "list", "orders").out
    assert "nightly" in shown
    assert "open" in shown


def test_one_is_given_back(cli: Program) -> None:
    assert cli.ok("claim", "revoke", "orders", "nightly", "1").out == "revoked claim 1 of nightly\n"
    (claim,) = cli.ok("claim", "list", "orders", "--json").json
    assert (claim["state"], claim["outcomes"]) == ("revoked", {"released": 2})
    with cli.broker() as broker:
        assert broker.queue("orders").counts.active == 3
    assert cli.ok("audit", "--json").json[0]["action"] == "revoke_claim"


def test_what_is_not_there(cli: Program) -> None:
    cli.fails(1, "entity_error", "claim", "revoke", "orders", "nightly", "2")
    cli.fails(1, "entity_error", "claim", "revoke", "orders", "nobody", "1")
    cli.fails(3, "entity_not_found", "claim", "list", "chairs")
    none = cli("claim", "list", "$system/deadletter")
    assert (none.code, none.err) == (0, "no claims\n")
