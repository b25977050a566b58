"""A program that PyInstaller freezes has all files of the package, and starts no copies of itself."""

from __future__ import annotations

import importlib
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lazaretto

PACKAGE = Path(lazaretto.__file__).parent
ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
import lazaretto
from lazaretto.host import Handler, ServiceHost

print("started", flush=True)
broker = lazaretto.connect(sys.argv[1])
broker.create_queue("q")
broker.sender("q").send([lazaretto.Message(b"a"), lazaretto.Message(b"b")])
try:
    ServiceHost(broker, Handler("q", lambda message: None)).start()
except lazaretto.LazarettoError as error:
    print(error)
seen = []
inline = Handler("q", lambda message: seen.append(message.body), isolation="inline")
counts = lambda: broker.queue("q").counts
ServiceHost(broker, inline).run(until=lambda: not counts().active + counts().locked)
print(seen)
"""


def hook() -> Path:
    """Return the hook that PyInstaller finds by the package's entry point."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    module, _, function = points["pyinstaller40"]["hook-dirs"].partition(":")
    (folder,) = getattr(importlib.import_module(module), function)()
    return Path(folder) / "hook-lazaretto.py"


def test_the_hook_names_each_file_that_is_no_module() -> None:
    named = {(Path(file), folder) for file, folder in runpy.run_path(str(hook()))["datas"]}
    for name in ("store/sqlite/queries.sql", "store/sql/queries.sql", "web/console/templates/access.html"):
        file = PACKAGE / name
        assert (file, str(file.parent.relative_to(PACKAGE.parent))) in named
    others = {
        one for one in PACKAGE.rglob("*.*") if one.is_file() and one.suffix not in (".py", ".pyc", ".pyi")
    }
    assert others <= {file for file, _ in named}


def test_a_frozen_program_works_and_refuses_sandboxes(tmp_path: Path) -> None:
    pytest.importorskip("PyInstaller", reason="PyInstaller is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        sys.executable, "-m", "PyInstaller", "--onedir", "--log-level", "ERROR",
        "--additional-hooks-dir", str(hook().parent), "program.py",
    ]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True, timeout=600)
    frozen = [str(tmp_path / "dist" / "program" / "program"), str(tmp_path / "store.db")]
    done = subprocess.run(frozen, capture_output=True, text=True, check=True, timeout=120)
    started, refused, seen = done.stdout.splitlines()
    assert started == "started"
    assert "this program is frozen" in refused
    assert "isolation='inline'" in refused
    assert seen == "[b'a', b'b']"
