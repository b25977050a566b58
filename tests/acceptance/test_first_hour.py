"""What newcomers type and try in their first hour, and what they are told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import Program, program_in

import lazaretto
from lazaretto.model.installing import install

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return program_in(tmp_path, monkeypatch)


def test_the_version(cli: Program) -> None:
    assert cli.ok("version").out == cli.ok("--version").out == f"lazaretto {lazaretto.__version__}\n"


@pytest.mark.parametrize("group", ["dead-letters", "queue", "repair", "access"])
def test_a_group_that_is_given_a_queue_names_its_commands(cli: Program, group: str) -> None:
    told = cli.fails(2, "usage", group, "orders_of_today")
    assert f"`lazaretto {group}` has no command 'orders_of_today'; there are: " in told


def test_a_name_that_is_nearly_right_is_suggested(cli: Program) -> None:
    assert "Did you mean 'list'?" in cli.fails(2, "usage", "queue", "lst")


def test_spark_without_its_packages_says_what_to_install() -> None:
    program = "import sys\nsys.modules['pyspark'] = None\nfrom lazaretto.spark import process\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(f"lazaretto.spark.process needs pyspark, which is not installed: {install('spark')}")


def test_a_store_that_is_not_there_is_told_without_options_that_nobody_gave(tmp_path: Path) -> None:
    with pytest.raises(lazaretto.StoreNotFound, match="no store exists here; check its name") as caught:
        lazaretto.connect(tmp_path / "nope.db", create=False)
    assert "create=" not in str(caught.value)


def test_every_hint_to_install_is_one_that_works() -> None:
    """The package is on no index yet: its name alone finds nothing there."""
    wrong = []
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]:
        for line in path.read_text("utf-8").splitlines():
            if re.search(r"pip install[^|]*['\" ]lazaretto(\[|['\"]?$)", line):
                wrong.append(f"{path.name}: {line.strip()}")
    assert wrong == []
