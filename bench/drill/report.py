"""The report of the drills: one table in Markdown, with settings and method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.drill.drills import DEADLINE, HELD, RETRIES, Drill
from bench.drill.run import Outcome
from bench.drill.systems.contract import Drilled

_NOTHING = "–"

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


def report(
    machine: str, drills: Sequence[Drill], systems: Sequence[type[Drilled]], outcomes: Sequence[Outcome]
) -> str:
    """Return a row a measure under a row a drill, a column a system; then settings and method."""
    lines = [machine, "", *_rows(drills, systems, outcomes), "", "Settings:", ""]
    for system in systems:
        missing = system.missing()
        what = f" {system.version()}: {system.settings}" if missing is None else f": {missing}, left out"
        lines.append(f"- `{system.name}`{what}")
    return "\n".join([*lines, "", "Method:", "", *(f"- {item}" for item in _METHOD)])


def _rows(
    drills: Sequence[Drill], systems: Sequence[type[Drilled]], outcomes: Sequence[Outcome]
) -> Iterator[str]:
    yield f"| | wanted | {' | '.join(system.name for system in systems)} |"
    yield f"|---|---|{'---:|' * len(systems)}"
    found = {(outcome.drill, outcome.system): outcome for outcome in outcomes}
    for drill in drills:
        own = [found.get((drill.key, system.name)) for system in systems]
        said = ["not run" if one is None else one.error or "" for one in own]
        yield f"| **{drill.key}: {drill.title}** | | {' | '.join(said)} |"
        for measure in drill.measures:
            cells = [_NOTHING if one is None else one.figures.get(measure.title, _NOTHING) for one in own]
            yield f"| {measure.title} | {measure.target} | {' | '.join(cells)} |"
