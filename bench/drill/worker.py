"""A worker of a drill: `python -m bench.drill.worker SYSTEM FOLDER DEADLINE ADDRESS`, until killed."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from bench.drill.systems import SYSTEMS
from bench.drill.work import Task

if __name__ == "__main__":
    name, home, deadline, address = sys.argv[1:]
    logging.basicConfig(level=logging.CRITICAL)
    system = SYSTEMS[name](Path(home), float(deadline) if deadline else None, address)
    system.task = Task(Path(home))
    system.open()
    system.work()
