"""The report of a run: tables on the terminal, a Markdown fragment, and the raw figures as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from bench.figures import Figures
from bench.machine import Machine
from bench.measure import Result, Scale
from bench.notes import MARKS, WEAKER, depth_method, method
from bench.systems import SYSTEMS
from bench.tables import Table, number, tables, used_marks

#: As wide as the longest name of a system.
_NAME_COLUMNS = max(len(name) for name in SYSTEMS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that is over: where, how, and what came out."""

    machine: Machine
    scale: Scale
    rounds: int
    results: Sequence[Result]
    #: System or depth -> why it was left out.
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)


def to_terminal(run: Run, console: Console) -> None:
    """Print the tables, the notes to them and what failed."""
    figures = Figures(run.results)
    for table in tables(figures):
        if not table.detail:
            console.print(_drawn(table))
    for line in _notes(figures):
        console.print(line.replace("**", "").replace("`", ""), style="dim", markup=False, highlight=False)
    for line in _failures(figures):
        console.print(line, style="red", markup=False, highlight=False)


def to_markdown(run: Run) -> str:
    """Return the run as a fragment of Markdown."""
    figures = Figures(run.results)
    lines = [*_machine(run.machine), ""]
    if run.scale != Scale():
        lines += ["Not the sizes of the ordinary run (see the method): for a look, not for keeping.", ""]
    lines += ["Settings:", "", *_settings(run, figures), ""]
    for table in tables(figures):
        lines += [f"### {table.title}", "", *_lined(table), ""]
    if notes := _notes(figures):
        lines += ["Notes:", "", *(f"- {note}" for note in notes), ""]
    items = method(run.scale, run.rounds) if _has_systems(figures) else depth_method(run.scale, run.rounds)
    lines += ["Method:", "", *(f"- {item}" for item in items), ""]
    if failures := _failures(figures):
        lines += ["Failed:", "", *(f"- {line}" for line in failures), ""]
    return "\n".join(lines)


def to_json(run: Run) -> str:
    """Return the run's raw figures, with all that is needed to read them."""
    return json.dumps(dataclasses.asdict(run), indent=1, ensure_ascii=False) + "\n"


def _has_systems(figures: Figures) -> bool:
    return any(result.depth is None for result in figures.results)


def _machine(machine: Machine) -> Iterable[str]:
    host = f"{machine.cpu}, {machine.cores} cores, {machine.memory}"
    load = (
        f"{machine.load_before} before, {machine.load_after} after"
        if machine.load_after
        else machine.load_before
    )
    return (
        f"Measured {machine.date}.",
        "",
        f"- Machine: {host}; {machine.system}, {machine.kernel}",
        f"- Filesystem: {machine.filesystem}; the disk's write cache: {machine.disk_cache}",
        f"- {machine.python}, SQLite {machine.sqlite}",
        f"- Load average (1 min): {load}",
    )


def _settings(run: Run, figures: Figures) -> Iterable[str]:
    for name in figures.systems:
        yield f"- `{name}` {figures.version(name)}: {SYSTEMS[name].settings}"
    for name, why in run.left_out.items():
        yield f"- `{name}`: {why}, left out"


def _notes(figures: Figures) -> list[str]:
    used = used_marks(figures)
    notes = [f"{mark}: {text}" for mark, text in MARKS.items() if mark in used]
    if any(mark in WEAKER for mark in used):
        notes.append('"Equally durable" leaves out the figures marked as weaker.')
    page = figures.spread("raw", "fdatasync")
    if page is not None:
        spread = f"{number(page.low)}–{number(page.high)}"
        each = "4 KiB appended to a plain file, one fdatasync each"
        notes.append(f"For scale: {each}: {number(page.median)}/s ({spread}).")
    return notes


def _failures(figures: Figures) -> list[str]:
    return [
        f"{r.system} {r.workload} round {r.round}: {(r.error or '').splitlines()[-1]}"
        for r in figures.failures
    ]


def _drawn(table: Table) -> RichTable:
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    drawn.add_column(table.heads[0], min_width=_NAME_COLUMNS)
    for head in table.heads[1:]:
        drawn.add_column(head, justify="right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


def _lined(table: Table) -> Iterable[str]:
    yield f"| {' | '.join(table.heads)} |"
    yield f"|---|{'---:|' * (len(table.heads) - 1)}"
    for row in table.rows:
        yield f"| {' | '.join(row)} |"
