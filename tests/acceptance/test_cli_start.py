"""What the command loads before it does anything: no more than the one that is called needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lazaretto
from lazaretto import Message
from lazaretto.cli.commands import COMMANDS, load

#: What no short command needs, nor the help of all of them.
HEAVY = {
    "altair",
    "cloudpickle",
    "fastjsonschema",
    "jsonschema_rs",
    "lark",
    "lazaretto.cli.doctor_command",
    "lazaretto.cli.host_commands",
    "lazaretto.cli.queue_commands",
    "lazaretto.host",
    "lazaretto.isolation",
    "lazaretto.spark",
    "multiprocessing",
    "pandas",
    "psycopg",
    "pyarrow",
    "pyspark",
    "rich",
}
#: What nothing needs that opens no store.
OF_STORES = {
    "lazaretto.broker.broker",
    "lazaretto.engine",
    "lazaretto.store",
    "msgspec",
    "pydantic",
    "sqlite3",
}

_PROGRAM = """
import sys
from lazaretto.cli import main
code = main(sys.argv[1:])
print(*sys.modules, sep="\\n", file=sys.stderr)
sys.exit(code)
"""


def _loaded(*arguments: str) -> set[str]:
    """Return the modules that a call of the command has loaded by its end."""
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return set(ran.stderr.split())


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_what_opens_no_store_loads_none(option: str) -> None:
    assert _loaded(option) & (HEAVY | OF_STORES) == set()


@pytest.mark.parametrize(
    "arguments", [("peek", "q"), ("peek", "q", "--json"), ("queue", "list"), ("queue", "list", "--csv")]
)
def test_a_short_command_loads_what_it_needs(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    store = str(tmp_path / "store.db")
    with lazaretto.connect(store) as broker:
        broker.create_queue("q")
        broker.sender("q").send(Message(b"x"))
    loaded = _loaded("--store", store, *arguments)
    own = {f"lazaretto.cli.{arguments[0]}_commands"}
    assert loaded & HEAVY - own == set()
    assert "lazaretto.broker.broker" in loaded


def test_the_package_loads_nothing_until_it_is_asked() -> None:
    program = (
        "import sys, lazaretto; assert 'lazaretto.broker.broker' not in sys.modules; "
        "from lazaretto import *; assert Broker is lazaretto.Broker; "
        "assert set(lazaretto.__all__) <= set(dir(lazaretto)); "
        "assert not hasattr(lazaretto, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_it_is_said_to_be(name: str) -> None:
    assert load(name).name == name


def test_completion_opens_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lazaretto.connect(tmp_path / "store.db") as broker:
        broker.create_queue("q")
    monkeypatch.setenv("LAZARETTO_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv("_LAZARETTO_COMPLETE", "zsh")
    loaded = _loaded("doctor", "--st")
    assert loaded & {"lazaretto.spark", "lazaretto.host", "rich", "psycopg"} == set()


_INTERRUPTED = """
import os, signal, sys
from lazaretto.cli import main

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "lazaretto.cli.commands":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.exit(main(["queue", "list"]))
"""


def test_control_c_while_it_loads() -> None:
    ran = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")
