"""Ends long work in good order when the process is told to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def on_ending(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` on SIGTERM and SIGINT instead of ending at once; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        callback()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
