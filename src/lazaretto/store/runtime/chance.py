"""Random fractions and ids that leave the random numbers of the program alone."""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Callable
from typing import Final

# The module's own functions share one generator, which the program may have seeded to repeat what it does.
_OWN: Final = random.SystemRandom()


def draw() -> float:
    """Return a random number from 0 to below 1, as for a jitter."""
    return _OWN.random()


def message_ids() -> Callable[[], str]:
    """Return what gives ids that no other message has; threads and transactions share it."""
    write = f"{secrets.token_hex(8)}{{:08x}}".format
    # Each message takes one, so no function of Python's stands between.
    return map(write, itertools.count(1)).__next__
