"""How what is missing is installed: the one place that says it, until the package is on an index."""

from __future__ import annotations

#: Where pip finds this package: the folder of a clone, seen from where it was cloned.
PLACE = "./lazaretto"


def install(extra: str) -> str:
    """Return the command that installs the package with an extra."""
    return f"pip install '{PLACE}[{extra}]'"
