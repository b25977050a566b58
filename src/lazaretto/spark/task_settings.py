"""Settings of a pipeline's task, and the sandbox in which it runs a handler: a worker keeps those warm."""

from __future__ import annotations

import dataclasses

from lazaretto.isolation import Sandbox, SandboxOptions
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.spark.bodies import Extras
from lazaretto.spark.results import Sink
from lazaretto.spark.sandbox_handler import HandlerSetup
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.vectors import VectorSetup

#: Sandboxes that a worker keeps: a query of several queues has several handlers.
_MOST_WARM = 4
#: Sandboxes by what runs in them: a worker that Spark uses again finds its own warm.
_sandboxes: dict[tuple[object, SandboxOptions], Sandbox] = {}


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """Settings of a task, sent along with the query: no credentials in it."""

    options: SparkOptions
    setup: HandlerSetup | VectorSetup
    limits: SandboxOptions
    inline: bool
    results: Sink | None
    schema: bytes | None
    breaker: BreakerPolicy | None
    extras: Extras | None = None
    traced: bool = False

    def sandbox(self) -> Sandbox:
        """Return the sandbox of these settings."""
        key = (self.setup.key, self.limits)
        sandbox = _sandboxes.get(key)
        if sandbox is None:
            while len(_sandboxes) >= _MOST_WARM:
                _sandboxes.pop(next(iter(_sandboxes))).close()
            sandbox = _sandboxes[key] = Sandbox(self.setup, self.limits)
        return sandbox
