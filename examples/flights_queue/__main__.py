"""The flights without Spark: a service host processes them, and a database keeps the results."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

import lazaretto
from examples.flights import job
from examples.flights.data import read_airlines
from examples.flights.progress import Step
from examples.flights.rules import FlightRules
from examples.flights_queue.results import Results
from lazaretto import Broker, Explanation, ReceivedMessage
from lazaretto.host import Handler, ServiceHost

FOLDER = Path(__file__).parent / "work"


class FlightHandler:
    """Checks a flight and writes it to the results.

    Delivery is at least once: after a crash the same flight may come again. Its row is replaced
    then, because the message's id is the row's key, so a second delivery changes nothing.
    """

    def __init__(self, rules: FlightRules, results: Results) -> None:
        self._rules = rules
        self._results = results

    def __call__(self, message: ReceivedMessage) -> None:
        self._results.write(self._rules(message))


class HostedWork:
    """A service host with an isolated handler."""

    def __init__(self, broker: Broker, results: Results) -> None:
        self._broker = broker
        self._results = results
        self._airlines = read_airlines()

    def process(self, airports: Mapping[str, str], total: int, step: Step) -> None:
        handler = FlightHandler(FlightRules(airports, self._airlines), self._results)
        host = ServiceHost(self._broker, Handler(job.QUEUE, handler, batch_size=job.BATCH))

        def all_done() -> bool:
            (report,) = host.reports()
            step.reach(report.completed + report.dead)
            return report.completed + report.dead >= total

        host.run(until=all_done)

    def processed(self) -> int:
        return self._results.count()

    def triage(self) -> list[Explanation]:
        return self._broker.explain(job.QUEUE)


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return 0 if every flight is accounted for."""
    options = job.options("examples.flights_queue", __doc__, FOLDER).parse_args(arguments)
    console = Console(highlight=False)
    folder = job.start_clean(options.folder)
    store, results_path = options.store or str(folder / job.STORE), folder / "results.db"
    with Results(results_path) as results, lazaretto.connect(store) as broker:
        job.create_queue(broker)
        whole = job.run(console, broker, HostedWork(broker, results), options.limit)
    job.say_where(console, store, f"the results are in {job.shown(results_path)}")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
