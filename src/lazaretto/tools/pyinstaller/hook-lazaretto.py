"""Tells PyInstaller of the files that stand beside the package's modules: SQL, pages and others."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[2]

#: Each file, and the folder of a frozen program that it belongs into. PyInstaller reads this name.
datas = [
    (str(file), str(file.parent.relative_to(_PACKAGE.parent)))
    for file in sorted(_PACKAGE.rglob("*"))
    if file.is_file() and file.suffix not in (".py", ".pyc", ".pyi")
]
