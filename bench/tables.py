"""The tables of a run, as rows of text: what is in them, not how they are drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from bench.figures import Figures, Spread
from bench.systems import SYSTEMS
from bench.workloads import WORKLOADS

_MAIN = ("W1", "W2", "W3", "W4", "W5", "W6", "W6-paced", "W7")
_TIMED = ("W1", "W2", "W3", "W4", "W5", "W6")
_SENDING = ("W1", "W2", "W3")
_DEPTHS = ("depth-W4", "depth-W5")
_OURS = "lazaretto"
_STRICT = "lazaretto-strict"
_SAME = "="
_LATE = "i"
_NOTHING = "-"

#: The rows of the table of waiting: workload, figure, title.
_WAITING = (
    ("idle", "percent", "idle, blocked receiver: CPU, % of a core"),
    ("idle", "wakeups_per_second", "idle, blocked receiver: voluntary switches/s"),
    ("wake-threads", "p50_ms", "wake-up between threads: p50, ms"),
    ("wake-threads", "p99_ms", "wake-up between threads: p99, ms"),
    ("wake-threads", "send_p50_ms", "of which the durable send: p50, ms"),
    ("wake-processes", "p50_ms", "wake-up between processes: p50, ms"),
    ("wake-processes", "p99_ms", "wake-up between processes: p99, ms"),
    ("wake-processes", "send_p50_ms", "of which the durable send: p50, ms"),
    ("wake-paced", "p50_ms", "wake-up between processes at 200/s: p50, ms"),
    ("wake-paced", "p99_ms", "wake-up between processes at 200/s: p99, ms"),
    ("processes", "rate", "4 processes, send, receive, complete: cycles/s"),
    ("processes", "p50_ms", "4 processes, one cycle: p50, ms"),
    ("processes", "p99_ms", "4 processes, one cycle: p99, ms"),
)

_Cell = Callable[[str, str], str | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A table: a title, the heads of the columns, the rows. `detail`: too much for the terminal."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    detail: bool = False


def tables(figures: Figures) -> list[Table]:
    """Return all tables that there are figures for."""
    makers = (_medians, _ratios, _spreads, _latencies, _processors, _waiting, _depths)
    return [table for make in makers if (table := make(figures)) is not None]


def used_marks(figures: Figures) -> str:
    """Return the marks that stand on figures of this run, each once."""
    found = "".join(
        SYSTEMS[system].marks.get(workload, "")
        for system in figures.systems
        for workload in figures.workloads
        if figures.spread(system, workload) is not None or (figures.depths and workload in _DEPTHS)
    )
    late = (
        _LATE
        if any(_late(figures, system, w) for system in figures.systems for w in ("W6", "W6-paced"))
        else ""
    )
    same = _SAME if _STRICT in figures.systems and set(_SENDING) & set(figures.workloads) else ""
    return "".join(dict.fromkeys(found + late + same))


def number(value: float, unit: str = "/s") -> str:
    """Return a figure with as many digits as it deserves."""
    if unit == "/s":
        return f"{value:,.0f}"
    return f"{value:.{3 if value < 0.1 else 2 if value < 10 else 1}f}"


def _late(figures: Figures, system: str, workload: str) -> bool:
    unhandled = figures.spread(system, workload, "unhandled")
    return unhandled is not None and unhandled.high > 0


def _marks(system: str, workload: str) -> str:
    found = SYSTEMS[system].marks.get(workload, "")
    return f" {' '.join(found)}" if found else ""


def _long_head(workload: str) -> str:
    if workload == "W6-paced":
        return "W6 at 200/s: p50 / p99, ms"
    unit = WORKLOADS[workload].unit
    return f"{workload} {WORKLOADS[workload].title}{'' if unit == '/s' else f', {unit}'}"


def _short_head(workload: str) -> str:
    return {"W6-paced": "W6 at 200/s, p50, ms", "W7": "W7, s"}.get(workload, workload)


def _grid(
    figures: Figures,
    title: str,
    workloads: Sequence[str],
    cell: _Cell,
    head: Callable[[str], str] = _short_head,
) -> Table | None:
    """Return a table with a row a system and a column a workload, leaving out what was not measured."""
    columns = [name for name in workloads if name in figures.workloads]
    if not columns:
        return None
    rows = []
    for system in figures.systems:
        cells = [cell(system, workload) for workload in columns]
        if any(text is not None for text in cells) or figures.failed(system):
            blanks = [_blank(figures, system, workload) for workload in columns]
            rows.append([system, *(text or blank for text, blank in zip(cells, blanks, strict=True))])
    return Table(title, ["system", *(head(workload) for workload in columns)], rows)


def _detail(table: Table | None) -> Table | None:
    return None if table is None else dataclasses.replace(table, detail=True)


def _blank(figures: Figures, system: str, workload: str) -> str:
    if figures.failed(system, workload):
        return "failed"
    if system == _STRICT and workload in _SENDING:
        return _SAME
    return _NOTHING if workload in SYSTEMS[system].workloads else "n/a"


def _medians(figures: Figures) -> Table | None:
    def cell(system: str, workload: str) -> str | None:
        spread = figures.spread(system, workload)
        if spread is None:
            return None
        text = number(spread.median, WORKLOADS[workload].unit)
        if workload == "W6-paced" and (high := figures.spread(system, workload, "p99_ms")) is not None:
            text += f" / {number(high.median, 'ms')}"
        return text + _marks(system, workload) + (f" {_LATE}" if _late(figures, system, workload) else "")

    return _grid(figures, "Throughput, messages/s except where said", _MAIN, cell, _long_head)


def _spreads(figures: Figures) -> Table | None:
    def cell(system: str, workload: str) -> str | None:
        spread = figures.spread(system, workload)
        unit = WORKLOADS[workload].unit
        return None if spread is None else f"{number(spread.low, unit)}–{number(spread.high, unit)}"

    return _grid(figures, "Spread: least–most of the rounds", _MAIN, cell)


def _latencies(figures: Figures) -> Table | None:
    def cell(system: str, workload: str) -> str | None:
        middle = figures.spread(system, workload, "p50_ms")
        high = figures.spread(system, workload, "p99_ms")
        if middle is None or high is None:
            return None
        return " / ".join(f"{one.median:,.{3 if one.median < 10 else 0}f}" for one in (middle, high))

    title = "Latency, p50 / p99, ms: of a call (W4, W5: of both calls; W6: of a message, saturated)"
    return _detail(_grid(figures, title, _TIMED, cell))


def _processors(figures: Figures) -> Table | None:
    def cell(system: str, workload: str) -> str | None:
        client = figures.spread(system, workload, "cpu_client")
        rest = figures.spread(system, workload, "cpu_rest")
        if client is None or rest is None:
            return None
        return f"{client.median:.2f} + {rest.median:.2f}"

    def head(workload: str) -> str:
        return "W6 at 200/s" if workload == "W6-paced" else workload

    return _detail(_grid(figures, "CPU, cores: measured process + all else", _MAIN, cell, head))


def _ratio(spread: Spread | None, name: str = "") -> str:
    if spread is None:
        return _NOTHING
    return f"{spread.median:.2f} ({spread.low:.2f}–{spread.high:.2f}) {name}".rstrip()


def _ratios(figures: Figures) -> Table | None:
    ours = [name for name in figures.systems if SYSTEMS[name].kind == "ours"]
    columns = [name for name in _MAIN if name in figures.workloads]
    rivals: dict[str, Callable[[str], str | None]] = {
        "raw SQLite": lambda workload: "raw",
        "best peer, equally durable": lambda workload: figures.best_peer(workload, equal=True),
        "best peer of all": lambda workload: figures.best_peer(workload, equal=False),
    }
    rows = []
    for system in ours:
        for title, rival in rivals.items():
            cells = []
            for workload in columns:
                name = rival(workload)
                spread = None if name is None else figures.ratio(system, name, workload)
                cells.append(_ratio(spread, "" if name in (None, "raw") else str(name)))
            if any(cell != _NOTHING for cell in cells):
                rows.append([f"{system} to {title}", *cells])
    heads = ["ratio", *("W6 at 200/s" if name == "W6-paced" else name for name in columns)]
    return Table("Ratios: above 1 Lazaretto is better", heads, rows) if rows else None


def _waiting(figures: Figures) -> Table | None:
    systems = [name for name in figures.systems if any(figures.spread(name, w, f) for w, f, _ in _WAITING)]
    rows = []
    for workload, figure, title in _WAITING:
        spreads = [figures.spread(name, workload, figure) for name in systems]
        if any(spreads):
            rows.append([title, *(_NOTHING if one is None else _median(one) for one in spreads)])
    return Table("Waiting", ["median (spread)", *systems], rows) if rows else None


def _median(spread: Spread) -> str:
    low, high = number(spread.low, ""), number(spread.high, "")
    return f"{number(spread.median, '')} ({low}–{high})"


def _depths(figures: Figures) -> Table | None:
    rows = []
    ours = next((result.system for result in figures.results if result.depth is not None), _OURS)
    for depth in figures.depths:
        row = [f"{depth:,}"]
        for workload in _DEPTHS:
            spread = figures.spread(ours, workload, depth=depth)
            row.append(_NOTHING if spread is None else number(spread.median) + _marks(ours, workload))
            row.append(_ratio(figures.depth_ratio(ours, workload, depth)))
        rows.append(row)
    least = f"to {figures.depths[0]:,}" if rows else ""
    heads = ["waiting", "W4, messages/s", least, "W5, messages/s", least]
    return Table(f"Depth ({ours})", heads, rows) if rows else None
