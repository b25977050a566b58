"""Forwarding, transfer dead letters, status and limits, from a shell."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import Program

TRANSFER = "orders/$Transfer/$deadletterqueue"


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    """A program with a queue `orders` that forwards to `billing`."""
    program = Program(tmp_path / "store.db")
    program.ok("queue", "create", "billing")
    program.ok("queue", "create", "orders", "--forward-to", "billing")
    return program


def received(cli: Program, path: str) -> str:
    """Receive one message and complete it; return its body."""
    (message,) = cli.ok("receive", path, "--complete", "--json").json
    body: str = message["body"]
    return body


def test_messages_go_on(cli: Program) -> None:
    cli.ok("send", "orders", "hello")
    assert received(cli, "billing") == "hello"
    assert "forward to                    billing" in cli.ok("queue", "show", "orders").out
    assert cli.ok("queue", "show", "orders", "--json").json["options"]["forward_to"] == "billing"
    cli.fails(1, "not_allowed", "receive", "orders")
    cli.ok("queue", "update", "orders", "--forward-to", "none")
    cli.ok("send", "orders", "stays")
    assert received(cli, "orders") == "stays"


def test_destinations_are_checked(cli: Program) -> None:
    error = cli.fails(3, "entity_not_found", "queue", "create", "more", "--forward-to", "biling")
    assert "did you mean 'billing'" in error
    cli.ok("queue", "create", "once", "--requires-duplicate-detection", "--forward-to", "orders")
    error = cli.fails(2, "invalid_option", "queue", "update", "billing", "--forward-to", "once")
    assert "messages would come back to 'once', and be dropped there as duplicates" in error


def test_what_cannot_go_on_waits_and_is_sent_again(cli: Program) -> None:
    assert cli.ok("queue", "status", "billing", "send-disabled").out == "billing is send_disabled\n"
    cli.ok("send", "orders", "order 1")
    cli.fails(4, "queue_disabled", "send", "billing", "direct")
    (letter,) = cli.ok("dead-letter", "list", TRANSFER, "--json").json
    assert (letter["reason"], letter["message"]["body"]) == ("MessagingEntityDisabled", "order 1")
    assert cli.ok("dead-letter", "list", "orders", "--json").json == []
    assert "transfer dead letter          1" in cli.ok("queue", "show", "orders").out
    assert "MessagingEntityDisabled" in cli.ok("dead-letter", "show", TRANSFER, "1").out
    again = cli.ok("queue", "status", "billing", "ACTIVE", "--json").json
    assert again == {"path": "billing", "status": "active"}
    cli.ok("dead-letter", "resubmit", TRANSFER, "1")
    assert received(cli, "billing") == "order 1"


def test_sent_via_another_queue(cli: Program) -> None:
    cli.ok("queue", "create", "work")
    cli.ok("send", "billing", "through", "--via", "work")
    assert received(cli, "billing") == "through"
    cli.ok("send", "nowhere", "lost?", "--via", "work")
    (group,) = cli.ok("dead-letter", "groups", "work/$Transfer/$deadletterqueue", "--json").json
    assert (group["reason"], group["count"]) == ("MessagingEntityNotFound", 1)


def test_dead_letters_go_on(cli: Program) -> None:
    cli.ok("queue", "create", "graves")
    cli.ok("queue", "update", "billing", "--forward-dead-lettered-messages-to", "graves")
    cli.ok("queue", "update", "billing", "--receive-retry-count", "0")
    cli.ok("send", "orders", "bad")
    cli.ok("receive", "billing", "--abandon")
    (found,) = cli.ok("peek", "graves", "--json").json
    assert (found["dead_letter_source"], found["dead_letter_reason"]) == (
        "billing",
        "MaxDeliveryCountExceeded",
    )


def test_a_full_queue_says_so(cli: Program) -> None:
    cli.ok("queue", "update", "billing", "--max-size", "2000")
    cli.ok("send", "billing", "x" * 1500)
    error = cli.fails(4, "quota_exceeded", "send", "billing", "y" * 1500)
    assert "it holds 1500 of 2000 bytes" in error
    cli.ok("send", "orders", "y" * 1500)
    (letter,) = cli.ok("dead-letter", "list", TRANSFER, "--json").json
    assert letter["reason"] == "QuotaExceeded"
    assert cli.ok("queue", "show", "billing", "--json").json["size"] == 1500
    cli.ok("queue", "update", "billing", "--max-size", "none")
    cli.ok("send", "billing", "y" * 1500)


def test_topics_have_a_status_and_a_size_too(cli: Program) -> None:
    cli.ok("topic", "create", "events", "--max-size", "10000", "--auto-delete-on-idle", "1h")
    cli.ok("subscription", "create", "events", "s", "--forward-to", "billing")
    cli.ok("queue", "status", "events", "disabled")
    cli.fails(4, "queue_disabled", "send", "events", "x")
    shown = cli.ok("topic", "show", "events").out
    for line in ("status                        disabled", "max size                      10000"):
        assert line in shown
    cli.fails(2, "invalid_option", "queue", "status", "events", "receive-disabled")
    cli.fails(2, "invalid_option", "subscription", "create", "events", "t", "--max-size", "2000")
    cli.fails(2, "invalid_option", "queue", "create", "brief", "--auto-delete-on-idle", "10s")
