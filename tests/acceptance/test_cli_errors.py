"""Errors as a person at a shell reads them: in its words, on one line, with what helps."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import Program


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.chdir(tmp_path)
    program = Program(tmp_path / "store.db")
    program.ok("queue", "create", "q")
    return program


def test_a_missing_choice_is_told_on_one_line(cli: Program) -> None:
    told = cli.fails(2, "usage", "queue", "status", "q")
    assert "Choose from: active, disabled, send-disabled, receive-disabled" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("queue", "create", "p", "--lock-duration", "0s"), "expected --lock-duration to be a duration"),
        (
            ("queue", "create", "p", "--on-poison-session", "block"),
            "--on-poison-session block needs a queue with --requires-session",
        ),
        (("queue", "update", "q", "--max-message-size", "5"), "expected --max-message-size to be"),
        (("topic", "create", "t", "--max-message-size", "5"), "expected --max-message-size to be"),
        (("send", "q", "x", "--ttl", "0s"), "expected --ttl to be seconds above 0"),
    ],
)
def test_options_are_named_as_they_are_given(cli: Program, arguments: tuple[str, ...], told: str) -> None:
    result = cli(*arguments)
    assert result.code in (1, 2)
    assert told in result.err


def test_fields_of_a_line_of_json_keep_their_names(cli: Program) -> None:
    result = cli("send", "q", "--jsonl", stdin='{"body": "x", "message_id": 5}\n')
    assert result.code != 0
    assert "message_id" in result.err


def test_where_there_is_nothing_to_offer(cli: Program) -> None:
    assert cli.fails(3, "entity_not_found", "topic", "show", "x").endswith("'x'; there is none\n")


def test_a_missing_handler_is_offered_what_the_module_made(cli: Program, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import os, json\n"
        "from lazaretto import Message\n"
        "from lazaretto.host import handler\n"
        "@handler('q')\n"
        "def book(message): ...\n"
        "def plain(message): ...\n"
    )
    told = cli.fails(2, "handler_error", "run", "shop:nosuch")
    assert told.endswith("'shop' has no 'nosuch'; there are: book, plain\n")
