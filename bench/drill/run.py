"""One drill on one system: offer the messages, let the disaster happen, watch, and gather the evidence."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

from bench.drill.drills import Drill
from bench.drill.evidence import Evidence
from bench.drill.journal import Event, Line, Reader, alive, running
from bench.drill.offer import Offer
from bench.drill.supervisor import Supervisor
from bench.drill.systems import SYSTEMS
from bench.drill.systems.contract import Drilled
from bench.drill.work import journal_path
from bench.rounds import private

#: Short beside the work of a task, which is to be caught while it runs.
_TICK_SECONDS = 0.003
#: How often the system itself is asked, at most; never more than a fifth of the time goes into asking.
_ASK_SECONDS = 0.25
_ASK_SHARE = 5
#: That many looks in a row must say that nothing moves any more: a message may be between two places.
_QUIET_LOOKS = 3
#: How long a worker may take until its first task starts.
_START_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a drill on a system: words by the titles of measures, or the error that ended it."""

    system: str
    drill: str
    figures: dict[str, str] = dataclasses.field(default_factory=dict)
    error: str | None = None


def take(drill: Drill, name: str, folder: Path) -> Outcome:
    """Run a drill on the system of this name, in a folder of its own under `folder`."""
    try:
        with private(folder) as home:
            evidence = _watched(drill, SYSTEMS[name](home, drill.deadline))
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return Outcome(system=name, drill=drill.key, error=f"{type(error).__name__}: {lines[-1]}")
    figures = {measure.title: measure.read(evidence) for measure in drill.measures}
    return Outcome(system=name, drill=drill.key, figures=figures)


def _watched(drill: Drill, system: Drilled) -> Evidence:
    deadline = "" if system.deadline is None else str(system.deadline)
    system.address = system.serve()
    try:
        system.open()
        system.create()
        command = [sys.executable, "-m", "bench.drill.worker", system.name]
        command += [str(system.home), deadline, system.address]
        supervisor = Supervisor(command, system.home / "worker.log")
    except BaseException:
        system.close()
        raise
    try:
        watch = Watch(drill, system, supervisor)
        watch.run()
        return watch.evidence()
    finally:
        supervisor.stop()
        system.close()


class Watch:
    """The course of one drill."""

    def __init__(self, drill: Drill, system: Drilled, supervisor: Supervisor) -> None:
        self._drill = drill
        self._system = system
        self._supervisor = supervisor
        self._reader = Reader(journal_path(system.home))
        self._lines: list[Line] = []
        self._done: set[int] = set()
        self._kills = list(drill.kills)
        self._offer = None if drill.outage is None else Offer(drill.outage, drill.messages, system)
        self._asked = 0.0
        self._quiet = 0
        self._set_aside: frozenset[int] = frozenset()
        self._waiting: frozenset[int] = frozenset()

    def run(self) -> None:
        """Run the drill until nothing more happens, or its time is up."""
        if self._offer is None:
            self._system.enqueue(self._drill.messages)
        self._supervisor.start()
        started = time.monotonic()
        while True:
            self._read()
            self._supervisor.tend(bool(self._lines))
            if self._offer is not None:
                self._offer.tend(bool(self._done))
            if self._kills and len(self._done) >= self._kills[0] and self._lines[-1].event is Event.START:
                del self._kills[0]
                self._supervisor.kill()
            now = time.monotonic()
            if self._lines and now >= self._lines[0].time + self._drill.limit:
                break
            if not self._lines and now >= started + _START_SECONDS:
                raise TimeoutError(f"no task had started {_START_SECONDS:g} s after the worker")
            if self._over(now):
                break
            time.sleep(_TICK_SECONDS)
        self._ask()
        self._read()

    def evidence(self) -> Evidence:
        """Return what is known now."""
        offer = self._offer
        return Evidence(
            messages=self._drill.messages if offer is None else offer.offered,
            lines=sorted(self._lines, key=lambda line: line.time),
            set_aside=self._set_aside,
            waiting=self._waiting,
            limit=self._drill.limit,
            counts=self._system.counts,
            outage=None if offer is None else offer.down,
            rate=0.0 if self._drill.outage is None else 1 / self._drill.outage.every,
        )

    def _read(self) -> None:
        new = self._reader.read()
        self._lines += new
        self._done.update(line.number for line in new if line.event is Event.DONE)

    def _over(self, now: float) -> bool:
        """Return whether every message is done, set aside or lost."""
        if self._offer is not None and not self._offer.over:
            return False
        if len(self._done) == len(self._drill.messages):
            return True
        if now < self._asked:
            return False
        self._ask()
        self._asked = time.monotonic() + max(_ASK_SECONDS, (time.monotonic() - now) * _ASK_SHARE)
        open_ = {m.number for m in self._drill.messages} - self._done - self._set_aside
        self._quiet = 0 if open_ & self._waiting else self._quiet + 1
        return self._quiet >= _QUIET_LOOKS

    def _ask(self) -> None:
        # In this order: a message that is set aside in between is in both, not in neither.
        waiting = self._system.waiting()
        self._set_aside = self._system.set_aside()
        hands = frozenset(number for number, pid in running(self._lines) if alive(pid))
        self._waiting = waiting | hands
