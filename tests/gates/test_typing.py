"""What the pages show passes a type checker, and an option that does not exist fails it.

The pages leave out annotations and tests for None, and use names again. All else is as in `mypy --strict`.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import lazaretto
from lazaretto import Broker, BrokerTransaction, Claim, Receiver, Repair, Sender
from lazaretto.engine.workers.leases import Handover
from lazaretto.model.entities import FIXED_OPTIONS, QueueOptions, TopicOptions
from lazaretto.model.option_changes import QueueChanges, TopicChanges
from lazaretto.model.options import options_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What makes pages' modules less strict, said in each: with flags, mypy would check all of the package anew.
_RELAXED = (
    '# mypy: allow-redefinition\n# mypy: disable-error-code="no-untyped-def,no-untyped-call,union-attr"\n'
)

WRONG = """
from collections.abc import AsyncIterator, Iterator
import lazaretto
import lazaretto.aio
from lazaretto.host import Handler, handler

@handler("q", batchsize=3)
def book(message: lazaretto.ReceivedMessage) -> None: ...

lazaretto.QueueOptions(on_poison_session="prak")
lazaretto.QueueOptions(lock_duration="60s")
lazaretto.PoisonPolicy(on_poison="reject", retries=3)

Handler("q", print, batchsize=3)

def change(broker: lazaretto.Broker) -> None:
    broker.update_queue("q", lock_durations=5)
    broker.update_queue("q", on_poison_session="prak")
    broker.update_topic("t", lock_duration=5)
    broker.update_subscription("t", "s", requires_session=True)

lazaretto.connect("a.db", timeouts=5)

def lazily(message: lazaretto.ReceivedMessage) -> Iterator[int]:
    yield 1

async def lazily_async(message: lazaretto.ReceivedMessage) -> AsyncIterator[int]:
    yield 1

def three(message: lazaretto.ReceivedMessage, context: object, more: object) -> None: ...

async def consume(broker: lazaretto.Broker, other: lazaretto.aio.AsyncBroker) -> None:
    broker.consume("q", lazily)
    broker.consume("q", lazily_async)
    broker.consume("q", three)
    await other.consume("q", lazily)
    Handler("q", lazily)
"""


#: The lines of that, and what a type checker says of each.
WRONG_LINES = {
    7: "batchsize",
    10: "on_poison_session",
    11: "lock_duration",
    12: "retries",
    14: "batchsize",
    17: "lock_durations",
    18: "on_poison_session",
    19: "lock_duration",
    20: "requires_session",
    22: "timeouts",
    33: "consume",
    34: "consume",
    35: "consume",
    36: "consume",
    37: "Handler",
}


def check_types(folder: Path) -> str:
    """Return what `mypy --strict` says of the modules in a folder.

    It runs where `make check` does, whose cache has the package.
    """
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file", "pyproject.toml"]
    command += map(str, sorted(folder.glob("*.py")))
    # The modules are nobody else's: their names begin with no folder.
    environment = {"PATH": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


@pytest.fixture(scope="module", autouse=True)
def mypy() -> None:
    pytest.importorskip("mypy")


def test_examples_of_the_pages(tmp_path: Path) -> None:
    for page in PAGES:
        source, lines = page.read_text("utf-8"), ""
        for block in _BLOCK.finditer(source):
            lines += "\n" * (source.count("\n", 0, block.start(1)) - lines.count("\n")) + block[1]
        if lines:
            # Behind them, line numbers are those of the page.
            (tmp_path / f"{page.stem.replace('-', '_').lower()}_page.py").write_text(lines + _RELAXED)
    assert check_types(tmp_path) == ""


def test_changes_are_the_options_that_are_not_fixed() -> None:
    for cls, changes in ((QueueOptions, QueueChanges), (TopicOptions, TopicChanges)):
        assert set(get_type_hints(changes)) == set(options_of(cls)) - set(FIXED_OPTIONS)


def test_a_program_that_uses_every_verb(tmp_path: Path) -> None:
    program = Path(__file__).with_name("typed_program.py")
    (tmp_path / program.name).write_text(program.read_text("utf-8"))
    assert check_types(tmp_path) == ""


def test_pyright_finds_nothing_either(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    program = Path(__file__).with_name("typed_program.py")
    (tmp_path / program.name).write_text(program.read_text("utf-8"))
    (tmp_path / "wrong.py").write_text(WRONG)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")], "include": ["."]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)["generalDiagnostics"]
    wrong = {e["range"]["start"]["line"] + 1 for e in found if Path(e["file"]).name == "wrong.py"}
    assert wrong == set(WRONG_LINES)
    assert not [e for e in found if Path(e["file"]).name == program.name]


def test_wrong_options_fail(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    said = check_types(tmp_path)
    for line, name in WRONG_LINES.items():
        assert re.search(rf"wrong.py:{line}: error: .*{name}", said), said


def test_answers_have_public_names() -> None:
    public = {getattr(lazaretto, name) for name in lazaretto.__all__}
    public.add(Handover)  # what a host takes
    for cls in (Broker, BrokerTransaction, Receiver, Sender, Repair, Claim):
        for name, member in inspect.getmembers(cls):
            call = member.fget if isinstance(member, property) else member
            if name.startswith("_") or not callable(call):
                continue
            answers = _types(get_type_hints(call).get("return"))
            ours = {t for t in answers if t.__module__.startswith("lazaretto.") and t.__name__[0] != "_"}
            assert ours <= public, f"{cls.__name__}.{name}"


def _types(hint: object) -> Iterator[type]:
    if isinstance(hint, type) and not get_args(hint):
        yield hint
    for part in get_args(hint):
        yield from _types(part)
