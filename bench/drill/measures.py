"""The measures of a drill: each turns the evidence into a figure and the words for its cell."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

from bench.drill.evidence import Evidence, Gone
from bench.drill.journal import Event


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A figure, None if what it counts had not happened in time, and the words for its cell."""

    value: float | None
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """A row of a drill. `target`: what is wanted, in words; empty if there is nothing to want."""

    key: str
    title: str
    target: str
    read: Callable[[Evidence], Figure]


def _whole(count: int) -> Figure:
    return Figure(count, f"{count:,}")


def _duration(seconds: float | None, otherwise: str) -> Figure:
    if seconds is None:
        return Figure(None, otherwise)
    return Figure(round(seconds, 3), f"{seconds:.{2 if seconds < 10 else 1}f}")


def _parts(gone: Gone) -> list[str]:
    counts = {"set aside": gone.set_aside, "lost": gone.lost}
    return [f"{len(numbers):,} {name}" for name, numbers in counts.items() if numbers]


def _innocents_gone(evidence: Evidence) -> Figure:
    gone = evidence.gone(evidence.innocents)
    return Figure(len(gone.set_aside) + len(gone.lost), ", ".join(_parts(gone)) or "0")


def _repeated(evidence: Evidence) -> Figure:
    return _whole(evidence.repeated())


def _innocents_done(evidence: Evidence) -> Figure:
    done = len(evidence.innocents & evidence.done.keys())
    short = f"{done:,} of {len(evidence.innocents):,}"
    if evidence.gone(evidence.innocents).unsettled:
        short += f" in {evidence.limit:g} s"
    return _duration(evidence.seconds(evidence.innocents), short)


def _verdict(event: Event, one: str, many: str) -> Callable[[Evidence], Figure]:
    def read(evidence: Evidence) -> Figure:
        gone = evidence.gone(evidence.villains)
        count = evidence.count(event)
        said = f"{count:,} {one if count == 1 else many}"
        if gone.unsettled:
            beside = f" {len(gone.unsettled)} of {len(evidence.villains)}" if _parts(gone) else ""
            return Figure(None, f"never{beside} in {evidence.limit:g} s ({said})")
        if gone.lost:
            return Figure(None, f"never: {', '.join(_parts(gone))} ({said})")
        return Figure(count, f"{count:,}")

    return read


def _charged_unstarted(evidence: Evidence) -> Figure:
    if not evidence.counts:
        return Figure(None, "counts none")
    return _whole(evidence.charged_unstarted())


def _failed_tries(evidence: Evidence) -> Figure:
    return _whole(evidence.count(Event.FAILED))


def _charged(evidence: Evidence) -> Figure:
    return _whole(evidence.charged())


def _full_rate(evidence: Evidence) -> Figure:
    return _duration(evidence.full_rate(), f"not in {_left(evidence)}")


def _drained(evidence: Evidence) -> Figure:
    waiting = len(evidence.gone(evidence.innocents).unsettled)
    return _duration(evidence.drained(), f"{waiting:,} waiting after {_left(evidence)}")


def _left(evidence: Evidence) -> str:
    if evidence.outage is None or evidence.began is None:
        return f"{evidence.limit:g} s"
    return f"{evidence.began + evidence.limit - evidence.outage[1]:.0f} s"


def _good(evidence: Evidence) -> Figure:
    return _whole(len(evidence.innocents & evidence.done.keys()))


def _bad(evidence: Evidence) -> Figure:
    aside = evidence.gone(evidence.villains).set_aside
    reasons = sum(bool(evidence.set_aside[number]) for number in aside)
    return Figure(
        reasons, f"{len(aside):,}" if reasons == len(aside) else f"{len(aside):,}, {reasons:,} with a reason"
    )


def _all_settled(evidence: Evidence) -> Figure:
    """Seconds until the last line of the journal: the last completion or the last failure."""
    gone = evidence.gone(evidence.innocents | evidence.villains)
    if gone.unsettled or evidence.began is None:
        return Figure(None, f"{len(gone.unsettled):,} waiting after {evidence.limit:g} s")
    return _duration(evidence.lines[-1].time - evidence.began, "")


def rate_of_sessions(sessions: frozenset[int]) -> Measure:
    """Return the measure of how fast these sessions went, in which nothing is wrong."""

    def read(evidence: Evidence) -> Figure:
        numbers = frozenset(m.number for m in evidence.messages if m.session in sessions)
        seconds = evidence.seconds(numbers)
        if seconds is None:
            return Figure(None, f"{len(numbers & evidence.done.keys()):,} of {len(numbers):,} done")
        return Figure(round(len(numbers) / seconds, 1), f"{len(numbers) / seconds:,.0f}")

    return Measure("others_rate", "messages/s of the other sessions", "0.95 of no poison", read)


def order_of_sessions(sessions: frozenset[int], mode: str) -> Measure:
    """Return the measure of in how many of these sessions the order held that the mode promises."""

    def read(evidence: Evidence) -> Figure:
        return _whole(sum(_in_order(evidence, session, mode) for session in sessions))

    return Measure("order_kept", "sessions with poison whose order held", f"{len(sessions)}", read)


def _in_order(evidence: Evidence, session: int, mode: str) -> bool:
    numbers = [m.number for m in evidence.messages if m.session == session]
    (poison,) = evidence.villains.intersection(numbers)
    started = [line.number for line in evidence.lines if line.event is Event.START and line.number in numbers]
    ascending = all(
        # As one unit a session begins anew; else only the same message is tried again.
        before <= after or (mode == "whole" and before == poison and after == numbers[0])
        for before, after in itertools.pairwise(started)
    )
    wanted = numbers if mode == "skip" else numbers[: numbers.index(poison) + 1]
    return ascending and sorted(set(started)) == wanted


INNOCENTS_GONE = Measure("innocents_gone", "innocents lost or set aside", "0", _innocents_gone)
REPEATED = Measure("repeated", "innocents run more than once", "", _repeated)
DEATHS = Measure(
    "deaths",
    "worker deaths until the killers are set aside",
    "at most 8",
    _verdict(Event.DYING, "death", "deaths"),
)
HANGS = Measure("hangs", "hangs until the message is set aside", "", _verdict(Event.HANGING, "hang", "hangs"))
INNOCENTS_DONE = Measure("innocents_done", "seconds until all innocents are done", "", _innocents_done)
CHARGED_UNSTARTED = Measure(
    "charged_unstarted", "attempts charged to messages never started", "0", _charged_unstarted
)
FAILED_TRIES = Measure("failed_tries", "tries that failed", "", _failed_tries)
CHARGED = Measure("charged", "attempts charged", "0 once noticed", _charged)
FULL_RATE = Measure("full_rate", "seconds after it until the flow is at full rate", "", _full_rate)
DRAINED = Measure("drained", "seconds after it until the backlog is done", "", _drained)
GOOD = Measure("good", "good messages done", "1,980", _good)
BAD = Measure("bad", "bad messages set aside, with a reason on record", "20", _bad)
ALL_SETTLED = Measure("all_settled", "seconds until all is settled", "", _all_settled)
