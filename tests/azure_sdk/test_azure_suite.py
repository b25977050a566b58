"""Azure's own tests of its administration client for Python, unchanged, on a door in each process.

They come from the source of azure-servicebus, which `make test` fetches; nothing of them is here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

_SUITE = Path(sys.prefix) / "azure-servicebus-tests" / "tests"
_TESTS = Path(__file__).parents[1]
_KNOWN = Path(__file__).with_name("known-to-fail.txt")
#: How many there are at least that were not skipped by Azure itself.
_FEWEST = 100
#: How often a test is run alone that failed beside the others.
_AGAIN = 2

pytestmark = pytest.mark.skipif(not _SUITE.exists(), reason=f"{_SUITE} is not there: make test fetches it")


def outcomes(folder: Path, workers: int, *words: str) -> tuple[set[str], set[str], str]:
    """Run tests; return the names of those that pass, of those that fail, and what was written."""
    folder.mkdir()
    report = folder / "report.xml"
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "stand_ins", "-p", "no:cacheprovider", "-n", str(workers),
        # Not by the settings of this project, which make errors of warnings.
        "-c", os.devnull, f"--rootdir={_SUITE}", "--tb=short", f"--junitxml={report}", *words,
    ]  # fmt: skip
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SERVICEBUS_"))
    }
    ended = subprocess.run(
        command,
        cwd=_SUITE,
        env={
            **environment,
            "PYTHONPATH": os.pathsep.join((str(_TESTS), str(Path(__file__).parent), str(_SUITE))),
            "LAZARETTO_TEST_FOLDER": str(folder),
            "LAZARETTO_TEST_STORE": f"sqlite:///{folder}/WORKER.db",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    said = ended.stdout + ended.stderr
    assert report.exists(), said
    passes, fails = set[str](), set[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        wrong = case.find("failure") is not None or case.find("error") is not None
        (fails if wrong else passes).add(case.attrib["name"])
    return passes, fails, said


def test_administration(tmp_path: Path) -> None:
    known = set(_KNOWN.read_text("utf-8").splitlines())
    passes, fails, said = outcomes(tmp_path / "all", 2, "mgmt_tests")
    assert len(passes | fails) >= _FEWEST, said
    for turn in range(_AGAIN):
        if not fails - known:
            break
        names = " or ".join(sorted(fails - known))
        again, _, told = outcomes(tmp_path / f"again{turn}", 0, "mgmt_tests", "-k", names)
        fails -= again
        said += told
    assert fails == known, said
