"""One measurement: what to measure, what came out, and the fresh process it happens in."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

#: After this a measurement is given up, because something hangs.
_TIMEOUT_SECONDS = 600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long and how much to measure. The sizes are upper bounds where time ends a workload."""

    seconds: float = 3.0
    one_by_one: int = 20_000
    in_batches: int = 100_000
    flow: int = 20_000
    flow_seconds: float = 25.0
    paced_seconds: float = 5.0
    drill: int = 10_000
    idle_seconds: float = 10.0
    wakes: int = 200

    @classmethod
    def quick(cls) -> Self:
        """Return a scale that shows that everything runs; its figures are not worth keeping."""
        return cls(
            seconds=0.5,
            one_by_one=2_000,
            in_batches=10_000,
            flow=2_000,
            flow_seconds=10.0,
            paced_seconds=1.0,
            drill=1_000,
            idle_seconds=2.0,
            wakes=50,
        )

    def lasting(self, seconds: float) -> Self:
        """Return this scale with so many seconds for each timed measurement."""
        return dataclasses.replace(self, seconds=seconds)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One workload on one system in one round. `home`: its directory."""

    system: str
    workload: str
    round: int
    scale: Scale
    home: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came out of a measurement: its figures by name, or why there are none."""

    system: str
    workload: str
    round: int
    figures: dict[str, float] = dataclasses.field(default_factory=dict)
    error: str | None = None


class Meter:
    """Time and CPU between entering and leaving: of this process, and of the rest of the machine."""

    def __enter__(self) -> Self:
        self._machine, self._own, self._start = _busy_seconds(), _own_seconds(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.elapsed = time.perf_counter() - self._start
        self.own = _own_seconds() - self._own
        self.rest = max(0.0, _busy_seconds() - self._machine - self.own)

    def figures(self) -> dict[str, float]:
        """Return the cores kept busy by this process and by all others: server, kernel and noise."""
        return {"cpu_client": self.own / self.elapsed, "cpu_rest": self.rest / self.elapsed}


def _own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _busy_seconds() -> float:
    # user, nice, system, idle, iowait, irq, softirq: all but the waiting.
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values, from 0 to 1, do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def latencies(nanoseconds: Sequence[int], prefix: str = "") -> dict[str, float]:
    """Return the median and the 99th percentile, in milliseconds."""
    if not nanoseconds:
        return {}
    return {
        f"{prefix}p50_ms": percentile(nanoseconds, 0.50) / 1e6,
        f"{prefix}p99_ms": percentile(nanoseconds, 0.99) / 1e6,
    }


def encode(measurement: Measurement) -> str:
    """Return a measurement as text, for the process that takes it."""
    return json.dumps(dataclasses.asdict(measurement))


def decode(text: str) -> Measurement:
    """Return the measurement that `encode` wrote."""
    given = json.loads(text)
    return Measurement(**(given | {"scale": Scale(**given["scale"])}))


def take(measurement: Measurement, folder: Path) -> Result:
    """Take one measurement in a fresh process, with a directory of its own under `folder`."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=folder)).resolve()
    # A server may run as another user, who has to get here.
    home.chmod(0o755)
    try:
        return _run(dataclasses.replace(measurement, home=str(home)))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _run(measurement: Measurement) -> Result:
    failed = Result(
        system=measurement.system,
        workload=measurement.workload,
        round=measurement.round,
    )
    # A session of its own: Ctrl-C reaches this process alone, which then ends the other in good order.
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.child", encode(measurement)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        out, err = _end(child)
        return dataclasses.replace(failed, error=f"gave up after {_TIMEOUT_SECONDS:.0f} s")
    except BaseException:
        _end(child)
        raise
    if child.returncode != 0 or not out.strip():
        lines = [line for line in err.splitlines() if line.strip()] or [f"exit status {child.returncode}"]
        return dataclasses.replace(failed, error="\n".join(lines[-12:]))
    return dataclasses.replace(failed, figures=json.loads(out.strip().splitlines()[-1]))


def _end(child: subprocess.Popen[str]) -> tuple[str, str]:
    # Asked first, so that it stops the server it started; then its whole session, which is ours.
    child.send_signal(signal.SIGTERM)
    try:
        return child.communicate(timeout=45)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return child.communicate()


def rate(count: int, run: Callable[[], object]) -> float:
    """Return how many a second it is, when `run` does so many."""
    begun = time.perf_counter()
    run()
    return count / (time.perf_counter() - begun)
