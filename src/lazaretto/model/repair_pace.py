"""Pace of a repair, and its own reasons to stop. Pure: counts in, decisions out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import msgspec

#: The steps that the window takes while what was sent is processed: 1, 2, 5, 10, 20, 50 …
_STEPS: Final = (1, 2, 5)
#: How many of the latest outcomes the stop rule looks at.
RECENT: Final = 200
#: The share of letters that fail again above which a repair stops.
MOST_FAILING: Final = 0.05
#: 95 %, both sides.
_Z: Final = 1.96
#: What a chunk may take of the writer's time, in seconds; its commit comes on top.
CHUNK_SECONDS: Final = 0.012
_LEAST_CHUNK, MOST_CHUNK = 10, 2_000
#: Without a window, the outcomes of so many letters are watched at a time.
WATCHED: Final = 300


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Pace of sending letters. Both limits can be changed while the repair runs.

    `in_flight`: the most letters that may be sent and not yet processed; None: any number, without a ramp.
    `rate`: the most letters a second; None: any number. `window`: how many may be in flight at present.
    `streak`: how many were processed since the window changed. `recent`: the latest outcomes, the newest
    last: p (processed) or f (failed again). `start`: how many had been dealt with when it last began to run.
    """

    in_flight: int | None = 1_000
    rate: float | None = None
    window: int = 1
    streak: int = 0
    recent: str = ""
    start: int = 0

    def after(self, outcomes: Iterable[bool]) -> Pace:
        """Return the pace after more outcomes, in order: True for processed, False for failed again."""
        window, streak, recent = self.window, self.streak, []
        most = self.in_flight or 1
        for processed in outcomes:
            recent.append("p" if processed else "f")
            if not processed:
                window, streak = max(1, window // 2), 0
                continue
            streak += 1
            if streak >= window:
                window, streak = min(most, wider(window)), 0
        latest = (self.recent + "".join(recent))[-RECENT:]
        return msgspec.structs.replace(self, window=min(window, most), streak=streak, recent=latest)

    def room(self, open_: int) -> int:
        """Return how many more letters may be sent while the outcome of `open_` is not known."""
        return MOST_CHUNK if self.in_flight is None else max(0, min(self.window, self.in_flight) - open_)

    def changed(self, in_flight: int | None, rate: float | None) -> Pace:
        """Return the pace with other limits."""
        window = self.window if in_flight is None else min(self.window, in_flight)
        return msgspec.structs.replace(self, in_flight=in_flight, rate=rate, window=window)

    def afresh(self) -> Pace:
        """Return the pace at which a repair begins anew after the stop rule has stopped it."""
        return msgspec.structs.replace(self, window=1, streak=0, recent="")


def wider(window: int) -> int:
    """Return the next step of the ramp: 1, 2, 5, 10, 20, 50 …"""
    power = 10 ** int(math.log10(window)) if window > 0 else 1
    return next((step * power for step in _STEPS if step * power > window), 10 * power)


def least_share(failed: int, number: int) -> float:
    """Return the lower end of Wilson's 95 % interval of a share: what it is at least, very likely."""
    if not number:
        return 0.0
    share, z2 = failed / number, _Z * _Z
    centre = share + z2 / (2 * number)
    spread = _Z * math.sqrt(share * (1 - share) / number + z2 / (4 * number * number))
    return max(0.0, (centre - spread) / (1 + z2 / number))


def why_stop(pace: Pace) -> str | None:
    """Return why a repair must not go on, by its latest outcomes; None if it may."""
    failed, number = pace.recent.count("f"), len(pace.recent)
    least = least_share(failed, number)
    if least <= MOST_FAILING:
        return None
    return (
        f"{failed} of the last {number} letters failed again: at least {100 * least:.0f} % of all will, "
        f"and {100 * MOST_FAILING:.0f} % are allowed"
    )


def next_chunk(size: int, seconds: float) -> int:
    """Return how many letters the next commit takes, given how long the latest one of `size` took."""
    ideal = size * CHUNK_SECONDS / max(seconds, 1e-6)
    # Slowly up, at once down: one long commit is felt, one short one is not.
    size = max(_LEAST_CHUNK, min(MOST_CHUNK, int(min(ideal, 2 * size))))
    # Round numbers are texts of SQL that are known already.
    return size - size % 100 if size > 100 else size


class Allowance(msgspec.Struct):
    """Letters that a rate allows now. Times in seconds, of any clock that never goes back."""

    left: float = 1.0
    at: float | None = None

    def allow(self, rate: float | None, now: float) -> int:
        """Return how many letters may be sent; what was not sent for a fifth of a second is lost."""
        if rate is None:
            return MOST_CHUNK
        if self.at is not None:
            self.left = min(max(1.0, rate / 5), self.left + (now - self.at) * rate)
        self.at = now
        return int(self.left)

    def spend(self, letters: int) -> None:
        """Note letters that were sent."""
        self.left -= letters
