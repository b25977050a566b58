"""What is done with one flight, and each way in which it can fail."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from examples.flights.data import Flight
from examples.flights.results import Results
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


class UnknownDestination(BadFlight):
    """unknown destination"""


#: In the order of the checks.
CAUSES: tuple[type[BadFlight], ...] = (NeverDeparted, NoArrivalTime, NoTimeInTheAir, UnknownDestination)


def error_type(cause: type[BadFlight]) -> str:
    """Return the name under which the broker keeps errors of this kind."""
    return f"{cause.__module__}.{cause.__qualname__}"


class FlightHandler:
    """Checks a flight strictly and writes it to the results.

    Delivery is at least once: after a crash the same flight may come again. Its row is replaced
    then, because the message's id is the row's key, so a second delivery changes nothing.
    """

    def __init__(self, airports: Mapping[str, str], airlines: Mapping[str, str], results: Results) -> None:
        self._airports = airports
        self._airlines = airlines
        self._results = results

    def __call__(self, message: ReceivedMessage) -> None:
        flight = _decode(message.body)
        if flight.dep_time is None:
            raise NeverDeparted(f"{flight.key}: expected a dep_time, got null")
        if flight.arr_time is None:
            raise NoArrivalTime(f"{flight.key}: expected an arr_time, got null")
        if flight.air_time is None:
            raise NoTimeInTheAir(f"{flight.key}: expected an air_time, got null")
        destination = self._airports.get(flight.dest)
        if destination is None:
            raise UnknownDestination(f"{flight.key}: expected an airport in the table, got {flight.dest!r}")
        self._results.write(
            message.message_id,
            f"{flight.carrier}{flight.flight}",
            self._airlines[flight.carrier],
            destination,
            flight.arr_delay,
        )
