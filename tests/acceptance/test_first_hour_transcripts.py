"""The mistakes of a first hour at the prompt, typed into a shell, and what comes: first_hour.txt."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import program_in
from transcripts import commands_of, matches

PAGE = Path(__file__).with_name("first_hour.txt").read_text("utf-8")
#: Each has a title, a command, and what it answers.
MISTAKES = {
    part.partition("\n")[0]: part.partition("\n")[2]
    for part in re.split(r"\n\n", PAGE.strip())
    if "\n$ " in part
}


@pytest.mark.parametrize("title", MISTAKES)
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
