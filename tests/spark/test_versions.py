"""Versions of Spark that do not fit, and none, are refused in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lazaretto.model.installing import install
from lazaretto.spark.versions import odd_version, spark_version

IMPORT = "from lazaretto.spark import process"
OLD = f"lazaretto.spark needs PySpark 4.0 to 4.3, and this is 3.5.4: {install('spark')}"
NONE = f"lazaretto.spark.process needs pyspark, which is not installed: {install('spark')}"


def said(program: str, folder: Path) -> str:
    """Return the last line that a program says, which finds a Spark 3.5 in a folder."""
    (folder / "pyspark").mkdir(exist_ok=True)
    (folder / "pyspark" / "__init__.py").write_text('__version__ = "3.5.4"\n')
    lines = [f"import sys; sys.path.insert(0, {str(folder)!r})", program]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    return (done.stderr or done.stdout).strip().splitlines()[-1]


def test_an_old_version_is_refused_by_import_and_doctor(tmp_path: Path) -> None:
    assert said(IMPORT, tmp_path) == f"ImportError: {OLD}"
    assert said("from lazaretto.spark import find_java; print(callable(find_java))", tmp_path) == "True"
    examined = "from lazaretto.spark.requirements import examine; print(*examine()[1], sep=chr(10))"
    assert OLD in subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{examined}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def test_without_spark_it_is_said_what_to_install(tmp_path: Path) -> None:
    text = said(f'sys.modules["pyspark"] = None\n{IMPORT}', tmp_path)
    assert text == f"ModuleNotFoundError: {NONE}"


def test_a_newer_version_is_odd(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    assert odd_version() is None
    monkeypatch.setattr(pyspark, "__version__", "4.9.0.dev1")
    assert spark_version() == (4, 9)
    assert "newer than what is tested" in (odd_version() or "")
