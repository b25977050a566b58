"""Values that a driver sends to its tasks: their settings, and the sandbox in which one runs a handler."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from pathlib import Path
from typing import Generic, TypeVar

from lazaretto.errors import InvalidOption
from lazaretto.isolation import Sandbox, SandboxOptions
from lazaretto.isolation.pickling import pickle_value
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


T = TypeVar("T")


class Carried(Generic[T]):
    """A value on its way to other processes, with where the driver finds modules.

    A worker of the same machine looks there too, before it makes the value anew. `what`: names the value in
    the InvalidOption that is raised if it cannot be sent.
    """

    def __init__(self, value: T, what: str) -> None:
        try:
            self._pickled = pickle_value(value)
        except Exception as error:
            # Not the value itself, which may have a password in it.
            raise InvalidOption(
                f"{what} cannot be sent to another process: {type(error).__name__}: {error}"
            ) from error
        self._path = tuple(sys.path)

    def open(self) -> T:
        """Return the value, in the process that this is called in."""
        sys.path += [entry for entry in self._path if entry not in sys.path and Path(entry).exists()]
        value: T = pickle.loads(self._pickled)  # noqa: S301 - from our own driver
        return value
