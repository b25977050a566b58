"""`lazaretto metrics`: how the store stands, for whatever collects metrics from files or programs."""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Annotated

from lazaretto.cli import output
from lazaretto.cli.call import CallOptions, NamedQueuesOption, limit_option
from lazaretto.cli.command import Group
from lazaretto.cli.exits import usage
from lazaretto.engine.entities.overview import MOST_NAMED, NAMED
from lazaretto.model.installing import install

commands = Group()


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
