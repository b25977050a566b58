"""Each person's work under way at a server: some requests, and few searches, so that others get theirs."""

from __future__ import annotations

from collections import Counter

from lazaretto.errors import ServerOverloaded, TooManyRequests
from lazaretto.model.limits import ServerLimits
from lazaretto.serving.budget import Budget, Share


class People:
    """Counts what people have under way."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._requests: Counter[str] = Counter()
        self._searches = Budget(limits.searches)
        self._own: dict[str, Budget] = {}

    def begin(self, person: str, share: Share) -> None:
        """Count a request until it ends. Raises TooManyRequests."""
        most = self._limits.requests_per_person
        if self._requests[person] >= most:
            raise TooManyRequests(f"expected at most {most} requests of {person!r} under way, got one more")
        self._requests[person] += 1
        share.at_end(lambda: self._end(person))

    def _end(self, person: str) -> None:
        self._requests[person] -= 1
        if not self._requests[person]:
            del self._requests[person]

    async def search(self, person: str, share: Share) -> None:
        """Wait for a search of a person to have its turn until the request ends. Raises TooManyRequests."""
        own = self._own.setdefault(person, Budget(self._limits.searches_per_person))
        mine, all_ = Share(own), Share(self._searches)

        def end() -> None:
            all_.let_go()
            mine.let_go()
            if not own.held and not own.waited_for:
                self._own.pop(person, None)

        share.at_end(end)
        try:
            await mine.hold(1)
            await all_.hold(1)
        except ServerOverloaded:
            raise TooManyRequests(
                f"expected at most {self._limits.searches_per_person} searches of a person under way, and "
                f"{self._limits.searches} of all, got more: ask again when others are over"
            ) from None
