"""A worker of a drill: `python -m bench.drill.worker FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.drill.systems import SYSTEMS
from bench.drill.systems.contract import worker_terms


def main(home: Path) -> None:
    """Be the worker of the drill in this folder, until killed."""
    name, terms, address = worker_terms(home)
    SYSTEMS[name](home, terms, address).work()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
