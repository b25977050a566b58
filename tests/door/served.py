"""A door that is served by a process of its own."""

from __future__ import annotations

import json
import os
import signal
from typing import Any, NamedTuple, TextIO

from forked import Forked, fork_program


class Served(NamedTuple):
    """A door: its process, its port, and how clients connect."""

    process: Forked
    #: What it writes.
    output: TextIO
    port: int
    connection_string: str
    #: What it told on start.
    told: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def kill(self) -> None:
        """End it at once, without a word to its clients."""
        self.process.kill()

    def end(self) -> None:
        """End it, which must go well, unless it was killed."""
        if self.process.returncode is None:
            os.kill(self.process.pid, signal.SIGTERM)
            assert self.process.wait(120) == 0
        self.output.close()


def start_door(url: str, *options: str) -> Served:
    """Start `lazaretto serve` for a store, with options."""
    words = ["serve", "--store", url, "--amqp", "0", "--json", *options]
    ours, theirs = os.pipe()
    process = fork_program(words, (None, theirs, None), os.environ)
    output = os.fdopen(ours)
    line = output.readline()
    assert line, f"lazaretto {words} ended with {process.wait(120)}"
    said = json.loads(line)
    return Served(process, output, said["amqp_port"], said["connection_string"], said)
