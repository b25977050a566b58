"""Where PyInstaller finds what it must know of this package: it asks an entry point."""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    """Return the folders of hooks."""
    return [str(Path(__file__).with_name("pyinstaller"))]
