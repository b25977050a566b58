"""Tokens and keys: never printed, kept in files for their owner alone, and told of where others read them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import lazaretto
from lazaretto.cli.doctor_command import needless_rights
from lazaretto.cli.served_doors import ServedDoors, risks_of
from lazaretto.model.grants import Grant, Role

TOKEN = "0123456789abcdefghijkl"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LAZARETTO_STORE", str(tmp_path / "s.db"))
    with lazaretto.connect(tmp_path / "s.db") as broker:
        broker.create_queue("q")
    return [sys.executable, "-m", "lazaretto"]


def ran(program: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*program, *words], capture_output=True, text=True, timeout=120)


@contextlib.contextmanager
def serving(program: list[str], *words: str, lines: int = 1) -> Iterator[tuple[list[str], list[str]]]:
    """Serve; yield the first lines that it prints, and a list that has what it said besides, afterwards."""
    command = [*program, "serve", "--http", "0", *words]
    rest: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield [server.stdout.readline() for _ in range(lines)], rest
            server.send_signal(signal.SIGTERM)
            rest += server.communicate(timeout=120)
            assert server.returncode == 0, rest
        finally:
            server.kill()


def test_a_token_that_is_made_is_in_a_file(program: list[str]) -> None:
    with serving(program, "--json") as ((line,), rest):
        told = json.loads(line)
        file = Path(told["token_file"])
        token = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert len(token) >= 40 and token not in line
        address = told["url"].replace("localhost", "127.0.0.1")
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{address}/queues", headers=headers, timeout=120).status_code == 200
    assert not file.exists()
    # What a server that was killed has left is removed by the next.
    left = file.with_name("serve-4194305.token")
    left.write_text(token)
    with serving(program, "--json"):
        assert not left.exists()
    assert token not in "".join(rest)


@pytest.mark.parametrize("given", [True, False])
def test_the_link_is_first_and_the_token_is_not_printed(
    program: list[str], tmp_path: Path, given: bool
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    words = ("--token-file", str(file)) if given else ()
    with serving(program, *words, lines=5) as (lines, rest):
        pass
    assert "log in within a minute" in lines[0] and "/login?code=lzl_" in lines[1]
    assert TOKEN not in "".join(lines + rest) and "lzt_" not in "".join(lines + rest)
    assert ".token" in lines[4] if not given else str(file) in lines[4]
    assert "warning" not in "".join(rest)


def test_short_tokens_are_refused(program: list[str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN[:-1])
    refused = ran(program, "serve", "--http", "0", "--token-file", str(tmp_path / "token"))
    assert refused.returncode == 2
    assert "at least 22 characters" in refused.stderr and TOKEN[:-1] not in refused.stderr


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_files_that_others_read_are_told_of(program: list[str], tmp_path: Path) -> None:
    """At the start, and by `doctor` while the server runs."""
    for name, mode in (("token", 0o644), ("key", 0o620), ("secret", 0o600)):
        (tmp_path / name).write_text(TOKEN if name == "token" else "short")
        (tmp_path / name).chmod(mode)
    words = ("--amqp", "0", "--token-file", str(tmp_path / "token"), "--key-file", str(tmp_path / "key"))
    with serving(program, *words, "--json") as (_, rest):
        found = json.loads(ran(program, "doctor", "--json").stdout)
    for told in (rest[1], "\n".join(found["problems"])):
        assert "others may read" in told and str(tmp_path / "token") in told
        assert "others may write" in told and str(tmp_path / "key") in told
    assert "fewer than 16 characters" in rest[1]
    assert any("fewer than 16 characters" in text for text in found["notices"])
    (tmp_path / "s.db").chmod(0o644)
    after = json.loads(ran(program, "doctor", "--json").stdout)
    assert [text for text in after["problems"] if "s.db" in text] == after["problems"] != []


@pytest.mark.parametrize(
    ("doors", "problems", "notices"),
    [
        (ServedDoors([], [], http_host="127.0.0.1", amqp_host="::1"), 0, 0),
        (ServedDoors([], [], http_host="0.0.0.0"), 1, 0),
        (ServedDoors([], [], http_host="10.0.0.5", http_tls=True), 0, 0),
        (ServedDoors([], [], http_host="10.0.0.5", proxied=True), 0, 1),
        (ServedDoors([], [], http_host="localhost", login=False), 0, 1),
        (ServedDoors([], [], amqp_host="127.0.0.1", keys=False), 0, 1),
        (ServedDoors([], [], amqp_host="0.0.0.0", keys=False), 2, 0),
        (ServedDoors([], [], amqp_host="0.0.0.0", amqp_tls=True), 0, 0),
        (ServedDoors([], [], amqp_host="localhost", short_key=True), 0, 1),
    ],
)
def test_what_is_risky_about_doors(doors: ServedDoors, problems: int, notices: int) -> None:
    found = risks_of(doors)
    assert (len(found.problems), len(found.notices)) == (problems, notices), found


@pytest.mark.parametrize(
    ("name", "grants", "lasting", "notices"),
    [
        ("ana", (Grant(Role.OPERATOR),), False, 0),
        ("ana", (Grant(Role.ADMIN),), False, 0),
        ("ana", (Grant(Role.ADMIN), Grant(Role.VIEWER, "shop/*")), False, 1),
        ("ana", (Grant(Role.READER), Grant(Role.READER, "orders")), False, 1),
        ("ana", (Grant(Role.CLIENT, "a"), Grant(Role.OPERATOR, "b")), False, 0),
        ("group:all", (Grant(Role.ADMIN),), False, 1),
        ("till", (Grant(Role.CLIENT, "a"), Grant(Role.INSPECTOR, "b")), False, 1),
        ("ana", (Grant(Role.ADMIN),), True, 1),
    ],
)
def test_needless_rights(name: str, grants: tuple[Grant, ...], lasting: bool, notices: int) -> None:
    assert len(needless_rights(name, grants, lasting=lasting)) == notices
