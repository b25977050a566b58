"""What is known at the end of a drill, and the counts that follow from it. Nothing here touches a queue."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Mapping, Sequence

from bench.drill.journal import Event, Line
from bench.drill.work import Kind, Message

#: A flow is at full rate when this share of what is offered is done, over this many seconds.
_FULL_SHARE = 0.9
_FULL_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """What became of messages that were not done: their numbers."""

    set_aside: frozenset[int]
    lost: frozenset[int]
    #: Still waiting, or in the hands of a task.
    unsettled: frozenset[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """The end of a drill.

    `lines`: the journal. `set_aside`: the messages that the system says have failed for good. `waiting`:
    those that it still has, or that a living process works on. `limit`: how many seconds it was given.
    `counts`: whether the system counts hand-overs that ended with the worker.
    """

    messages: Sequence[Message]
    lines: Sequence[Line]
    set_aside: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    limit: float = 60.0
    counts: bool = True
    #: Monotonic times between which the dependency was down.
    outage: tuple[float, float] | None = None
    #: Messages offered a second, in an outage.
    rate: float = 0.0

    @functools.cached_property
    def innocents(self) -> frozenset[int]:
        """The messages that can be handled."""
        return frozenset(m.number for m in self.messages if m.kind in (Kind.GOOD, Kind.DEPENDENT))

    @functools.cached_property
    def villains(self) -> frozenset[int]:
        """The messages that cannot."""
        return frozenset(m.number for m in self.messages) - self.innocents

    @functools.cached_property
    def done(self) -> Mapping[int, float]:
        """Message -> when it was done for the first time."""
        found: dict[int, float] = {}
        for line in self.lines:
            if line.event is Event.DONE:
                found.setdefault(line.number, line.time)
        return found

    @functools.cached_property
    def starts(self) -> Mapping[int, Sequence[int]]:
        """Message -> the attempts it was started with, as the system counts them."""
        found: dict[int, list[int]] = {}
        for line in self.lines:
            if line.event is Event.START:
                found.setdefault(line.number, []).append(line.attempt)
        return found

    @property
    def began(self) -> float | None:
        """When the first task started."""
        return self.lines[0].time if self.lines else None

    def count(self, event: Event) -> int:
        """Return how many lines say this."""
        return sum(line.event is event for line in self.lines)

    def gone(self, numbers: frozenset[int]) -> Gone:
        """Return what became of those of `numbers` that were not done."""
        missing = numbers - self.done.keys()
        aside = missing & self.set_aside
        rest = missing - aside
        return Gone(set_aside=aside, lost=rest - self.waiting, unsettled=rest & self.waiting)

    def repeated(self) -> int:
        """Return how many innocents were started more than once."""
        return sum(len(self.starts.get(number, ())) > 1 for number in self.innocents)

    def charged_unstarted(self) -> int:
        """Return how many attempts were charged to innocents for hand-overs that did not start them."""
        return sum(
            max(0, max(attempts) - len(attempts))
            for number, attempts in self.starts.items()
            if number in self.innocents
        )

    def charged(self) -> int:
        """Return how many failed attempts the system counts: all but the one that a message is done with."""
        total = 0
        for number, attempts in self.starts.items():
            total += attempts[-1] - (number in self.done)
        return total

    def seconds(self, numbers: frozenset[int]) -> float | None:
        """Return how long after the first task started the last of `numbers` was done, if all were."""
        if self.began is None or not numbers or not numbers <= self.done.keys():
            return None
        return max(self.done[number] for number in numbers) - self.began

    def full_rate(self) -> float | None:
        """Return how long after the outage the flow was at full rate again, if it was.

        That is the first message done from which on, for a second, nine in ten of what is offered are done.
        """
        if self.outage is None:
            return None
        back = self.outage[1]
        times = sorted(moment for moment in self.done.values() if moment >= back)
        wanted = max(1, int(self.rate * _FULL_SECONDS * _FULL_SHARE))
        for index, moment in enumerate(times):
            if bisect.bisect_right(times, moment + _FULL_SECONDS) - index >= wanted:
                return moment - back
        return None

    def drained(self) -> float | None:
        """Return how long after the outage the last message that was offered in it was done, or None.

        Messages set aside or lost are not waited for.
        """
        if self.outage is None or self.gone(self.innocents).unsettled:
            return None
        during = [self.done[n] for n in self.done if n in self.offered_down]
        return max(0.0, max(during) - self.outage[1]) if during else 0.0

    @functools.cached_property
    def offered_down(self) -> frozenset[int]:
        """The messages that were tried while the dependency was down."""
        return frozenset(line.number for line in self.lines if line.event is Event.FAILED)
