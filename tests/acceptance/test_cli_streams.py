"""The command without standard input, output or error, as with `>&-`, or with an output that is full."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_program import Program, program_in

from lazaretto import MessageState


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return program_in(tmp_path, monkeypatch)


def _redirected(cli: Program, redirection: str, *arguments: str) -> tuple[int, str, str]:
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "lazaretto", *arguments]
    with cli.start(command=shell) as process:
        out, err = process.communicate(timeout=120)
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
@pytest.mark.parametrize("arguments", [("queue", "list"), ("queue", "list", "--json"), ("--version",), ()])
def test_an_output_that_takes_nothing(cli: Program, redirection: str, arguments: tuple[str, ...]) -> None:
    code, _, err = _redirected(cli, redirection, *arguments)
    assert code == 1
    assert err.startswith("error[io_error]: ")
    assert err.count("\n") == 1


def test_what_cannot_be_shown_is_not_completed(cli: Program) -> None:
    cli.ok("send", "q", "x")
    code, _, _ = _redirected(cli, ">&-", "receive", "q", "--complete")
    with cli.broker() as broker:
        (message,) = broker.peek("q", 10)
    assert (code, message.state, message.delivery_count) == (1, MessageState.ACTIVE, 0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("send", "q", "--file", "-"), "error[usage]: --file - cannot be read: "),
        (("send", "q", "--jsonl"), "error[io_error]: "),
        (("command", "run", "create_queue", "-"), "error[io_error]: "),
        (("queue", "delete", "q"), "error[usage]: deleting queue q with "),
    ],
)
def test_an_input_that_is_closed(cli: Program, arguments: tuple[str, ...], told: str) -> None:
    code, out, err = _redirected(cli, "<&-", *arguments)
    assert (code in (1, 2), out, err.count("\n")) == (True, "", 1)
    assert err.startswith(told)
    with cli.broker() as broker:
        assert broker.peek("q", 1) == []


def test_nowhere_to_tell_errors(cli: Program) -> None:
    assert _redirected(cli, "2>&-", "queue", "list")[0] == 0
    assert _redirected(cli, "2>&-", "queue", "lst") == (2, "", "")
    assert _redirected(cli, "<&- >&- 2>&-", "queue", "list") == (1, "", "")
