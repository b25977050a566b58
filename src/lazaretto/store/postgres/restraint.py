"""Keeps processes that wait for the same messages from all looking at once."""

from __future__ import annotations

from typing import Final

from lazaretto.store.runtime.processes import draw

#: How long a process waits before it looks again after it found nothing, at first and at most, in seconds.
SHORTEST_PAUSE: Final = 0.000_25
LONGEST_PAUSE: Final = 0.001


class Restraint:
    """Keeps a process that found nothing from looking as soon as the next commit is heard.

    All processes that wait hear of each message, and one gets it. If all of them looked at once, each would
    slow down the one that finds something, and the sender.
    """

    def __init__(self) -> None:
        self._pause = 0.0
        self._version = -1
        #: The number of commits heard when it was last asked.
        self.heard = 0

    def before_looking(self, heard: int, version: int) -> float:
        """Return how many seconds to wait, given the commits heard and the version of its own last one."""
        if heard == self.heard:
            return 0.0
        self.heard = heard
        news = version != self._version
        self._version = version
        self._pause = 0.0 if news else min(max(2 * self._pause, SHORTEST_PAUSE), LONGEST_PAUSE)
        # Not all of them at the same moment.
        return self._pause * (0.5 + draw())
