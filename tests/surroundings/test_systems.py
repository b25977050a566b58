"""Other systems than Linux, as far as they can be imitated: the suites run on what such a system has.

The short form runs modules of the store, the host and the command; the long form all of them.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import zoo
from cli_program import Program, program_in
from patience import PATIENCE
from servers import Server

ROOT = Path(__file__).parents[2]
#: The folder whose Pythons imitate the system that this variable of the environment names.
IMITATING, NAMED = Path(__file__).parent / "systems", "IMITATED_SYSTEM"
#: Kinds of the zoo that isolation needs Linux for: elsewhere it limits no memory, finds no process that was
#: detached, and cannot seal the files that it shares with items.
_FOR_LINUX = ("memory_bomb", "daemon_stays", "truncates_descriptors")
#: Tests of what a system has not. Without memory that processes share, each finds its partition by chance;
#: functions that are to run apart need a sandbox. The rest of the zoo is tried by itself, below.
_BY_CHANCE = ("tests/store/test_partitions.py::test_each_process_has_a_home_of_its_own[sqlite]",)
NOT_THERE = {
    "macos": (
        *_BY_CHANCE,
        "tests/host/test_zoo.py::test_every_good_one_is_done_once_and_every_bad_one_is_set_aside",
        "tests/host/test_zoo.py::test_what_turns_against_its_isolation_costs_only_itself",
    ),
    "windows": (
        *_BY_CHANCE,
        "tests/store/test_dry_run.py",
        "tests/store/test_repair_functions.py",
        "tests/acceptance/test_cli_host.py",
        "tests/acceptance/test_cli_serve.py::test_letters_are_tried_in_the_console",
        "tests/acceptance/test_cli_repairs.py::test_try",
        "tests/acceptance/test_cli_repairs.py::TestResubmitEdited",
        "tests/store/test_edited_letters.py::test_a_function_runs_in_a_sandbox",
        "tests/store/test_edited_letters.py::test_a_function_is_what_it_was_when_it_was_planned",
    ),
}
_COMMAND = " ".join(
    f"tests/acceptance/{path.name}" for path in sorted((ROOT / "tests" / "acceptance").glob("test_cli_*.py"))
)
SUITES = {
    "macos": (
        "tests/store/test_settle.py tests/host/test_outcomes.py tests/acceptance/test_cli_dead_letters.py",
        f"tests/store tests/host {_COMMAND}",
    ),
    "windows": (
        "tests/store/test_settle.py tests/store/test_workers.py tests/acceptance/test_cli_queues.py "
        "tests/acceptance/test_cli_send.py",
        f"tests/store {_COMMAND}",
    ),
}


def environment(system: str) -> dict[str, str]:
    """Return the environment of processes that imitate a system."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**kept, NAMED: system, "PYTHONPATH": str(IMITATING)}


@pytest.mark.parametrize("system", SUITES)
def test_suites_run_on_what_a_system_has(system: str, postgres: Server, tmp_path: Path) -> None:
    short, long = SUITES[system]
    words = ["-p", "no:cacheprovider", "-n", "0", "-rf", "--basetemp", str(tmp_path / "base")]
    words += [f"--deselect={name}" for name in NOT_THERE[system]]
    whole = os.environ.get("LAZARETTO_SOAK")
    suites = long.split() if whole else [*short.split(), "-k", "not postgres"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *suites],
        cwd=ROOT,
        env={**environment(system), "LAZARETTO_TEST_POSTGRES": postgres.url},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


class TestImitation:
    """The suites prove something: what a system lacks is not there for the package, and is for others."""

    PROGRAM = """
import os
from lazaretto.store.sqlite import store_file
from lazaretto.tools import surroundings

print(hasattr(os, "fork"), os.path.exists("/proc/self"))
print(hasattr(surroundings.os, "fork"), hasattr(store_file.os, "memfd_create"), store_file._mount_points())
"""

    @pytest.mark.parametrize(("system", "forks"), [("macos", True), ("windows", False)])
    def test_only_the_package_lacks_what_a_system_has_not(self, system: str, forks: bool) -> None:
        words = [sys.executable, "-c", self.PROGRAM]
        done = subprocess.run(words, env=environment(system), capture_output=True, text=True, timeout=120)
        assert done.stdout.splitlines() == ["True True", f"{forks} False set()"], done.stderr


HANDLERS = """
from lazaretto.host import handler

@handler("q"{})
def work(message):
    print(message.body)
"""


class TestOnMacos:
    PROGRAM = """
import sys
import zoo
from lazaretto.isolation import Sandbox, SandboxOptions

with Sandbox(zoo.setup, SandboxOptions(deadline=3.0), on_output=lambda text: None) as sandbox:
    print(sandbox.mode)
    for kind in sys.argv[1:]:
        verdicts = sandbox.run([b"good", kind.encode(), b"good"])
        print(kind, *(verdict.status.value for verdict in verdicts))
"""

    def test_an_item_costs_only_itself(self) -> None:
        """Neither the program, whose guard it may kill, nor other items."""
        kinds = [kind for kind in zoo.ZOO if kind not in _FOR_LINUX]
        if not os.environ.get("LAZARETTO_SOAK"):
            kinds = ["kill_parent", "exit_3", "quiet_leak", "stops_parent_and_ends", "stops_parent"]
        folders = os.pathsep.join(map(str, (IMITATING, ROOT / "tests")))
        done = subprocess.run(
            [sys.executable, "-c", self.PROGRAM, *kinds],
            env={**environment("macos"), "PYTHONPATH": folders},
            capture_output=True,
            text=True,
        )
        ends = [f"{kind} done {zoo.ZOO[kind][1]} done" for kind in kinds]
        assert done.stdout.splitlines() == ["spawn", *ends], done.stderr


class TestOnWindows:
    @pytest.fixture
    def cli(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
        for name, value in environment("windows").items():
            monkeypatch.setenv(name, value)
        return program_in(tmp_path, monkeypatch)

    def test_handlers_run_inline_and_a_sandbox_is_refused_in_a_sentence(
        self, cli: Program, tmp_path: Path
    ) -> None:
        (tmp_path / "apart.py").write_text(HANDLERS.format(""))
        (tmp_path / "inline.py").write_text(HANDLERS.format(", isolation='inline'"))
        cli.ok("send", "q", "lamp")
        told = cli.fails(1, "sandbox_setup_error", "run", "apart", "--stop-when-idle")
        assert "expected a system of the POSIX family" in told
        assert "isolation='inline'" in told
        assert "b'lamp'" in cli("run", "inline", "--stop-when-idle").out

    @pytest.mark.parametrize("words", [("serve", "--http", "0", "--amqp", "0"), ("emulator", "--port", "0")])
    def test_servers_serve_and_end(self, cli: Program, words: tuple[str, ...]) -> None:
        with cli.start(*words, "--json") as process:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            assert told["connection_string"].startswith("Endpoint=sb://localhost:")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0, process.stderr

    def test_nobody_asks_by_a_call_that_would_end_it_whether_a_process_is_alive(self, cli: Program) -> None:
        program = (
            "import os\n"
            "from lazaretto.store.runtime.processes import is_gone, this_process\n"
            "print(is_gone(this_process()), is_gone(this_process()._replace(pid=os.getppid())))"
        )
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, env=cli.environment, capture_output=True, text=True, timeout=120)
        assert done.stdout == "False None\n", done.stderr


def test_a_store_is_its_owners_alone_where_no_node_can_be_made(tmp_path: Path) -> None:
    """As on macOS, which lets only its administrator make one."""
    program = "import lazaretto; lazaretto.connect('shop.db').close()"
    old = os.umask(0)
    try:
        for system in SUITES:
            folder = tmp_path / system
            folder.mkdir()
            words = [sys.executable, "-c", program]
            subprocess.run(words, env=environment(system), cwd=folder, check=True, timeout=120)
            assert stat.S_IMODE((folder / "shop.db").stat().st_mode) == 0o600
    finally:
        os.umask(old)
