"""Errors as a person at a shell reads them: in its words, on one line, with what helps."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import Program, program_in

from lazaretto import Disposition, Message, PoisonPolicy, PoisonSession, QueueOptions


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return program_in(tmp_path, monkeypatch)


def test_a_missing_choice_is_told_on_one_line(cli: Program) -> None:
    told = cli.fails(2, "usage", "dialog", "delete")
    assert "Choose from: message-type, contract, service, priority" in told


@pytest.mark.parametrize(
    ("group", "names"),
    [
        (("topic",), "create, list, show, update, delete"),
        (("dialog", "create"), "message-type, contract, service, priority"),
        (("triage",), "list, show, merge"),
    ],
)
def test_a_missing_command_is_offered_those_there_are(
    cli: Program, group: tuple[str, ...], names: str
) -> None:
    told = cli.fails(2, "usage", *group)
    assert f"expected a command of `lazaretto {' '.join(group)}`, got none; there are: {names}" in told


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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("queue", "show", "news"), "'news' is a topic: `lazaretto topic show` describes it"),
        (("receive", "held"), "requires sessions: receive with --session ID or --next-session"),
        (("receive", "q", "--session", "a"), "receive from it without --session and --next-session"),
    ],
)
def test_advice_is_a_command_or_an_option(cli: Program, arguments: tuple[str, ...], told: str) -> None:
    cli.ok("topic", "create", "news")
    cli.ok("queue", "create", "held", "--requires-session")
    assert told in cli.fails(1, "not_allowed", *arguments)


def test_fields_of_a_line_of_json_keep_their_names(cli: Program) -> None:
    result = cli("send", "q", "--jsonl", stdin='{"body": "x", "message_id": 5}\n')
    assert result.code != 0
    assert "message_id" in result.err


def test_where_there_is_nothing_to_offer(cli: Program) -> None:
    assert cli.fails(3, "entity_not_found", "topic", "show", "x").endswith("'x'; none exists\n")


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


def test_a_folder_is_no_store(cli: Program, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    for command in (("queue", "list"), ("queue", "create", "x")):
        told = cli.fails(2, "invalid_option", "--store", "here", *command)
        assert "here is a folder: name the file in it" in told


@pytest.mark.parametrize("given", ["sqlite://orders.db", "sqlite:orders.db", "sqlite:/orders.db"])
def test_too_few_slashes(cli: Program, given: str) -> None:
    told = cli.fails(2, "invalid_option", "--store", given, "queue", "list")
    assert f"expected three slashes before a file's path: 'sqlite:///orders.db', got '{given}'" in told


@pytest.mark.parametrize("target", ["store.db", "./store.db", "sqlite:///store.db", "link.db"])
def test_a_store_is_not_copied_onto_itself(cli: Program, tmp_path: Path, target: str) -> None:
    (tmp_path / "link.db").symlink_to(cli.store)
    assert "got the same store" in cli.fails(2, "invalid_option", "store", "copy", target)


def test_doctor_names_all_that_stands_still(cli: Program) -> None:
    with cli.broker() as broker:
        sessions = QueueOptions(
            requires_session=True,
            on_poison_session=PoisonSession.BLOCK,
            policy=PoisonPolicy(receive_retry_count=0),
        )
        broker.create_queue("held", sessions)
        broker.sender("held").send(Message(b"x", session_id="s"))
        with broker.receiver("held", session="s") as receiver:
            receiver.abandon(receiver.receive())
        broker.set_breaker("q", "open")
        for path, status in (("deaf", "send_disabled"), ("mute", "receive_disabled")):
            broker.create_queue(path)
            broker.set_status(path, status)
        broker.create_topic("t")
        broker.create_subscription("t", "s")
        broker.set_status("t/subscriptions/s", "disabled")
        broker.create_topic("off")
        broker.set_status("off", "disabled")
    result = cli("doctor", "--json")
    assert (result.code, result.json["ok"]) == (1, False)
    told = "\n".join(result.json["problems"])
    for part in (
        "queue held has 1 session held back by a poison message",
        "the breaker of q is kept open by an operator",
        "queue deaf is send-disabled",
        "queue mute is receive-disabled",
        "queue t/subscriptions/s is disabled",
        "topic off is disabled",
    ):
        assert part in told
    assert len(result.json["problems"]) == 6


def test_the_error_itself_is_told_wherever_its_consequence_is(cli: Program) -> None:
    with cli.broker() as broker:
        policy = PoisonPolicy(receive_retry_count=0, on_poison=Disposition.FAULT)
        broker.create_queue("halted", QueueOptions(policy=policy))
        broker.sender("halted").send(Message(b"x"))
        with broker.receiver("halted") as receiver:
            receiver.abandon(receiver.receive(), error="ValueError: no such customer")
    for command in (("queue", "show", "halted"), ("receive", "halted"), ("doctor",)):
        result = cli(*command)
        assert "ValueError: no such customer" in result.out + result.err
