"""Description lengths: how many bits it takes to say who failed, and to say under which condition."""

from __future__ import annotations

import math


def entropy(part: int, whole: int) -> float:
    """Return the bits that say which `part` of `whole` things are meant, coded by their share."""
    rest = whole - part
    if part <= 0 or rest <= 0:
        return 0.0
    return whole * math.log2(whole) - part * math.log2(part) - rest * math.log2(rest)


def cost(failing: int, good: int, all_failing: int, all_good: int) -> float:
    """Return the bits that say which messages failed, given a split with so many of each inside.

    Half a logarithm for each side pays for its rate of failures.
    """
    inside = failing + good
    outside = all_failing + all_good - inside
    return (
        entropy(failing, inside)
        + entropy(all_failing - failing, outside)
        + 0.5 * math.log2(max(2, inside))
        + 0.5 * math.log2(max(2, outside))
    )


def choice(number: int, chosen: int) -> float:
    """Return the bits that say which so many of a number of things are chosen."""
    return (math.lgamma(number + 1) - math.lgamma(chosen + 1) - math.lgamma(number - chosen + 1)) / math.log(
        2
    )
