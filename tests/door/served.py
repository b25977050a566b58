"""A door that is served by a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any, NamedTuple


class Served(NamedTuple):
    """A door: its process, its port, and how clients connect."""

    process: subprocess.Popen[str]
    port: int
    connection_string: str
    #: What it told on start.
    told: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def kill(self) -> None:
        """End it at once, without a word to its clients."""
        self.process.kill()
        self.process.wait(30)

    def end(self) -> None:
        """End it, which must go well, unless it was killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(20) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


def start_door(url: str, *options: str) -> Served:
    """Start `lazaretto serve` for a store, with options."""
    words = ["-m", "lazaretto", "serve", "--store", url, "--amqp", "0", "--json", *options]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    return Served(process, said["amqp_port"], said["connection_string"], said)
