"""Folders of hooks for PyInstaller, which asks an entry point for them."""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    """Return the folders of hooks."""
    return [str(Path(__file__).with_name("pyinstaller"))]
