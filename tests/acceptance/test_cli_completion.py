"""Shells complete commands, options, choices, and the names that stand in the store."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_program import Program

import lazaretto
from lazaretto.cli import main
from lazaretto.cli.completion import VARIABLE

Complete = Callable[..., list[str]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "store.db"
    with lazaretto.connect(path) as broker:
        broker.create_queues(["orders", "orders-old", "shop/refunds"])
        broker.create_topic("events")
        broker.create_subscription("events", "audit")
    return path


@pytest.fixture
def completed(store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """Return what the last of some words could become, in a shell that takes values with help."""
    monkeypatch.setenv("LAZARETTO_STORE", str(store))

    def complete(*words: str, shell: str = "zsh") -> list[str]:
        monkeypatch.setenv(VARIABLE, shell)
        assert main(list(words)) == 0
        found = capsys.readouterr()
        assert found.err == ""
        lines = found.out.splitlines()
        return lines if shell == "bash" else [line.split("\t")[1] for line in lines]

    return complete


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("que",), ["queue"]),
        (("queue", "up"), ["update"]),
        (("queues", "up"), ["update"]),
        (("dialog", "create", "con"), ["contract"]),
        (("queue", "resume", "orders", "--verd"), ["--verdict"]),
        (("queue", "resume", "orders", "--verdict", ""), ["retry", "move", "drop", "reject"]),
        (("events", "--kind", "queue_h"), ["queue_halted"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("peek", "ord"), ["orders", "orders-old"]),
        (("queue", "show", "$"), ["$system/deadletter"]),
        (("peek", "EV"), []),
        (("peek", "events/"), ["events/subscriptions/audit"]),
        (("topic", "show", ""), ["events"]),
        (("send", "e"), ["events"]),
        (("subscription", "show", "Events", ""), ["audit"]),
        (("dead-letter", "move", "orders", "--to", "sh"), ["shop/refunds"]),
    ],
)
def test_values(completed: Complete, words: tuple[str, ...], values: list[str]) -> None:
    assert completed(*words) == values


def test_all_commands_with_what_they_do(store: Path) -> None:
    program = Program(store)
    program.environment[VARIABLE] = "fish"
    lines = program.ok("").out.splitlines()
    assert "plain\tqueue\tCreate, inspect, change, delete and resume queues." in lines


def test_the_store_may_be_named(completed: Complete, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAZARETTO_STORE")
    assert completed("peek", "ord") == []
    assert completed("--store", str(store), "peek", "ord") == ["orders", "orders-old"]
    assert completed("peek", "--store", f"sqlite:///{store}", "ord") == ["orders", "orders-old"]


def test_a_store_that_cannot_be_read_is_no_reason_to_complain(
    completed: Complete, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("no database")
    for url in (
        tmp_path / "missing.db",
        tmp_path / "text",
        tmp_path,
        "sqlite:/x",
        "postgresql://127.0.0.1:1/x",
    ):
        monkeypatch.setenv("LAZARETTO_STORE", str(url))
        assert completed("peek", "ord") == []
    assert not (tmp_path / "missing.db").exists()


def test_names_are_read_while_another_process_writes(completed: Complete, store: Path) -> None:
    with sqlite3.connect(store) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert completed("peek", "ord") == ["orders", "orders-old"]
        writer.rollback()
    writer.close()


@pytest.mark.parametrize(
    ("line", "replaced", "values"),
    [
        ("lazaretto peek or", "or", ["orders", "orders-old"]),
        ("lazaretto peek ", "", ["'$system/deadletter'", "events/subscriptions/audit", "orders"]),
        ("lazaretto peek 'or", "or", ["orders", "orders-old"]),
        ("lazaretto peek '$s", "$s", ["$system/deadletter"]),
        ("lazaretto events --queue=or", "or", ["orders", "orders-old"]),
    ],
)
def test_words_of_bash(completed: Complete, line: str, replaced: str, values: list[str]) -> None:
    assert completed(line, replaced, shell="bash")[: len(values)] == values


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_reads(store: Path, shell: str) -> None:
    script = Program(store).ok("completion", shell).out
    assert VARIABLE in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=120)


def test_in_bash(store: Path, tmp_path: Path) -> None:
    command = tmp_path / "lazaretto"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lazaretto "$@"\n')
    command.chmod(0o755)
    (tmp_path / "rc").write_text('PS1="> "\nset +o history\neval "$(lazaretto completion bash)"\n')
    program = Program(store)
    program.environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    typed = b"lazaretto que\tli\t--col\tqueue\nlazaretto peek shop/r\t; exit 7\n"
    bash = ["bash", "--noprofile", "--rcfile", str(tmp_path / "rc"), "-i"]
    code, shown = program.on_terminal(typed=typed, command=bash)
    assert code == 7
    assert "lazaretto queue list --columns queue" in shown
    assert "$system/deadletter" in shown
    assert "lazaretto peek shop/refunds ; exit 7" in shown
