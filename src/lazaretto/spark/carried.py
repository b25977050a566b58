"""Values that a driver sends to its tasks."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Generic, TypeVar

from lazaretto.errors import InvalidOption
from lazaretto.isolation.pickling import pickle_value

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
