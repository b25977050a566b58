from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import pytest

from lazaretto.tools.signals import interrupting


class EndedWhileItIsFreed:
    """A signal comes while Python frees it, where what a handler raises goes to nobody."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        # The handler has run when this is over.
        os.getpid()


def test_an_interrupt_that_python_drops_comes_again() -> None:
    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), interrupting():
        EndedWhileItIsFreed()
        threading.Event().wait(120)
        raise AssertionError("the signal was lost")
    assert sys.unraisablehook is hook


def test_what_else_python_drops_is_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: told.append(dropped.exc_type))

    class Odd:
        def __del__(self) -> None:
            raise ValueError("odd")

    with interrupting():
        Odd()
    assert told == [ValueError]
