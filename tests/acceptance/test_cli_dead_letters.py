"""`lazaretto dead-letter`: list, show, groups, resubmit, move, republish, purge."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cli_program import Program, set_aside


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    """A program whose queue `orders` has dead letters 1 to 5; 2 and 4 failed with KeyError."""
    program = Program(tmp_path / "store.db")
    with program.broker() as broker:
        set_aside(broker, "orders", [b"one", b"two: no", b"three", b"four: no", b"five"])
    return program


def _numbers(cli: Program, *arguments: str) -> list[int]:
    return [letter["sequence_number"] for letter in cli.ok("dead-letters", *arguments, "--json").json]


def test_list(cli: Program) -> None:
    rows = cli.ok("dead-letter", "list", "orders").out.splitlines()
    assert len(rows) == 6
    assert rows[2].split()[0] == "2"
    assert rows[2].split()[3:6] == ["MaxDeliveryCountExceeded", "KeyError", "2"]
    first = cli.ok("dead-letter", "list", "orders", "--json").json[0]
    assert (first["queue"], first["error_type"], first["error_message"]) == ("orders", "ValueError", "one")
    assert first["counters"]["failures"] == 2
    assert first["message"]["body"] == "one"
    assert datetime.now(UTC) - datetime.fromisoformat(first["dead_lettered"]) < timedelta(minutes=5)
    assert cli("dead-letter", "list", "$system/deadletter").err.startswith("no dead letters in")


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        ([], [1, 2, 3, 4, 5]),
        (["2", "5", "99"], [2, 5]),
        (["--limit", "2"], [1, 2]),
        (["--error-type", "KeyError"], [2, 4]),
        (["--reason", "MaxDeliveryCountExceeded", "--text", ": no"], [2, 4]),
        (["--reason", "Other"], []),
        (["--text", "four"], [4]),
        (["--since", "1h"], [1, 2, 3, 4, 5]),
        (["--until", "1h"], []),
        (["--since", "2000-01-01", "--until", "2100-01-01T00:00:00Z"], [1, 2, 3, 4, 5]),
        (["--since", "2100-01-01"], []),
    ],
)
def test_filters(cli: Program, filters: list[str], numbers: list[int]) -> None:
    assert _numbers(cli, "list", "orders", *filters) == numbers
    assert _numbers(cli, "list", "orders;poison", *filters) == numbers


def test_show_tells_every_attempt_with_its_stack(cli: Program) -> None:
    shown = cli.ok("dead-letter", "show", "orders", "2").out
    for text in ("MaxDeliveryCountExceeded", "  1. ", "  2. ", "failed after", "body (7 bytes)\n  two: no\n"):
        assert text in shown
    assert shown.count("     KeyError: 'two: no'\n") == 4
    assert shown.count("Traceback (most recent call last):\n") == 2
    letter = cli.ok("dead-letter", "show", "orders", "2", "--json").json
    assert [(a["number"], a["outcome"]) for a in letter["attempts"]] == [(1, "failed"), (2, "failed")]
    assert letter["attempts"][0]["stack"].startswith("Traceback")
    cli.fails(3, "message_not_found", "dead-letter", "show", "orders", "99")
    cli.fails(3, "entity_not_found", "dead-letter", "show", "nothing", "1")


def test_groups(cli: Program) -> None:
    rows = cli.ok("dead-letter", "groups", "orders").out.splitlines()
    assert [row.split()[:3] for row in rows[1:]] == [
        ["3", "MaxDeliveryCountExceeded", "ValueError"],
        ["2", "MaxDeliveryCountExceeded", "KeyError"],
    ]
    found = cli.ok("dead-letter", "groups", "orders", "--json").json
    assert [(g["count"], g["error_type"], g["example"]) for g in found] == [
        (3, "ValueError", 1),
        (2, "KeyError", 2),
    ]


def test_resubmit_by_filter_after_a_dry_run(cli: Program) -> None:
    by_type = ("resubmit", "orders", "--error-type", "KeyError")
    assert _numbers(cli, *by_type, "--dry-run") == [2, 4]
    assert _numbers(cli, "list", "orders") == [1, 2, 3, 4, 5]
    assert cli.ok("dead-letters", *by_type).out == "resubmitted 2 dead letters to orders\n"
    assert _numbers(cli, "list", "orders") == [1, 3, 5]
    received = cli.ok("receive", "orders", "-n", "9", "--complete", "--json").json
    assert [(m["sequence_number"], m["body"], m["generation"]) for m in received] == [
        (6, "two: no", 1),
        (7, "four: no", 1),
    ]
    shown = cli.ok("dead-letter", "show", "orders", "2", "--json").json
    assert (shown["resolution"], shown["resubmitted_as"]) == ("resubmitted", 6)


def test_resubmit_by_number_names_what_was_left(cli: Program) -> None:
    assert cli.ok("dead-letter", "resubmit", "orders", "3").out == (
        "resubmitted 1 dead letter to orders: 3 as 6\n"
    )
    result = cli("dead-letter", "resubmit", "orders", "1", "3", "99", "--json")
    assert result.code == 1
    assert result.json["resubmitted"] == {"1": 7}
    assert [s["sequence_number"] for s in result.json["skipped"]] == [3, 99]
    assert result.err == "error[not_resubmitted]: not resubmitted: 3 (already resubmitted), 99 (not found)\n"
    cli.fails(3, "not_resubmitted", "dead-letter", "resubmit", "orders", "99")
    cli.fails(2, "usage", "dead-letter", "resubmit", "orders", "0")


def test_resubmit_edited(cli: Program, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"repaired\xff")
    cli.ok("dead-letter", "resubmit", "orders", "2", "--edit-body", str(tmp_path / "body"))
    cli.ok("dead-letter", "resubmit", "orders", "4", "--edit-body", "-", stdin="again")
    with cli.broker() as broker:
        old = broker.dead_letter("orders", 2)
        one, two = broker.peek("orders", 2)
    assert (one.body, two.body) == (b"repaired\xff", b"again")
    assert (one.edit_of, one.message_id != old.message_id) == (old.message_id, True)
    missing = str(tmp_path / "missing")
    cli.fails(2, "usage", "dead-letter", "resubmit", "orders", "1", "--edit-body", missing)


def test_resubmit_and_purge_all_only_when_spelled_out(cli: Program) -> None:
    for verb in ("resubmit", "purge"):
        assert "--all" in cli.fails(2, "usage", "dead-letters", verb, "orders")
        assert _numbers(cli, verb, "orders", "--all", "--dry-run") == [1, 2, 3, 4, 5]
    assert cli.ok("dead-letter", "resubmit", "orders", "--all", "--json").json["skipped"] == []
    assert len(cli.ok("peek", "orders", "--json").json) == 5


def test_purge(cli: Program) -> None:
    assert cli.ok("dead-letter", "purge", "orders", "--text", ": no", "--json").json["purged"] == [2, 4]
    assert (
        cli.ok("dead-letter", "purge", "orders", "1").out
        == "purged 1 dead letter of orders, kept for 7 days\n"
    )
    error = cli.fails(1, "not_purged", "dead-letter", "purge", "orders", "1", "3")
    assert "not purged: 1 (" in error
    cli.fails(3, "not_purged", "dead-letter", "purge", "orders", "1", "99")
    cli.ok("dead-letter", "purge", "orders", "--all", "--yes")
    assert _numbers(cli, "list", "orders") == []
    assert cli.ok("dead-letter", "restore", "orders", "2", "--json").json["restored"] == [2]
    assert cli.ok("dead-letter", "restore", "orders").out == "restored 4 dead letters of orders\n"
    cli.fails(3, "not_restored", "dead-letter", "restore", "orders", "99")
    assert _numbers(cli, "list", "orders") == [1, 2, 3, 4, 5]
    cli.ok("dead-letter", "purge", "orders", "--all", "--yes")
    assert "--count" in cli.fails(2, "usage", "dead-letter", "delete", "orders")
    assert "which is 5" in cli.fails(2, "invalid_option", "dead-letter", "delete", "orders", "--count", "4")
    code, shown = cli.on_terminal("dead-letter", "delete", "orders", typed=b"5\n")
    assert (code, "deleted 5 purged dead letters" in shown) == (0, True)
    assert cli.ok("dead-letter", "show", "orders", "5", "--json").json["resolution"] == "deleted"
    none = "deleted 0 purged dead letters of orders for good\n"
    assert cli.ok("dead-letter", "delete", "orders").out == none


def test_purging_all_asks(cli: Program) -> None:
    waiting = len(_numbers(cli, "list", "orders"))
    assert "needs --yes" in cli.fails(2, "usage", "dlq", "purge", "orders", "--all")
    code, shown = cli.on_terminal("dlq", "purge", "orders", "--all", typed=b"n\n")
    assert (code, "nothing was purged" in shown) == (1, True)
    assert len(_numbers(cli, "list", "orders")) == waiting
    code, shown = cli.on_terminal("dead-letters", "purge", "orders", "--all", typed=b"y\n")
    assert code == 0
    assert f"Purge all {waiting} dead letters of orders?" in shown
    assert _numbers(cli, "list", "orders") == []


def test_many_dead_letters(tmp_path: Path) -> None:
    cli = Program(tmp_path / "many.db")
    with cli.broker() as broker:
        set_aside(broker, "orders", [str(i).encode() for i in range(1200)])
    assert len(cli.ok("dead-letter", "list", "orders").out.splitlines()) == 1201
    code, shown = cli.on_terminal("dead-letter", "list", "orders")
    assert code == 0
    assert sum(line.split()[0].isdecimal() for line in shown.splitlines() if line.strip()) == 1200
    code, shown = cli.on_terminal("dead-letter", "resubmit", "orders", "--all")
    assert code == 0
    assert "resubmitting to orders" in shown
    assert "resubmitted 1200 dead letters" in shown


def test_move_to_another_queue(cli: Program) -> None:
    cli.ok("queue", "create", "desk", "--requires-duplicate-detection")
    assert _numbers(cli, "move", "orders", "--to", "desk", "--error-type", "KeyError", "--dry-run") == [2, 4]
    moved = cli.ok("dead-letter", "move", "orders", "--to", "desk", "--error-type", "KeyError")
    assert moved.out == "moved 2 dead letters to desk\n"
    assert cli.ok("dead-letter", "move", "orders", "5", "--to", "desk").out.endswith("to desk: 5 as 3\n")
    assert _numbers(cli, "list", "orders") == [1, 3]
    peeked = cli.ok("peek", "desk", "--json").json
    assert [(m["body"], m["dead_letter_source"]) for m in peeked] == [
        ("two: no", "orders"),
        ("four: no", "orders"),
        ("five", "orders"),
    ]
    shown = cli.ok("dead-letter", "show", "orders", "4").out
    assert re.search(r"became +moved\n", shown)
    assert re.search(r"as message +2\n *in +desk\n", shown)
    assert cli.ok("audit", "--json").json[0]["action"] == "move"


def test_a_move_names_what_stays(cli: Program) -> None:
    cli.ok("queue", "create", "desk")
    refused = cli.fails(1, "not_moved", "dead-letter", "move", "orders", "1", "99", "--to", "desk")
    assert "99 (not found)" in refused
    cli.fails(3, "not_moved", "dead-letter", "move", "orders", "99", "--to", "desk")
    cli.fails(2, "usage", "dead-letter", "move", "orders", "1")
    cli.fails(2, "usage", "dead-letter", "move", "orders", "--to", "desk")
    cli.fails(3, "entity_not_found", "dead-letter", "move", "orders", "2", "--to", "nowhere")
    cli.fails(1, "not_allowed", "dead-letter", "move", "orders", "2", "--to", "orders")
    assert _numbers(cli, "list", "orders") == [2, 3, 4, 5]


@pytest.fixture
def topic(cli: Program) -> str:
    """The subscription `all` of a topic, with dead letters 1 and 2; `red` wants the first alone."""
    cli.ok("topic", "create", "t")
    cli.ok("subscription", "create", "t", "all")
    cli.ok("subscription", "create", "t", "red", "--filter", "colour = 'red'")
    for colour in ("red", "blue"):
        cli.ok("send", "t", colour, "--property", f"colour={colour}")
    cli.ok("receive", "t/subscriptions/all", "-n", "2", "--dead-letter")
    cli.ok("receive", "t/subscriptions/red", "--complete")
    return "t/subscriptions/all"


def test_republish_counts_first(cli: Program, topic: str) -> None:
    counted = """2 dead letters to t: 3 messages in 2 subscriptions
  2 to t/subscriptions/all
  1 to t/subscriptions/red
"""
    assert cli.ok("dead-letter", "republish", topic, "--all", "--dry-run").out == counted
    refused = cli("dead-letter", "republish", topic, "--all")
    assert (refused.code, refused.out) == (2, counted)
    assert "needs --yes" in refused.err
    assert _numbers(cli, "list", topic) == [1, 2]
    done = cli.ok("dead-letter", "republish", topic, "--all", "--yes").out
    assert done == counted + "republished 2 dead letters\n"
    assert _numbers(cli, "list", topic) == []
    assert [m["body"] for m in cli.ok("peek", "t/subscriptions/red", "--json").json] == ["red"]


def test_republish_asks_a_person(cli: Program, topic: str) -> None:
    code, shown = cli.on_terminal("dead-letter", "republish", topic, "1", typed=b"n\n")
    assert (code, "2 messages in 2 subscriptions" in shown) == (1, True)
    assert "Publish 1 dead letter again?" in shown
    assert _numbers(cli, "list", topic) == [1, 2]
    assert cli.on_terminal("dead-letter", "republish", topic, "1", typed=b"y\n")[0] == 0
    assert _numbers(cli, "list", topic) == [2]


def test_republish_leaves_what_nobody_wants(cli: Program, topic: str) -> None:
    cli.ok("topic", "create", "picky")
    cli.ok("subscription", "create", "picky", "red", "--filter", "colour = 'red'")
    result = cli("dead-letter", "republish", topic, "--all", "--topic", "picky", "--yes", "--json")
    assert (result.code, result.json["published"]) == (1, {"1": 1})
    assert "2 (No subscription of the topic 'picky' matches it.)" in result.err
    assert _numbers(cli, "list", topic) == [2]
    assert "name the topic" in cli.fails(1, "not_allowed", "dead-letter", "republish", "orders", "1", "--yes")


def test_edits(tmp_path: Path) -> None:
    cli = Program(tmp_path / "edits.db")
    with cli.broker() as broker:
        set_aside(broker, "orders", [b'{"price": 1.10, "to": "x"}'] * 3)
    change = "SET body.to = 'eu'"
    shown = cli.ok("dead-letter", "resubmit", "orders", "1", "--edit", change, "--dry-run").out
    assert '- body.to: "x"\n  + body.to: "eu"' in shown
    assert _numbers(cli, "list", "orders") == [1, 2, 3]
    (told,) = cli.ok("dead-letter", "resubmit", "orders", "1", "--edit", change, "--dry-run", "--json").json
    assert (told["refused"], len(told["differences"])) == (None, 2)
    (tmp_path / "edit.json").write_text('{"to": null}')
    cli.ok("dead-letter", "resubmit", "orders", "1", "--edit", f"@{tmp_path / 'edit.json'}", "--yes")
    cli.fails(2, "filter_syntax", "dead-letter", "resubmit", "orders", "2", "--edit", "SING")
    cli.fails(2, "usage", "dead-letter", "resubmit", "orders", "2", "3", "--edit")
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/x/us/ "$1"\n')
    editor.chmod(0o755)
    cli.environment |= {"VISUAL": "", "EDITOR": str(editor)}
    for more in ([], ["--json"]):
        assert "--yes" in cli.fails(2, "usage", "dead-letter", "resubmit", "orders", "2", "--edit", *more)
    cli.ok("dead-letter", "resubmit", "orders", "2", "--edit", "--yes")
    cli.environment["EDITOR"] = "true"
    cli.fails(1, "cancelled", "dead-letter", "resubmit", "orders", "3", "--edit", "--yes")
    with cli.broker() as broker:
        found = [message.body for message in broker.peek("orders", 9)]
    assert found == [b'{"price": 1.10}', b'{"price": 1.10, "to": "us"}']


class TestExport:
    """`lazaretto dead-letter export`."""

    def test_lines_can_be_sent_again(self, cli: Program) -> None:
        lines = cli.ok("dead-letter", "export", "orders", "--error-type", "KeyError").out
        assert [json.loads(line)["body"] for line in lines.splitlines()] == ["two: no", "four: no"]
        cli.ok("queue", "create", "desk")
        cli.ok("send", "desk", "--jsonl", stdin=lines)
        assert [m["body"] for m in cli.ok("peek", "desk", "--json").json] == ["two: no", "four: no"]
        assert _numbers(cli, "list", "orders") == [1, 2, 3, 4, 5]

    def test_more_letters_than_a_page(self, cli: Program, tmp_path: Path) -> None:
        bodies = [b"%d" % number for number in range(250)]
        with cli.broker() as broker:
            set_aside(broker, "many", bodies)
        file = tmp_path / "many.jsonl"
        done = cli.ok("dead-letter", "export", "many", "--output", str(file), "--json").json
        assert done == {"queue": "many", "file": str(file), "exported": 250}
        assert [json.loads(line)["body"].encode() for line in file.read_bytes().splitlines()] == bodies
        table = cli.ok("dead-letter", "export", "many", "--format", "csv").out
        rows = list(csv.DictReader(table.splitlines()))
        assert [int(row["sequence_number"]) for row in rows] == list(range(1, 251))

    def test_a_file_is_new_private_and_whole(self, cli: Program, tmp_path: Path) -> None:
        file = tmp_path / "letters.csv"
        arguments = ["dead-letter", "export", "orders", "--format", "csv", "--output", str(file)]
        assert "exported 5 dead letters" in cli.ok(*arguments).out
        assert file.stat().st_mode & 0o777 == 0o600
        before = file.read_bytes()
        again = cli(*arguments)
        assert (again.code, file.read_bytes()) == (2, before)
        assert "exists" in again.err
        missing = tmp_path / "none.jsonl"
        assert cli("dead-letter", "export", "none", "--output", str(missing)).code == 3
        assert not missing.exists()

    @pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
    def test_no_cell_is_a_formula(self, cli: Program, start: str) -> None:
        with cli.broker() as broker:
            set_aside(broker, "odd", [f"{start}1+1".encode()])
        rows = io.StringIO(cli.ok("dead-letter", "export", "odd", "--format", "csv").out, newline="")
        assert next(csv.DictReader(rows))["error_message"] == f"'{start}1+1"

    def test_no_cell_of_a_listing_is_a_formula(self, cli: Program) -> None:
        with cli.broker() as broker:
            set_aside(broker, "odd", [b"=1+1"])
        listed = cli.ok("dead-letter", "list", "odd", "--csv").out.splitlines()
        assert next(csv.DictReader(listed))["error"] == "'=1+1"
