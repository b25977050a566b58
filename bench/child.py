"""The fresh process that one measurement happens in: `python -m bench.child MEASUREMENT`."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType

from bench.measure import Measurement, decode
from bench.systems import SYSTEMS
from bench.workloads import WORKLOADS


def _stop(signal_number: int, _frame: FrameType | None) -> None:
    # As an exception, so that servers are stopped on the way out.
    raise SystemExit(128 + signal_number)


def measure(measurement: Measurement) -> dict[str, float]:
    """Take the measurement here and return its figures."""
    assert measurement.home is not None
    system = SYSTEMS[measurement.system](Path(measurement.home))
    system.open()
    try:
        return WORKLOADS[measurement.workload].run(system, measurement)
    finally:
        system.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    print(json.dumps(measure(decode(sys.argv[1]))))
