"""One measurement: how much to measure, and what came out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Self

from bench.figures import percentile
from bench.processor import Meter


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long and how much to measure. The sizes are upper bounds where time ends a workload."""

    seconds: float = 3.0
    one_by_one: int = 20_000
    in_batches: int = 100_000
    flow: int = 20_000
    flow_seconds: float = 25.0
    drill: int = 10_000
    idle_seconds: float = 10.0
    wakes: int = 800

    @classmethod
    def quick(cls) -> Self:
        """Return a scale that shows that everything runs; its figures are not worth keeping."""
        return cls(
            seconds=0.5,
            one_by_one=2_000,
            in_batches=10_000,
            flow=2_000,
            flow_seconds=10.0,
            drill=1_000,
            idle_seconds=2.0,
            wakes=80,
        )


class Result(NamedTuple):
    """A figure; microseconds of the machine's processors a message; and a second, the 99th percentile."""

    value: float
    cost: float | None = None
    p99_ms: float | None = None


def rate(count: int, seconds: float, meter: Meter) -> Result:
    """Return how many messages a second, and what one costs."""
    return Result(count / seconds, meter.busy / count * 1e6)


def latencies(nanoseconds: Sequence[int]) -> Result:
    """Return the median and the 99th percentile, in milliseconds."""
    p50, p99 = (percentile(nanoseconds, share) / 1e6 for share in (0.50, 0.99))
    return Result(p50, p99_ms=p99)
