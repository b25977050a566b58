"""Waits for what other threads and processes bring about, however slow the machine is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

#: How long a test waits before it fails, in seconds: only what hangs takes so long. The long forms do more.
PATIENCE = 600.0 if os.environ.get("LAZARETTO_SOAK") else 120.0


def wait_until(true: Callable[[], object], pause: float = 0.005) -> None:
    """Wait until a function returns something true; it is called again and again."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(pause)
