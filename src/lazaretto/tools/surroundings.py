"""Needs of the package in the process that it runs in, and why it cannot have them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

#: Packages that put green threads in the place of the system's.
_GREEN = ("gevent", "eventlet")


def why_no_interpreter() -> str | None:
    """Return why this process cannot start another Python, None if it can."""
    if getattr(sys, "frozen", False):
        return "this program is frozen (as by PyInstaller), so that sys.executable is the program, no Python"
    if not sys.executable:
        return f"sys.executable is {sys.executable!r}: it names no Python to start"
    return None


def why_no_sandbox() -> str | None:
    """Return why no function can be run apart from this process, with what to do; None if it can."""
    if not hasattr(os, "fork"):
        return (
            "expected a system of the POSIX family, as Linux and macOS are, for a sandbox: run handlers with "
            "isolation='inline', or on such a system (on Windows, WSL is one)"
        )
    why = why_no_interpreter()
    if why is None:
        return None
    return (
        f"{why}, and a sandbox needs one: run handlers with isolation='inline', or with an installed Python"
    )


def why_threads_cannot_wait() -> str | None:
    """Return why a thread that waits would keep all others from going on, None if it would not."""
    module = getattr(getattr(threading, "_start_new_thread", None), "__module__", None) or ""
    package = module.partition(".")[0]
    if package not in _GREEN:
        return None
    patch = "monkey.patch_all" if package == "gevent" else "monkey_patch"
    return (
        f"{package} has replaced Python's threads by green ones, of which one that waits for a store makes "
        f"all wait, for ever: use Lazaretto in a process without {package}'s monkey-patching, or leave "
        f"threads out of it: {patch}(thread=False)"
    )


def take_child_signals() -> None:
    """Have the system keep how children ended, even if whoever started this process ignores that."""
    if children_are_forgotten():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def children_are_forgotten() -> bool:
    """Return whether the system forgets how children ended, so that each seems to have ended well."""
    return hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN


def home_of_user() -> Path | None:
    """Return the user's home, None where it has none."""
    try:
        return Path.home()
    except RuntimeError:
        return None
