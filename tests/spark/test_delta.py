"""Tables of Delta's: their tests run in a process of their own, with the Spark that has Delta's jars."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.kafka_flights.kafka import KafkaMissing, jars

from .conftest import KAFKA, WITHOUT_MAVEN

#: Where `make test` installs that Spark, which is not the one of this environment.
_OLDER = Path(sys.prefix) / "spark-4.2"


def test_tables_of_delta() -> None:
    if KAFKA == "none":
        pytest.skip("LAZARETTO_TEST_KAFKA=none")
    assert _OLDER.is_dir(), f"no {_OLDER}: make test installs it"
    try:
        jars("delta")
    except KafkaMissing as error:
        pytest.fail(f"{error}{WITHOUT_MAVEN}", pytrace=False)
    words = [sys.executable, "-m", "pytest", "-rs", str(Path(__file__).with_name("delta_tables.py"))]
    environment = {**os.environ, "PYTHONPATH": str(_OLDER)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=1_800)
    assert (done.returncode, "SKIPPED" in done.stdout) == (0, False), done.stdout[-6000:] + done.stderr
