"""`lazaretto session`, and the queue's options for sessions and the breaker."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from cli_program import Program

from lazaretto import (
    BreakerPolicy,
    Message,
    PoisonPolicy,
    PoisonSession,
    QueueOptions,
    ReceivedMessage,
    SessionHeld,
)


def refuse_two(message: ReceivedMessage) -> None:
    if message.body == b"2":
        raise ValueError("two")


def make(program: Program, mode: PoisonSession) -> None:
    """Have sessions a and b with messages 1, 2, 3, in which 2 is poison, and c with a 1."""
    with program.broker() as broker:
        policy = PoisonPolicy(receive_retry_count=0)
        options = QueueOptions(requires_session=True, on_poison_session=mode, policy=policy)
        broker.create_queue("steps", options)
        bodies = [("a", n) for n in "123"] + [("b", n) for n in "123"] + [("c", "1")]
        broker.sender("steps").send([Message(n.encode(), session_id=s) for s, n in bodies])
        for session in "ab":
            with contextlib.suppress(SessionHeld):
                broker.consume("steps", refuse_two, session=session, stop_when_idle=True, batch_size=1)


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    return Program(tmp_path / "store.db")


def test_sessions_are_listed_and_those_held_back_by_themselves(cli: Program) -> None:
    make(cli, PoisonSession.BLOCK)
    rows = [line.split() for line in cli.ok("session", "list", "steps").out.splitlines()]
    assert rows[0][:2] == ["session", "messages"]
    assert [row[0] for row in rows[1:]] == ["a", "b", "c"]
    held = cli.ok("session", "list", "steps", "--held", "--json").json
    assert [(s["session_id"], s["held"]["sequence_number"], s["held"]["mode"]) for s in held] == [
        ("a", 2, "block"),
        ("b", 5, "block"),
    ]


def test_one_is_shown_with_what_holds_it(cli: Program) -> None:
    make(cli, PoisonSession.PARK)
    shown = cli.ok("session", "show", "steps", "a").out
    assert "held back by  message 2 since " in shown
    assert "MaxDeliveryCountExceeded (park)" in shown
    assert cli.ok("session", "show", "steps", "c", "--json").json["held"] is None
    cli.fails(3, "message_not_found", "session", "show", "steps", "nobody")


@pytest.mark.parametrize(
    ("mode", "verdict", "left"),
    [
        (PoisonSession.BLOCK, "retry", [b"2", b"3"]),
        (PoisonSession.BLOCK, "move", [b"3"]),
        (PoisonSession.BLOCK, "drop", [b"3"]),
        (PoisonSession.BLOCK, "reject", [b"3"]),
        (PoisonSession.PARK, "retry", [b"2", b"3"]),
        (PoisonSession.PARK, "skip", [b"3"]),
    ],
)
def test_a_verdict_lets_it_go_on(cli: Program, mode: PoisonSession, verdict: str, left: list[bytes]) -> None:
    make(cli, mode)
    cli.fails(4, "session_held", "receive", "steps", "--session", "a")
    cli.ok("session", "resume", "steps", "a", "--verdict", verdict)
    with cli.broker() as broker, broker.receiver("steps", session="a") as receiver:
        assert [m.body for m in receiver.receive(10)] == left
    assert [s["session_id"] for s in cli.ok("session", "list", "steps", "--held", "--json").json] == ["b"]
    assert cli.ok("audit", "--json").json[0]["action"] == "resume_session"


def test_verdicts_that_make_no_sense(cli: Program) -> None:
    make(cli, PoisonSession.PARK)
    cli.fails(2, "invalid_option", "session", "resume", "steps", "a", "--verdict", "drop")
    cli.fails(1, "entity_error", "session", "resume", "steps", "c", "--verdict", "retry")
    cli.fails(2, "usage", "session", "resume", "steps", "a", "--verdict", "burn")
    cli.fails(2, "usage", "session", "resume", "steps", "a")


def test_options_for_sessions_and_the_breaker(cli: Program) -> None:
    cli.ok(
        *("queue", "create", "steps", "--requires-session", "--on-poison-session", "park"),
        *("--breaker-messages", "5", "--breaker-share", "0.5", "--breaker-window", "2m"),
        *("--breaker-probe-interval", "3s", "--breaker-longest-probe-interval", "10s"),
    )
    with cli.broker() as broker:
        options = broker.queue("steps").options
        assert options.on_poison_session is PoisonSession.PARK
        assert options.breaker == BreakerPolicy(
            messages=5, share=0.5, window=120, probe_interval=3, longest_probe_interval=10
        )
    shown = cli.ok("queue", "show", "steps").out
    assert "park" in shown
    cli.ok("queue", "update", "steps", "--no-breaker", "--on-poison-session", "whole")
    with cli.broker() as broker:
        options = broker.queue("steps").options
        assert (options.breaker, options.on_poison_session) == (None, PoisonSession.WHOLE)
    cli.ok("queue", "update", "steps", "--breaker")
    with cli.broker() as broker:
        assert broker.queue("steps").options.breaker == BreakerPolicy()


def test_options_that_contradict_each_other(cli: Program) -> None:
    create = ("queue", "create", "steps")
    cli.fails(2, "usage", *create, "--no-breaker", "--breaker-messages", "5")
    cli.fails(2, "invalid_option", *create, "--on-poison-session", "park")
    cli.fails(2, "invalid_option", *create, "--breaker-share", "7")
