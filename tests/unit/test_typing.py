"""What the pages show passes a type checker, and an option that does not exist fails it.

The pages leave out annotations and tests for None, and use names again. All else is as in `mypy --strict`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LEFT_OUT = ("no-untyped-def", "no-untyped-call", "union-attr")

WRONG = """
import lazaretto
from lazaretto.host import handler

@handler("q", batchsize=3)
def book(message: lazaretto.ReceivedMessage) -> None: ...

lazaretto.QueueOptions(on_poison_session="prak")
lazaretto.QueueOptions(lock_duration="60s")
lazaretto.PoisonPolicy(on_poison="reject", retries=3)
"""


def check_types(folder: Path, *flags: str) -> str:
    """Return what `mypy --strict` says of the modules in a folder."""
    command = [
        *(sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")),
        *(
            "--cache-dir",
            str(ROOT / ".mypy_cache" / "examples"),
            "--no-error-summary",
            "--follow-imports=silent",
            *flags,
        ),
        *(path.name for path in sorted(folder.glob("*.py"))),
    ]
    environment = {"MYPYPATH": str(ROOT / "src"), "PATH": ""}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


@pytest.fixture(scope="module", autouse=True)
def mypy() -> None:
    pytest.importorskip("mypy")


def test_examples_of_the_pages(tmp_path: Path) -> None:
    for page in PAGES:
        source, lines = page.read_text("utf-8"), ""
        for block in _BLOCK.finditer(source):
            # Line numbers are those of the page.
            lines += "\n" * (source.count("\n", 0, block.start(1)) - lines.count("\n")) + block[1]
        if lines:
            (tmp_path / f"{page.stem.replace('-', '_').lower()}_page.py").write_text(lines)
    flags = [flag for code in _LEFT_OUT for flag in ("--disable-error-code", code)]
    assert check_types(tmp_path, "--allow-redefinition", *flags) == ""


def test_a_program_that_uses_every_verb(tmp_path: Path) -> None:
    program = Path(__file__).with_name("typed_program.py")
    (tmp_path / program.name).write_text(program.read_text("utf-8"))
    assert check_types(tmp_path) == ""


def test_wrong_options_fail(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    said = check_types(tmp_path)
    for line, name in ((5, "batchsize"), (8, "on_poison_session"), (9, "lock_duration"), (10, "retries")):
        assert re.search(rf"wrong.py:{line}: error: .*{name}", said), said
