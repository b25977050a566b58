"""Random fractions that leave the random numbers of the program alone."""

from __future__ import annotations

import random
from typing import Final

# The module's own functions share one generator, which the program may have seeded to repeat what it does.
_OWN: Final = random.SystemRandom()


def draw() -> float:
    """Return a random number from 0 to below 1, as for a jitter."""
    return _OWN.random()
