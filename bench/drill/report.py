"""The report of the drills: one table on the terminal, a Markdown fragment, and the figures as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from bench.drill.drills import DEADLINE, HELD, RETRIES, Drill
from bench.drill.run import Outcome
from bench.machine import Machine

_NOTHING = "–"
_HEADS = ("", "wanted")

_METHOD = (
    "Each drill on each system has a fresh folder, a fresh server if the system has one, and one worker that "
    "a supervisor starts again at once whenever it ends. All messages are sent before the worker starts, "
    "except in the outage.",
    "The tasks append a line to one file when they start and when they end; all counts come from that file "
    "and from what the system itself says about failed and waiting messages. Seconds count from the start of "
    "the first task, so that the first start of the worker is not in them, and its restarts are.",
    f"A worker takes {HELD} messages where the system lets it, and runs one after the other where it can. "
    f"Retries of a message whose task raises: {RETRIES}. Deadline of a task, in the hang alone: "
    f"{DEADLINE:g} s.",
    "Set aside: on record as failed for good. Lost: neither done, nor on record, nor waiting. A message that "
    "still waits when the time is up is neither; the row of seconds says how many were done.",
    "One run: a figure in seconds is a size, not a ranking.",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A column: its name, version and settings, or why it did not run."""

    name: str
    version: str = ""
    settings: str = ""
    missing: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that is over: where, on what, and what came out."""

    machine: Machine
    drills: Sequence[Drill]
    systems: Sequence[System]
    outcomes: Sequence[Outcome]


class Table(NamedTuple):
    """A table: a title, the heads of the columns, the rows."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def table(run: Run) -> Table:
    """Return the one table: a row a measure under a row a drill, a column a system."""
    found = {(outcome.drill, outcome.system): outcome for outcome in run.outcomes}
    rows: list[Sequence[str]] = []
    for drill in run.drills:
        outcomes = [found.get((drill.key, system.name)) for system in run.systems]
        said = [_headline(drill, system, one) for system, one in zip(run.systems, outcomes, strict=True)]
        rows.append([f"{drill.key}: {drill.title}", "", *said])
        rows += [
            [
                measure.title,
                measure.target,
                *(
                    _NOTHING if one is None or one.error is not None else one.figures[measure.key].text
                    for one in outcomes
                ),
            ]
            for measure in drill.measures
        ]
    return Table("Drills", [*_HEADS, *(system.name for system in run.systems)], rows)


def _headline(drill: Drill, system: System, outcome: Outcome | None) -> str:
    if system.missing is not None:
        return f"not run: {system.missing}"
    if not drill.runs_on(system.name):
        return "n/a"
    if outcome is None:
        return "not run"
    return "" if outcome.error is None else f"failed: {outcome.error}"


def to_terminal(run: Run, console: Console) -> None:
    """Print the table."""
    shown = table(run)
    drawn = RichTable(title=shown.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    drawn.add_column(shown.heads[0], ratio=2)
    for head in shown.heads[1:]:
        drawn.add_column(head, justify="right", overflow="fold")
    titles = {f"{drill.key}: {drill.title}" for drill in run.drills}
    for row in shown.rows:
        drawn.add_row(*row, style="bold" if row[0] in titles else None)
    console.print(drawn)


def to_markdown(run: Run) -> str:
    """Return the run as a fragment of Markdown."""
    return "\n".join([*_lines(run), ""])


def _lines(run: Run) -> Iterator[str]:
    machine = run.machine
    yield f"Measured {machine.date} on {machine.cpu}, {machine.cores} cores, {machine.memory};"
    yield f"{machine.system}, {machine.kernel}; {machine.filesystem}; {machine.python}."
    yield ""
    shown = table(run)
    titles = {f"{drill.key}: {drill.title}" for drill in run.drills}
    yield f"| {' | '.join(shown.heads)} |"
    yield f"|---|---|{'---:|' * (len(shown.heads) - len(_HEADS))}"
    for row in shown.rows:
        first = f"**{row[0]}**" if row[0] in titles else row[0]
        yield f"| {' | '.join([first, *row[1:]])} |"
    yield ""
    yield "Settings:"
    yield ""
    for system in run.systems:
        what = system.settings if system.missing is None else f"{system.missing}, left out"
        yield f"- `{system.name}`{f' {system.version}' if system.version else ''}: {what}"
    yield ""
    yield "Method:"
    yield ""
    for item in _METHOD:
        yield f"- {item}"


def to_json(run: Run) -> str:
    """Return the figures by system and drill, with all that is needed to read them."""
    outcomes: list[Mapping[str, object]] = [dataclasses.asdict(outcome) for outcome in run.outcomes]
    said = {
        "machine": dataclasses.asdict(run.machine),
        "systems": [dataclasses.asdict(system) for system in run.systems],
        "drills": {drill.key: drill.title for drill in run.drills},
        "outcomes": outcomes,
    }
    return json.dumps(said, indent=1, ensure_ascii=False) + "\n"
