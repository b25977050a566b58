"""Azure's own tests of its clients for Python, unchanged, on a door in each process.

Those that last long, mostly since they sleep, run in the long form alone: a file names them.

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
_LONG = Path(__file__).with_name("long.txt")
_SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
#: What its folder has, but tests of speed, and those of parts of the client that connect nowhere.
_FOLDERS = (
    "mgmt_tests", "async_tests", "test_list_sessions.py", "test_message.py", "test_queues.py",
    "test_sb_client.py", "test_sessions.py", "test_subscriptions.py", "test_topic.py",
)  # fmt: skip
#: How many names there are at least that Azure itself does not skip: in the short form, and in the long one.
_FEWEST, _ALL = 255, 380
#: Most of their time they wait.
_WORKERS = 8
#: How often a test is run alone that failed beside the others.
_AGAIN = 2

pytestmark = pytest.mark.skipif(not _SUITE.exists(), reason=f"{_SUITE} is not there: make test fetches it")


def outcomes(
    folder: Path, server: str, workers: int, without: list[str], *words: str
) -> tuple[set[str], set[str], str]:
    """Run tests but some; return the names of those that pass, of those that fail, and what was written."""
    folder.mkdir()
    report, names = folder / "report.xml", folder / "without.txt"
    names.write_text("\n".join(without), "utf-8")
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
            "LAZARETTO_TEST_WITHOUT": str(names),
            "LAZARETTO_TEST_SERVER": server,
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


@pytest.mark.parametrize("store", ["sqlite", "postgres"] if _SOAK else ["sqlite"])
def test_azures_own_tests(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server = request.getfixturevalue("postgres").url if store == "postgres" else ""
    known, slow = (file.read_text("utf-8").splitlines() for file in (_KNOWN, _LONG))
    without = [] if _SOAK else slow
    passes, fails, said = outcomes(tmp_path / "all", server, _WORKERS, without, *_FOLDERS)
    assert len(passes | fails) >= (_ALL if _SOAK else _FEWEST), said
    print(store, next(line for line in reversed(said.splitlines()) if " passed" in line))
    for turn in range(_AGAIN):
        others = fails - set(known)
        if not others:
            break
        names = " or ".join(sorted(name.partition("[")[0] for name in others))
        again, _, told = outcomes(tmp_path / f"again{turn}", server, 0, without, *_FOLDERS, "-k", names)
        fails -= again
        said += told
    assert fails == set(known) - set(without), said
