"""Suspects that a connection tries alone, and what its client works on, as its settlements show.

A suspect is handed to a connection that holds nothing else, and that gets nothing more until it has settled
it. So if the connection dies, this message is to blame. Only one connection of a queue makes room for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Final, Protocol

from lazaretto.model.messages import ReceivedMessage, Suspects

#: Messages at work together, from which on all that a client has are taken to be.
_WIDEST: Final = 200


class ClientWork:
    """Messages that a client has, in the order of their hand-over.

    Clients begin with them in that order. So when one is settled, those before it were begun, too. `width`:
    how many were seen at work together; 0: none was settled yet, so all may be.
    """

    def __init__(self, width: int = 0) -> None:
        self.width = width
        self._open: dict[int, ReceivedMessage] = {}

    def begin(self, messages: Iterable[ReceivedMessage]) -> None:
        """Add messages that are handed over."""
        self._open.update((message.key, message) for message in messages)

    def end(self, messages: Iterable[ReceivedMessage], *, begun: bool) -> None:
        """Remove what was settled. `begun`: this shows that it was worked on."""
        for message in messages:
            if begun and message.key in self._open:
                self.width = max(self.width, self._rank(message.key))
            self._open.pop(message.key, None)

    def _rank(self, key: int) -> int:
        for rank, one in enumerate(itertools.islice(self._open, _WIDEST), 1):
            if one == key:
                return rank
        return _WIDEST

    def split(self) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
        """Return what the client works on, and what it has not begun."""
        messages = list(self._open.values())
        width = self.width if 0 < self.width < _WIDEST else len(messages)
        return messages[:width], messages[width:]


class Tester(Protocol):
    """A link on which a connection receives. `Consumer` says what each part is."""

    path: str

    @property
    def holds(self) -> bool: ...

    @property
    def asks(self) -> bool: ...

    def look(self) -> None: ...

    def stop_waiting(self) -> None: ...


class Trials:
    """The trials of one connection. `testers`: its links; `claims`: who makes room for suspects, by path."""

    def __init__(self, testers: Callable[[], Iterable[Tester]], claims: MutableMapping[str, Trials]) -> None:
        self._testers = testers
        self._claims = claims
        #: The link that tries suspects, or waits until the connection holds nothing.
        self._tester: Tester | None = None

    def blocks(self, tester: Tester) -> bool:
        """Return whether a link gets nothing for now."""
        if self._tester is None:
            return False
        return self._tester is not tester or not self._is_alone(tester)

    def is_tester(self, tester: Tester) -> bool:
        """Return whether a link tries suspects."""
        return self._tester is tester

    def choose(self, tester: Tester) -> Suspects:
        """Return what a receive on a link does about suspects."""
        return Suspects.FIRST if self._is_alone(tester) else Suspects.SKIPPED

    def _is_alone(self, tester: Tester) -> bool:
        """Return whether a connection holds nothing, and no other link is about to get something."""
        return all(not one.holds and (one is tester or not one.asks) for one in self._testers())

    def claim(self, tester: Tester) -> bool:
        """Make room for a suspect on this connection; return False if another one does."""
        path = tester.path.lower()
        if self._tester is not None or self._claims.setdefault(path, self) is not self:
            return False
        self._begin(tester)
        return True

    def _begin(self, tester: Tester) -> None:
        self._tester = tester
        for one in self._testers():
            if one is not tester:
                one.stop_waiting()

    def take(self, tester: Tester, messages: Sequence[ReceivedMessage]) -> bool:
        """Return whether a link may hand over what it has received; what it may not goes back."""
        if any(message.suspect for message in messages):
            if self._tester is None:
                self._begin(tester)
            return self._tester is tester and self._is_alone(tester)
        self.give_up(tester)
        return self._tester is None

    def end(self) -> None:
        """End all trials: the connection is gone."""
        tester, self._testers = self._tester, tuple
        if tester is not None:
            self.give_up(tester)

    def give_up(self, tester: Tester) -> None:
        """End the trials of a link, if it makes any: there are no suspects, or it is gone."""
        if self._tester is not tester:
            return
        self._tester = None
        path = tester.path.lower()
        if self._claims.get(path) is self:
            del self._claims[path]
        for one in self._testers():
            if one is not tester:
                one.look()

    def settled(self) -> None:
        """Go on if the connection holds nothing now."""
        tester = self._tester
        if tester is not None and self._is_alone(tester):
            tester.look()
