"""The measures of a drill: each turns the evidence into the words for its cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bench.drill.evidence import Evidence, Gone
from bench.drill.journal import Event


class Measure(NamedTuple):
    """A row of a drill. `target`: what is wanted, in words; empty if there is nothing to want."""

    title: str
    target: str
    read: Callable[[Evidence], str]


def _duration(seconds: float | None, otherwise: str) -> str:
    return otherwise if seconds is None else f"{seconds:.{2 if seconds < 10 else 1}f}"


def _parts(gone: Gone) -> list[str]:
    counts = {"set aside": gone.set_aside, "lost": gone.lost}
    return [f"{len(numbers):,} {name}" for name, numbers in counts.items() if numbers]


def _innocents_gone(evidence: Evidence) -> str:
    return ", ".join(_parts(evidence.gone(evidence.innocents))) or "0"


def _innocents_done(evidence: Evidence) -> str:
    done = len(evidence.innocents & evidence.done.keys())
    short = f"{done:,} of {len(evidence.innocents):,}"
    if evidence.gone(evidence.innocents).unsettled:
        short += f" in {evidence.limit:g} s"
    return _duration(evidence.seconds(evidence.innocents), short)


def _verdict(event: Event, one: str, many: str) -> Callable[[Evidence], str]:
    def read(evidence: Evidence) -> str:
        gone = evidence.gone(evidence.villains)
        count = evidence.count(event)
        said = f"{count:,} {one if count == 1 else many}"
        if gone.unsettled:
            beside = f" {len(gone.unsettled)} of {len(evidence.villains)}" if _parts(gone) else ""
            return f"never{beside} in {evidence.limit:g} s ({said})"
        if gone.lost:
            return f"never: {', '.join(_parts(gone))} ({said})"
        return f"{count:,}"

    return read


def _charged_unstarted(evidence: Evidence) -> str:
    return f"{evidence.charged_unstarted():,}" if evidence.counts else "counts none"


def _full_rate(evidence: Evidence) -> str:
    return _duration(evidence.full_rate(), f"not in {_left(evidence)}")


def _drained(evidence: Evidence) -> str:
    waiting = len(evidence.gone(evidence.innocents).unsettled)
    return _duration(evidence.drained(), f"{waiting:,} waiting after {_left(evidence)}")


def _left(evidence: Evidence) -> str:
    if evidence.outage is None or evidence.began is None:
        return f"{evidence.limit:g} s"
    return f"{evidence.began + evidence.limit - evidence.outage[1]:.0f} s"


INNOCENTS_GONE = Measure("innocents lost or set aside", "0", _innocents_gone)
REPEATED = Measure("innocents run more than once", "", lambda evidence: f"{evidence.repeated():,}")
DEATHS = Measure(
    "worker deaths until the killers are set aside", "at most 8", _verdict(Event.DYING, "death", "deaths")
)
HANGS = Measure("hangs until the message is set aside", "", _verdict(Event.HANGING, "hang", "hangs"))
INNOCENTS_DONE = Measure("seconds until all innocents are done", "", _innocents_done)
CHARGED_UNSTARTED = Measure("attempts charged to messages never started", "0", _charged_unstarted)
FAILED_TRIES = Measure("tries that failed", "", lambda evidence: f"{evidence.count(Event.FAILED):,}")
CHARGED = Measure("attempts charged", "0 once noticed", lambda evidence: f"{evidence.charged():,}")
FULL_RATE = Measure("seconds after it until the flow is at full rate", "", _full_rate)
DRAINED = Measure("seconds after it until the backlog is done", "", _drained)
