"""A door that is served by a process of its own."""

from __future__ import annotations

import subprocess
from typing import NamedTuple


class Served(NamedTuple):
    """A door: its process, its port, and how clients connect."""

    process: subprocess.Popen[str]
    port: int
    connection_string: str
