"""The mistakes of a first hour, typed into a shell or Python, and what comes: first_hour.txt."""

from __future__ import annotations

import contextlib
import io
import os
import re
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from cli_program import program_in
from transcripts import commands_of, matches

import lazaretto

PAGE = Path(__file__).with_name("first_hour.txt").read_text("utf-8")
#: Each has a title, a command, and what it answers.
MISTAKES = {
    part.partition("\n")[0]: part.partition("\n")[2]
    for part in re.split(r"\n\n", PAGE.strip())
    if "\n$ " in part or "\n>>> " in part
}
IN_PYTHON = [title for title, mistake in MISTAKES.items() if mistake.startswith(">>> ")]


@pytest.mark.parametrize("title", [title for title in MISTAKES if title not in IN_PYTHON])
def test_a_mistake_is_answered_as_written(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = program_in(tmp_path, monkeypatch)
    cli.ok("queue", "create", "orders")
    command = tmp_path / "lazaretto"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lazaretto "$@"\n')
    command.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environment = {
            **cli.environment,
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "80",
            "TAKEN": str(taken.getsockname()[1]),
        }
        for typed, shown in commands_of(MISTAKES[title]):
            done = subprocess.run(
                ["sh", "-c", typed], env=environment, capture_output=True, text=True, timeout=120
            )
            assert matches(shown, done.stdout + done.stderr), done


def _type(statement: str, names: dict[str, object]) -> str:
    """Return what Python prints for a statement; of an error, the last line of its traceback."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(f"{statement}\n", "<stdin>", "single"), names)
        except Exception as error:
            printed.write("".join(traceback.format_exception_only(error)))
    return printed.getvalue()


@pytest.mark.parametrize("title", IN_PYTHON)
def test_a_mistake_in_python_is_answered_as_written(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with lazaretto.connect("shop.db") as broker:
        broker.create_queue("orders")
        names = {**vars(lazaretto), "lazaretto": lazaretto, "broker": broker}
        for typed, shown in commands_of(MISTAKES[title], ">>> ", "... "):
            printed = _type(typed, names)
            assert matches(shown, printed), printed
