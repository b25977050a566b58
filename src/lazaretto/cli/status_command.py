"""`lazaretto status` and `metrics`: how a store stands, for people and for programs."""

from __future__ import annotations

import importlib.util
import sys
import time
from datetime import datetime
from typing import Annotated

import typer

from lazaretto.cli import output
from lazaretto.cli.call import CallOptions, Listing, ListingOptions, NamedQueuesOption, limit_option
from lazaretto.cli.command import Group, option
from lazaretto.cli.exits import usage
from lazaretto.cli.output import Columns
from lazaretto.engine.entities.overview import MOST_NAMED, NAMED, QueueGlance, RecentRates, Status
from lazaretto.model.installing import install

commands = Group()

_SPARE = ("since", "oldest", "trend", "rates")
#: How often it looks again, in seconds.
_EVERY = 2.0
#: What clears a terminal and goes to its first line.
_CLEAR = "\x1b[H\x1b[2J"


@commands.command("status")
def status(
    call: ListingOptions,
    queue: NamedQueuesOption = None,
    limit: Annotated[int, limit_option("Maximum number of queues.")] = 50,
    watch: Annotated[bool, option("Refresh every 2 seconds until interrupted.")] = False,
) -> None:
    """Show queues, the worst first, and what to type next.

    Waiting messages above 100 are an estimate, marked with ~. The trend is how many dead letters came in
    this hour, after those of the hour before. Rates are per minute, of the last five minutes.
    """
    if watch and call.csv:
        raise usage("--watch goes with tables, --json and --jsonl")
    with call.broker() as broker:
        while True:
            state = broker.status(limit=limit, name_contains=queue)
            if call.json:
                output.json_line(state) if watch else output.json_object(state)
            else:
                if watch and output.on_terminal() and not call.wants_objects:
                    typer.echo(_CLEAR, nl=False)
                _print(call, state)
            if not watch:
                return
            time.sleep(_EVERY)


def _print(call: Listing, state: Status) -> None:
    columns: Columns = {
        "queue": "path",
        "trouble": _trouble,
        "since": lambda queue: _age(queue.troubles[0].since, state.time) if queue.troubles else "",
        "waiting": lambda queue: queue.waiting if queue.exact else f"~{queue.waiting}",
        "oldest": lambda queue: _age(queue.oldest, state.time),
        "dead": "dead_letters",
        "trend": lambda queue: (
            f"{queue.died_last_hour} -> {queue.died_this_hour}" if queue.dead_letters else ""
        ),
        "rates": lambda queue: _shown_rates(queue.rates),
        "next": lambda queue: queue.troubles[0].command if queue.troubles else "",
    }
    call.print_all(state.queues, columns, "no queues", spare=_SPARE)
    if not call.wants_objects and not call.csv:
        rest = state.total - len(state.queues)
        more = f", {rest:,} not shown" if rest > 0 else ""
        verb = "stands" if state.severe == 1 else "stand"
        output.line(
            f"{output.plural(state.total, 'queue')}{more}: {state.severe:,} {verb} still, "
            f"{state.troubled - state.severe:,} with other trouble"
        )


def _trouble(queue: QueueGlance) -> str:
    """Return the worst trouble of a queue, and how many more there are."""
    more = f" and {len(queue.troubles) - 1} more" if len(queue.troubles) > 1 else ""
    return f"{queue.troubles[0].kind.replace('_', ' ')}{more}" if queue.troubles else ""


def _shown_rates(rates: RecentRates) -> str:
    named = (
        ("sent", rates.sent),
        ("completed", rates.completed),
        ("failed", rates.failed),
        ("dead", rates.dead),
    )
    shown = [f"{value:,.{0 if value >= 10 else 1}f} {name}" for name, value in named if value]
    return ", ".join([*shown, "growing"] if rates.growing else shown)


def _age(since: datetime | None, now: datetime) -> str:
    return "" if since is None else output.shown_duration(max(0, round((now - since).total_seconds())))


@commands.command("metrics")
def metrics(
    call: CallOptions,
    queue: NamedQueuesOption = None,
    limit: Annotated[int, limit_option("Maximum number of queues to name.", MOST_NAMED)] = NAMED,
) -> None:
    """Print metrics in Prometheus's format.

    They are those of `GET /metrics` of `lazaretto serve`, without the durations of requests: how many queues
    are in trouble, and messages, ages, rates and troubles of those in most trouble, by name.
    """
    if importlib.util.find_spec("prometheus_client") is None:
        raise usage(f"metrics need more packages: {install('serve')}")
    from lazaretto.observe.metrics import MOST_REPAIRS, Look, exposition, samples

    with call.broker() as broker:
        began = time.perf_counter()
        look = Look(
            broker.status(limit=limit, name_contains=queue),
            broker.workers(),
            broker.repairs(limit=MOST_REPAIRS),
            broker.facts(),
            time.perf_counter() - began,
        )
    if call.json:
        output.json_array(samples(look))
    else:
        sys.stdout.write(exposition(look).decode())
