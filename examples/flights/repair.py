"""Finds the airports that are missing, in the dead letters themselves, and knows their names."""

from __future__ import annotations

from collections import Counter

import msgspec

from examples.flights.data import Flight
from examples.flights.rules import UnknownDestination, error_type
from lazaretto import Broker, DeadLetterFilter

#: The airports outside the 50 states that New York has flights to.
NAMES = {
    "BQN": "Rafael Hernandez Intl",
    "PSE": "Mercedita",
    "SJU": "Luis Munoz Marin Intl",
    "STT": "Cyril E King",
}

UNKNOWN = DeadLetterFilter(error_type=error_type(UnknownDestination))


def missing_airports(broker: Broker, queue: str) -> Counter[str]:
    """Return the codes that flights failed for, and how many flights each."""
    decode = msgspec.json.Decoder(Flight).decode
    messages = (letter.message for letter in broker.dead_letters(queue, UNKNOWN))
    return Counter(decode(message.body).dest for message in messages if message is not None)
