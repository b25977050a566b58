"""The quickstart with curl on the page works as it stands."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lazaretto

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@contextlib.contextmanager
def started(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a program, and end it whatever happens."""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_quickstart(tmp_path: Path) -> None:
    begin, use = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    create, token, serve = begin.strip().splitlines()
    lazaretto_ = f"{sys.executable} -m lazaretto"
    subprocess.run(create.replace("lazaretto", lazaretto_, 1), shell=True, check=True, cwd=tmp_path)
    subprocess.run(["sh", "-e", "-c", token], check=True, cwd=tmp_path)
    assert (tmp_path / "token.txt").stat().st_mode & 0o777 == 0o600
    command = serve.replace("lazaretto", lazaretto_, 1).replace("8080", "0").split()
    with started([*command, "--json"], tmp_path) as server:
        assert server.stdout is not None
        told = json.loads(server.stdout.readline())
        script = use.replace("http://localhost:8080/api/v1", told["url"])
        run = ["sh", "-e", "-c", script]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0
    assert done.stdout.startswith('{"sequence_numbers":[1]}')
    with lazaretto.connect(tmp_path / "shop.db") as broker:
        (letter,) = broker.dead_letters("orders")
        assert letter.reason == "NoLamps"
        assert letter.message is not None
        assert letter.message.body == b'{"lamps": 3}'


def test_it_ends_at_once_with_streams_open(tmp_path: Path) -> None:
    """SIGTERM ends the server within two seconds, whoever listens."""
    with lazaretto.connect(tmp_path / "s.db") as broker:
        broker.create_queue("q")
    options = "serve --store s.db --http 0 --no-login --json"
    command = [sys.executable, "-m", "lazaretto", *options.split()]
    with started(command, tmp_path) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        listen = ["curl", "-sN", f"{url}/events/stream"]
        with started(listen, tmp_path) as listener:
            assert listener.stdout is not None
            assert listener.stdout.readline().startswith("retry:")
            server.send_signal(signal.SIGTERM)
            # It gives streams a second to end by themselves.
            assert server.wait(120) == 0
            listener.stdout.read()
