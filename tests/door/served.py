"""A door that is served by a process of its own."""

from __future__ import annotations

import subprocess
from typing import Any, NamedTuple


class Served(NamedTuple):
    """A door: its process, its port, and how clients connect."""

    process: subprocess.Popen[str]
    port: int
    connection_string: str
    #: What it told on start.
    told: dict[str, Any] = {}  # noqa: RUF012 - never changed
