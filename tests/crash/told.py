"""What the processes that were killed had been told, read from their journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from lazaretto import Outcome

#: How many attempts of a message the store keeps.
KEPT = 100


class Told:
    """The journal's lines by kind: the messages' names, and their hand-overs (number and attempt)."""

    def __init__(self, lines: list[list[str]]) -> None:
        self.names: dict[str, list[str]] = defaultdict(list)
        self.hands: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for kind, name, *hand in lines:
            self.names[kind].append(name)
            if hand:
                self.hands[kind].append((int(hand[0]), int(hand[1])))
        self._known = {kind: set(hands) for kind, hands in self.hands.items()}
        self._latest: dict[int, int] = {}
        for number, attempt in self.hands["handed"]:
            self._latest[number] = max(attempt, self._latest.get(number, 0))
        self._check()

    def set(self, kind: str) -> set[str]:
        """Return the names of the messages that a kind of line is about."""
        return set(self.names[kind])

    def _check(self) -> None:
        """Check what can be checked without the store."""
        assert _once(self.hands["handed"]), "an attempt was handed over twice"
        for kind in ("sent", "completed", "buried"):
            assert _once(self.names[kind]), f"a message was {kind} twice"
        settled = self.hands["completed"] + self.hands["buried"]
        assert _once([number for number, _ in settled]), "a message was completed and buried"
        for number, attempt in settled:
            assert self._latest[number] == attempt, f"message {number} came again after it was settled"

    def check_history(self, number: int, deliveries: int, past: dict[int, Outcome]) -> None:
        """Every hand-over is in a message's history: those that were abandoned, and those that died.

        `deliveries`: how many there have been; `past`: how they ended, by number.
        """
        assert deliveries >= self._latest.get(number, 0), f"an attempt of message {number} was forgotten"
        assert list(past) == list(range(max(1, deliveries - KEPT + 1), deliveries + 1))
        for attempt, outcome in past.items():
            hand = (number, attempt)
            if self._is("abandoned", hand):
                assert outcome is Outcome.FAILED
            elif self._is("abandoning", hand) or self._is("lost", hand):
                assert outcome in (Outcome.LOCK_EXPIRED, Outcome.LOST, Outcome.FAILED)
            elif self._is("burying", hand):
                assert outcome in (Outcome.LOST, Outcome.DEAD_LETTERED)
            else:
                # Killed while it held the message, whether or not it came to know that it did.
                assert outcome is Outcome.LOST

    def _is(self, kind: str, hand: tuple[int, int]) -> bool:
        return hand in self._known.get(kind, ())


def _once(values: Sequence[object]) -> bool:
    return len(set(values)) == len(values)
