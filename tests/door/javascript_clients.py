"""Clients for JavaScript: installed once for all runs, and run as programs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent / "javascript"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "lazaretto-tests"


def installed() -> Path:
    """Return where the clients are installed, fetched once for all runs."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    lock = (_HERE / "package-lock.json").read_bytes()
    folder = _CACHE / f"javascript-{hashlib.sha256(lock).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with Path(folder, ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not Path(folder, "installed").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(_HERE / name, folder)
            words = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            Path(folder, "installed").touch()
    return folder / "node_modules"


def node(packages: Path, *words: str, authority: str | None = None) -> Any:
    """Run a program, and return what it prints. `authority`: the file of certificates that it trusts."""
    trusting = {} if authority is None else {"NODE_EXTRA_CA_CERTS": authority}
    done = subprocess.run(
        ["node", str(_HERE / words[0]), *words[1:]],
        env={**os.environ, "NODE_PATH": str(packages), **trusting},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
