"""Description lengths: the bits needed to encode which messages failed, and a condition for it."""

from __future__ import annotations

import math


def entropy(part: int, whole: int) -> float:
    """Return the bits needed to encode which `part` of `whole` items are selected, given their share."""
    rest = whole - part
    if part <= 0 or rest <= 0:
        return 0.0
    return whole * math.log2(whole) - part * math.log2(part) - rest * math.log2(rest)


def cost(failing: int, good: int, all_failing: int, all_good: int) -> float:
    """Return the bits needed to encode which messages failed, given a split of both sides.

    Each side also costs half a logarithm, to encode its failure rate.
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
    """Return the bits needed to encode a choice of several items from a number of them."""
    return (math.lgamma(number + 1) - math.lgamma(chosen + 1) - math.lgamma(number - chosen + 1)) / math.log(
        2
    )
