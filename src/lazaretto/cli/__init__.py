"""The command `lazaretto`."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    try:
        # Loading takes long enough for a person to think better of it.
        from lazaretto.cli.app import main as run

        return run(arguments)
    except KeyboardInterrupt:
        return 130  # Exit.INTERRUPTED, which may not be loaded yet
