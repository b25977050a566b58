"""`lazaretto emulator` as a process of its own, and requests to what controls it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

WAIT = 120


class Answer(NamedTuple):
    """What came over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


class Emulated(NamedTuple):
    """A running emulator, and what it said on start."""

    said: dict[str, Any]

    @property
    def port(self) -> int:
        """Where clients connect."""
        return int(self.said["port"])

    def request(
        self, method: str, path: str, body: bytes | str = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        """Ask something over HTTP."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, told, answer.read())

    def control(self, method: str, path: str, given: object = None) -> Answer:
        """Ask for something below `/$emulator/`."""
        body = b"" if given is None else json.dumps(given).encode()
        return self.request(method, f"/$emulator/{path}", body)

    def namespace(self, name: str) -> str:
        """Make a namespace, and return its connection string."""
        return str(self.control("PUT", f"namespaces/{name}").json["connection_string"])


@contextlib.contextmanager
def emulated(*options: str, environment: dict[str, str] | None = None) -> Iterator[Emulated]:
    """Start an emulator; it must end well."""
    command = [sys.executable, "-m", "lazaretto", "emulator", "--port", "0", "--json", *options]
    env = {**os.environ, **(environment or {})}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        yield Emulated(json.loads(process.stdout.readline()))
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT) == 0
        process.stdout.close()


def config_of(path: Path, *queues: str, topic: str = "t") -> Path:
    """Write a Config.json with queues, and a topic with one subscription."""
    topics = [{"Name": topic, "Subscriptions": [{"Name": "s"}]}]
    listed = [{"Name": queue} for queue in queues]
    path.write_text(
        json.dumps({"UserConfig": {"Namespaces": [{"Name": "x", "Queues": listed, "Topics": topics}]}})
    )
    return path
