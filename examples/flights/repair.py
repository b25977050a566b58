"""Finds the airports that are missing, in the dead letters themselves, and knows their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from examples.flights.data import Flight
from examples.flights.rules import UnknownDestination, error_type
from lazaretto import Broker, DeadLetterFilter, Explanation

#: The airports outside the 50 states that New York has flights to.
NAMES = {
    "BQN": "Rafael Hernandez Intl",
    "PSE": "Mercedita",
    "SJU": "Luis Munoz Marin Intl",
    "STT": "Cyril E King",
}


def cause_of_ours(causes: Iterable[Explanation]) -> DeadLetterFilter:
    """Return the letters of the cause that is ours: the flights are right, and our table of airports is not.

    They are found by what they have in common, unless that is several things, or a few flights are too
    little to tell.
    """
    wanted = error_type(UnknownDestination)
    ours = [cause for cause in causes if cause.error_type == wanted]
    is_one = len(ours) == 1 and not ours[0].unexplained
    return DeadLetterFilter(error_type=wanted, where=ours[0].filter if is_one else None)


def missing_airports(broker: Broker, queue: str, cause: DeadLetterFilter) -> Counter[str]:
    """Return the codes that flights failed for, and how many flights each."""
    decode = msgspec.json.Decoder(Flight).decode
    messages = (letter.message for letter in broker.dead_letters(queue, cause))
    return Counter(decode(message.body).dest for message in messages if message is not None)
