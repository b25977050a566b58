"""The command `lazaretto`."""

from __future__ import annotations

from lazaretto.cli.app import main

__all__ = ["main"]
