"""The pages for users are true: their examples run, their output is what comes, their links lead somewhere.

A ```python block is run, the blocks of a page in order and in one namespace, in an empty folder.
A block of ```output below it is what it prints. In a ```console block every `$` line is run by a
shell in the same folder, with the command `lazaretto` at hand, and what stands below a line is what
it prints; `…` stands for any text within a line, and a time for any other time. `<!-- not run -->`
above a block leaves it out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import new_store
from transcripts import commands_of, matches

import lazaretto
from lazaretto import errors
from lazaretto.cli.exits import MEANINGS
from lazaretto.commands.methods import BrokerMethods
from lazaretto.engine.log import EVENT_KINDS

#: The address of a server on the pages.
SERVER = "postgresql://app@db.example.com/orders"
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Blocks that may be left out, over all pages: an example that nobody runs is soon wrong.
MOST_NOT_RUN = 3

_FENCE = re.compile(
    r"^(?P<mark><!-- not run -->\n\n?)?```(?P<language>[\w-]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int
    run: bool


def blocks_of(page: Path) -> list[Block]:
    source = page.read_text("utf-8")
    return [
        Block(
            found["language"],
            found["text"],
            source.count("\n", 0, found.start("text")) + 1,
            found["mark"] is None,
        )
        for found in _FENCE.finditer(source)
    ]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


#: Runs blocks of Python that come as lines of JSON, and answers what each printed, or how it failed.
_INTERPRETER = """
import contextlib, io, json, sys, traceback
names = {"__name__": "__main__"}
answers = sys.stdout
for line in sys.stdin:
    printed, failed = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            exec(json.loads(line), names)
        except BaseException:
            failed = traceback.format_exc()
    print(json.dumps([printed.getvalue(), failed]), file=answers, flush=True)
"""


class Reader:
    """Does what a reader of a page does: types its examples in, one after the other."""

    def __init__(self, page: Path, folder: Path) -> None:
        self._page = page
        #: What the pages' server is here.
        self.server: str | None = None
        self._names: dict[str, Any] = {"__name__": "__main__"}
        # Spark has one session in a process, and it remembers the folder that it was started in.
        self._apart: subprocess.Popen[str] | None = None
        # And one tracer provider.
        own = ("lazaretto.spark", "set_tracer_provider")
        self._needs_own = any(name in page.read_text("utf-8") for name in own)
        self._printed = ""
        tools = folder / "bin"
        tools.mkdir()
        command = tools / "lazaretto"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lazaretto "$@"\n')
        command.chmod(0o755)
        source = str(ROOT / "src")
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("LAZARETTO")},
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "COLUMNS": "110",
            "LC_ALL": "C.UTF-8",
        }

    def read(self, block: Block) -> None:
        if self.server is not None:
            block = dataclasses.replace(block, text=block.text.replace(SERVER, self.server))
        match block.language:
            case "python" if block.run:
                self._python(block)
            case "output":
                assert matches(block.text, self._printed), self._say(block, block.text, self._printed)
            case "console" if block.run:
                self._console(block)

    def _python(self, block: Block) -> None:
        if self._needs_own:
            self._printed = self._python_apart(block)
            return
        # Line numbers in a traceback are the page's.
        code = compile("\n" * (block.line - 1) + block.text, str(self._page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, self._names)
        self._printed = printed.getvalue()

    def _python_apart(self, block: Block) -> str:
        if self._apart is None:
            self._apart = subprocess.Popen(
                [sys.executable, "-c", _INTERPRETER],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._apart.stdin is not None
        assert self._apart.stdout is not None
        self._apart.stdin.write(json.dumps(block.text) + "\n")
        self._apart.stdin.flush()
        printed, failed = json.loads(self._apart.stdout.readline())
        assert failed is None, f"{named(self._page)}, line {block.line}: {failed}"
        return str(printed)

    def _console(self, block: Block) -> None:
        for command, shown in commands_of(block.text):
            variable = re.fullmatch(r"export (\w+)=(\S+)", command)
            if variable:
                self._environment[variable[1]] = variable[2]
                continue
            done = subprocess.run(
                ["sh", "-c", command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
            )
            failed = done.returncode != 0
            assert failed == ("error[" in shown), self._say(block, command, done.stdout)
            if shown:
                assert matches(shown, done.stdout), self._say(block, shown, done.stdout)

    def _say(self, block: Block, shown: str, printed: str) -> str:
        return f"{named(self._page)}, line {block.line}: the page shows\n{shown}\nand what came is\n{printed}"

    def close(self) -> None:
        if self._apart is not None:
            self._apart.communicate("", timeout=120)
        for value in self._names.values():
            if isinstance(value, lazaretto.Broker):
                value.close()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_examples_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(page, tmp_path)
    server = contextlib.ExitStack()
    if SERVER in page.read_text("utf-8"):
        reader.server = server.enter_context(new_store(request.getfixturevalue("postgres").url))
    try:
        for block in blocks_of(page):
            reader.read(block)
    finally:
        reader.close()
        server.close()


@pytest.mark.parametrize(
    "name", ["README.md", "docs/quickstart.md", "docs/service-host.md", "docs/topics.md"]
)
def test_the_first_program_of_a_page_runs_twice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer pastes it a second time, and finds the queues there."""
    monkeypatch.chdir(tmp_path)
    program = next(b.text for b in blocks_of(ROOT / name) if b.run and b.language == "python")
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


def test_blocks_left_out_are_rare() -> None:
    left_out = [f"{named(page)}:{b.line}" for page in PAGES for b in blocks_of(page) if not b.run]
    assert len(left_out) <= MOST_NOT_RUN, left_out


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    kinds = {"python", "output", "console", "sh", "text", "mermaid", "ini", "dockerfile", "yaml"}
    unknown = [
        f"{named(page)}:{b.line} {b.language!r}"
        for page in PAGES
        for b in blocks_of(page)
        if b.language not in kinds
    ]
    assert not unknown


def test_prose_is_at_most_100_columns_wide() -> None:
    wide: list[str] = []
    for page in PAGES:
        prose = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text("utf-8"))
        for number, row in enumerate(prose.split("\n"), 1):
            if len(row) <= 100 or row.lstrip().startswith(("|", "#", "<", ">")):
                continue
            # What has no space before the margin cannot be wrapped there.
            words = re.sub(r"`[^`]*`", lambda span: "x" * len(span[0]), row).lstrip("-*0123456789. ")
            if " " in words[: 100 - (len(row) - len(words)) + 1]:
                wide.append(f"{page.name}:{number}")
    assert wide == []


def test_make_targets_the_pages_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    for page in PAGES:
        wanted = set(re.findall(r"(?:^|`)make (\w+)(?:$|`|\s)", page.read_text("utf-8"), re.MULTILINE))
        assert wanted <= targets, f"{named(page)}: {wanted - targets}"


def anchor(heading: str) -> str:
    """Return the anchor that a heading has where the pages are shown."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


def test_links_lead_to_files_and_headings_that_exist() -> None:
    broken = []
    for page in PAGES:
        for link in _LINK.findall(_FENCE.sub("", page.read_text("utf-8"))):
            if "://" in link:
                continue
            name, _, part = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists():
                broken.append(f"{named(page)}: {link}")
            elif part and part not in map(anchor, _HEADING.findall(target.read_text("utf-8"))):
                broken.append(f"{named(page)}: {link} (no such heading)")
    assert not broken


def code_names(page: str) -> set[str]:
    """Return what a page sets as code, outside its blocks: whole, and the words within."""
    source = _FENCE.sub("", (ROOT / "docs" / page).read_text("utf-8"))
    spans = re.findall(r"`([^`]+)`", source)
    return {*spans, *(word for span in spans for word in re.findall(r"[\w$]+", span))}


def all_errors() -> list[type[errors.LazarettoError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.LazarettoError)
    ]


def test_reference_has_every_option() -> None:
    known = code_names("reference.md")
    names = {f"DeadLetterFilter.{f.name}": f.name for f in dataclasses.fields(lazaretto.DeadLetterFilter)}
    names |= {f"Message.{name}": name for name in lazaretto.Message.__struct_fields__}
    calls = (lazaretto.connect, lazaretto.Broker.receiver, lazaretto.Broker.consume, lazaretto.Broker.events)
    names |= {
        f"{call.__name__}({name})": name
        for call in calls
        for name in inspect.signature(call).parameters
        if name != "self"
    }
    assert not [where for where, name in names.items() if name not in known]


def test_reference_has_every_name_one_can_import() -> None:
    known = code_names("reference.md")
    assert not [name for name in lazaretto.__all__ if name not in known]


def test_reference_has_every_name_for_spark_and_the_page_every_parameter_of_process() -> None:
    from lazaretto import spark
    from lazaretto.spark.pipeline_options import HANDLER_OPTIONS
    from lazaretto.spark.source_options import BODY_OPTIONS, STREAM_OPTIONS

    known = code_names("reference.md")
    assert not [name for name in spark.__all__ if name not in known]
    page = (ROOT / "docs" / "spark.md").read_text("utf-8")
    section = page.partition("\n## `process`\n")[2].partition("\n### ")[0]
    told = {
        name
        for row in re.findall(r"^\| (`[^|]*)\|", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    taken = {*inspect.signature(spark.process).parameters, *HANDLER_OPTIONS, *BODY_OPTIONS, *STREAM_OPTIONS}
    assert told == taken - {"source", "handler", "options"}


def test_reference_has_every_method_of_what_users_hold() -> None:
    known = code_names("reference.md")
    held = (
        lazaretto.Broker,
        lazaretto.Sender,
        lazaretto.Receiver,
        lazaretto.BrokerTransaction,
    )
    names = [
        f"{cls.__name__}.{name}"
        for cls in held
        for part in cls.__mro__[:-1]
        for name, value in vars(part).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    ]
    assert not [name for name in names if name.partition(".")[2] not in known]


def test_the_typed_program_uses_every_verb() -> None:
    source = (ROOT / "tests" / "gates" / "typed_program.py").read_text("utf-8")
    used = set(re.findall(r"\.(\w+)", source))
    held = (lazaretto.Broker, lazaretto.Sender, lazaretto.Receiver, lazaretto.BrokerTransaction)
    verbs = {name for cls in held for name in dir(cls) if not name.startswith("_")}
    # Service hosts alone take. What follows from a declaration is compared with it.
    derived = {name for name in vars(BrokerMethods) if not name.startswith("_")}
    assert not verbs - used - derived - {"take"}, "each of these needs a line in tests/gates/typed_program.py"


def test_reference_has_every_error_with_its_code() -> None:
    source = (ROOT / "docs" / "reference.md").read_text("utf-8")
    missing = [e.__name__ for e in all_errors() if f"| `{e.__name__}` | `{e.code}` |" not in source]
    assert not missing


def test_reference_has_every_kind_of_event_outcome_and_state() -> None:
    known = code_names("reference.md")
    wanted = [
        *EVENT_KINDS,
        *(outcome.value for outcome in lazaretto.Outcome),
        *(state.value for state in lazaretto.MessageState),
        *(status.value for status in lazaretto.QueueStatus),
        *(disposition.value for disposition in lazaretto.Disposition),
        *lazaretto.Counters._fields,
    ]
    assert not [name for name in wanted if name not in known]


def commands() -> list[tuple[str, ...]]:
    """Return every command there is, groups taken apart."""
    import typer.main

    from lazaretto.cli.app import app

    def below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if hasattr(command, "commands"):
            for name in command.commands:
                yield from below(command.get_command(None, name), (*path, name))
        else:
            if not command.hidden:
                yield path

    return list(below(typer.main.get_command(app), ()))


def commands_on_the_page() -> set[str]:
    """Return the commands in the page's table: a cell has parts, each a command, or a group and its own."""
    source = (ROOT / "docs" / "cli.md").read_text("utf-8")
    section = source.partition("\n## Commands\n")[2].partition("\n## ")[0]
    names: set[str] = set()
    for row in re.findall(r"^\|[^|]*\|(.*)\|$", section, re.MULTILINE):
        for part in row.split(";"):
            first, *verbs = re.findall(r"`([^`]+)`", part) or [""]
            names |= {f"{first} {verb}" for verb in verbs} if verbs else {first}
    return names


def test_cli_page_has_every_command() -> None:
    assert {" ".join(path) for path in commands()} - commands_on_the_page() == set()


def test_cli_page_has_every_exit_code() -> None:
    source = (ROOT / "docs" / "cli.md").read_text("utf-8")
    for code, meaning in MEANINGS.items():
        assert f"| `{code:d}` | {meaning} |" in source


def test_newest_entry_of_the_changelog_is_this_version() -> None:
    entries = re.findall(
        r"^## \[([\d.]+)\] - (\d{4}-\d{2}-\d{2})$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert entries[0][0] == lazaretto.__version__


def test_page_on_tests_names_the_folders_there_are() -> None:
    named_there = set(re.findall(r"`tests/(\w+)/`", (ROOT / "docs" / "how-we-test.md").read_text("utf-8")))
    assert named_there == {file.parent.name for file in (ROOT / "tests").glob("*/test_*.py")}


def test_figures_of_the_main_job_are_those_of_the_data() -> None:
    data = pytest.importorskip("examples.flights.data")
    airports = data.read_airports()
    causes: Counter[str] = Counter()
    for flight in data.read_flights():
        causes[
            "dead letters: never departed"
            if flight.dep_time is None
            else "dead letters: no arrival time"
            if flight.arr_time is None
            else "dead letters: no time in the air"
            if flight.air_time is None
            else "processed"
            if flight.dest in airports
            else "dead letters: unknown destination"
        ] += 1
    source = (ROOT / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| ([a-z: ]+) \| ([\d,]+) \| ([\d,]+) \|$", source, re.MULTILINE)
    figures = {name: tuple(int(figure.replace(",", "")) for figure in row) for name, *row in rows}
    unknown = causes["dead letters: unknown destination"]
    expected = {name: (count, count) for name, count in causes.items()}
    expected["processed"] = (causes["processed"], causes["processed"] + unknown)
    expected["dead letters: unknown destination"] = (unknown, 0)
    expected["total"] = (causes.total(), causes.total())
    assert figures == expected
