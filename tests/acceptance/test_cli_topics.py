"""`lazaretto topic`, `subscription` and `rule`, as a person uses them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import Program


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    """A program with a topic `events` that has the subscriptions `audit` and `large`."""
    program = Program(tmp_path / "store.db")
    assert (
        program.ok("topic", "create", "events", "--max-message-size", "2000").out == "created topic events\n"
    )
    program.ok("subscription", "create", "events", "audit", "--lock-duration", "5s")
    program.ok("subscription", "create", "events", "large", "--filter", "amount > 100")
    return program


def test_topics_are_made_shown_changed_and_deleted(cli: Program) -> None:
    (listed,) = cli.ok("topic", "list", "--json").json
    assert (listed["path"], listed["subscriptions"]) == ("events", 2)
    assert "max message size              2000" in cli.ok("topic", "show", "events").out
    changed = cli.ok("topic", "update", "events", "--default-time-to-live", "1h")
    assert changed.out == "changed in topic events: default_time_to_live\n"
    again = cli.ok("topic", "update", "events", "--default-time-to-live", "none", "--json").json
    assert again["options"]["default_time_to_live"] is None
    cli.fails(2, "usage", "topic", "update", "events")
    cli.fails(2, "usage", "topic", "delete", "events")
    assert cli.ok("topic", "delete", "events", "--yes").out == "deleted topic events\n"
    assert cli("topic", "list").err == "no topics\n"
    cli.fails(3, "entity_not_found", "topic", "show", "events")


def test_subscriptions_are_made_shown_changed_and_deleted(cli: Program) -> None:
    cli.ok("send", "events", "hello")
    found = {s["name"]: s for s in cli.ok("subscription", "list", "events", "--json").json}
    assert found["audit"]["queue"]["counts"]["active"] == 1
    assert found["audit"]["queue"]["options"]["lock_duration"] == 5
    assert found["large"]["rules"] == [
        {"name": "$Default", "filter": {"kind": "sql", "expression": "amount > 100"}, "action": None}
    ]
    assert "$Default  amount > 100" in cli.ok("subscription", "show", "events", "large").out
    changed = cli.ok("subscription", "update", "events", "audit", "--lock-duration", "9s")
    assert changed.out == "changed in subscription events/subscriptions/audit: lock_duration\n"
    assert cli.ok("receive", "events/subscriptions/audit", "--complete").code == 0
    cli.fails(2, "usage", "subscription", "delete", "events", "audit")
    cli.ok("subscription", "delete", "events", "audit", "-y")
    cli.fails(3, "entity_not_found", "subscription", "show", "events", "audit")
    cli.fails(2, "filter_syntax", "subscription", "create", "events", "bad", "--filter", "amount >")
    cli.fails(1, "entity_exists", "subscription", "create", "events", "LARGE")
    assert "--exist-ok" in cli.fails(1, "entity_exists", "topic", "create", "events")
    made = cli.ok("topic", "create", "plain", "--exist-ok").out
    same = cli.ok("topic", "create", "plain", "--exist-ok").out
    assert (made, same) == ("created topic plain\n", "topic plain exists already\n")
    told = cli.fails(1, "entity_exists", "topic", "create", "plain", "--exist-ok", "--max-size", "5000000")
    assert "is left as it is: " in told
    cli.fails(1, "not_allowed", "receive", "events")


def test_rules_come_and_go(cli: Program) -> None:
    add = ("rule", "add", "events", "large")
    assert cli.ok(*add, "eu", "-p", "region=EU", "-p", "n=5", "--subject", "s").out == (
        "added rule eu: sys.subject = 's' and region = 'EU' and n = 5\n"
    )
    cli.ok(*add, "all", "--all", "--action", "SET tier = 'gold'")
    cli.ok(*add, "none", "--none")
    rules = {rule["name"]: rule for rule in cli.ok("rule", "list", "events", "large", "--json").json}
    assert rules["eu"]["filter"] == {
        "kind": "correlation", "subject": "s", "properties": {"region": "EU", "n": 5},
    }  # fmt: skip
    assert (rules["all"]["filter"], rules["none"]["filter"]) == ({"kind": "true"}, {"kind": "false"})
    assert rules["all"]["action"]["expression"] == "SET tier = 'gold'"
    assert "true, then SET tier = 'gold'" in cli.ok("rule", "list", "events", "large").out
    assert cli.ok("rule", "delete", "events", "large", "EU").out == (
        "deleted rule EU; left: $Default, all, none\n"
    )
    cli.fails(3, "entity_not_found", "rule", "delete", "events", "large", "eu")
    cli.fails(2, "usage", *add, "x")
    cli.fails(2, "usage", *add, "x", "--all", "--none")
    cli.fails(2, "filter_syntax", *add, "x", "--all", "--action", "SET")


def test_what_a_rule_says_of_a_message_and_why(cli: Program, tmp_path: Path) -> None:
    cli.ok("rule", "add", "events", "large", "eu", "-p", "region=EU")

    def said(*arguments: str, stdin: str = "") -> list[tuple[int, str, bool | None, str]]:
        return [tuple(row.values()) for row in cli.ok("rule", "test", *arguments, "--json", stdin=stdin).json]

    assert said("events", "large", "-p", "amount=150", "-p", "region=US") == [
        (1, "$Default", True, "amount is 150"),
        (1, "eu", False, "region is 'US', 'EU' is wanted"),
    ]
    lines = (
        '{"body": 1, "properties": {"amount": 5}}\n\n'
        '{"body": 2}\n{"body": 3, "properties": {"amount": "x"}}\n'
    )
    file = tmp_path / "messages.jsonl"
    file.write_text(lines)
    expected = [
        (1, "--filter", False, "amount is 5"),
        (2, "--filter", False, "unknown: amount is not set"),
        (3, "--filter", None, "expected two values of the same kind around >, got text and a number"),
    ]
    assert said("--filter", "amount > 100", "--file", str(file)) == expected
    assert said("--filter", "amount > 100", "--file", "-", stdin=lines) == expected
    assert "yes" in cli.ok("rule", "test", "--filter", "sys.Label = 'x'", "--subject", "x").out
    assert said("--filter", "t = TRUE AND u = 1.5 AND v = '5'", "-p", "t=true", "-p", "u=1.5", "-p", 'v="5"')[
        0
    ][2]
    cli.fails(2, "usage", "rule", "test")
    cli.fails(2, "filter_syntax", "rule", "test", "--filter", "a")
    file.write_text('{"body": 1}\n{"bod": 1}\n')
    cli.fails(1, "bad_line", "rule", "test", "--filter", "a = 1", "--file", str(file))
    with cli.broker() as broker:
        assert broker.subscription("events", "audit").queue.counts.total == 0
