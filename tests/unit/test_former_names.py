"""Modules that moved are still found by the names that they had, with a warning."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import importlib, sys, warnings
warnings.simplefilter("error")
former, present, name = sys.argv[1:]
try:
    importlib.import_module(former)
except DeprecationWarning as warning:
    assert "now: import that" in str(warning), warning
else:
    raise AssertionError(f"{former} gives no warning")
warnings.simplefilter("ignore")
old, new = importlib.import_module(former), importlib.import_module(present)
assert getattr(old, name) is getattr(new, name)
"""


def test_each_is_the_same_module() -> None:
    for former, present, name in (
        ("lazaretto.door", "lazaretto.servicebus", "open_door"),
        ("lazaretto.amqp", "lazaretto.servicebus.amqp", "Connection"),
        ("lazaretto.amqp.events", "lazaretto.servicebus.amqp.events", "Opened"),
        ("lazaretto.metrics", "lazaretto.observe.metrics", "ProcessMetrics"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, former, present, name], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_other_names_are_not_found() -> None:
    done = subprocess.run([sys.executable, "-c", "import lazaretto.doors"], capture_output=True, text=True)
    assert "No module named 'lazaretto.doors'" in done.stderr
