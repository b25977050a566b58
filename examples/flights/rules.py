"""What is done with one flight, and each way in which it can fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import msgspec

from examples.flights.data import Flight
from lazaretto import ReceivedMessage

_decode = msgspec.json.Decoder(Flight).decode


class BadFlight(Exception):
    """A flight that cannot be put into the results."""


class NeverDeparted(BadFlight):
    """never departed"""


class NoArrivalTime(BadFlight):
    """no arrival time"""


class NoTimeInTheAir(BadFlight):
    """no time in the air"""


class UnknownDestination(BadFlight, KeyError):
    """unknown destination"""


#: In the order of the checks.
CAUSES: tuple[type[BadFlight], ...] = (NeverDeparted, NoArrivalTime, NoTimeInTheAir, UnknownDestination)


def title(cause: type[BadFlight]) -> str:
    """Return what a cause is called in tables and charts."""
    return cause.__doc__ or cause.__name__


def error_type(cause: type[BadFlight]) -> str:
    """Return the name under which the broker keeps errors of this kind."""
    return f"{cause.__module__}.{cause.__qualname__}"


class Result(TypedDict):
    """A row of the results: minutes late (None: not told), and whether the flight was sent back once."""

    message_id: str
    month: int
    flight: str
    airline: str
    destination: str
    arr_delay: int | None
    sent_back: bool


class FlightRules:
    """Checks a flight strictly and returns its row of the results. Has no effects."""

    def __init__(self, airports: Mapping[str, str], airlines: Mapping[str, str]) -> None:
        self._airports = dict(airports)
        self._airlines = dict(airlines)

    def __call__(self, message: ReceivedMessage) -> Result:
        return self.result(message.body, message.message_id, message.generation > 0)

    def result(self, body: bytes, name: str, sent_back: bool) -> Result:
        """Return the row of a flight with this name. Raises BadFlight."""
        flight = _decode(body)
        if flight.dep_time is None:
            raise NeverDeparted(f"{flight.key}: expected a dep_time, got null")
        if flight.arr_time is None:
            raise NoArrivalTime(f"{flight.key}: expected an arr_time, got null")
        if flight.air_time is None:
            raise NoTimeInTheAir(f"{flight.key}: expected an air_time, got null")
        destination = self._airports.get(flight.dest)
        if destination is None:
            # As of other keys that are missing, its text is the key: one cause, whose values triage counts.
            raise UnknownDestination(flight.dest)
        return {
            "message_id": name,
            "month": flight.month,
            "flight": f"{flight.carrier}{flight.flight}",
            "airline": self._airlines[flight.carrier],
            "destination": destination,
            "arr_delay": flight.arr_delay,
            "sent_back": sent_back,
        }
