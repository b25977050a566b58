"""The benchmark: Lazaretto beside other durable queues, in one run, on one machine.

`python -m bench` from the root of the project; `docs/benchmarks.md` says how to read what it prints.
It measures and never judges: nothing here passes or fails.
"""

import sys
from pathlib import Path

# The tests' own helpers: servers of PostgreSQL, and what a message can do to its process.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
