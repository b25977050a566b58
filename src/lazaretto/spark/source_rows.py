"""Rows of any source as a handler takes them. Imports no Spark and no Arrow: it runs in the sandbox."""

from __future__ import annotations

import datetime
import functools
import pickle
from collections.abc import Sequence
from typing import Any, ClassVar

from lazaretto.host.handlers import Handler
from lazaretto.model.messages import ReceivedMessage
from lazaretto.spark.sandbox_handler import HandlerSetup, Item, moment_of

#: In an item: the values of a row, as a tuple or pickled, about how many bytes they have, and the fields of
#: the message that it came back as.
VALUES, SIZE, FACTS = 3, 4, 5
#: What a context tells of a row of the source: its first attempt.
_FIRST = ReceivedMessage(0, b"", "", 0, None, None, None, 1, 0, 0, 0, None, None, None)


class Row(tuple[Any, ...]):
    """A row, as Spark's own: values by place, by name as `row.price` or `row["price"]`, and `asDict()`."""

    __slots__ = ()
    __fields__: ClassVar[tuple[str, ...]] = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[self.__fields__.index(name)]
        except ValueError:
            raise AttributeError(
                f"the row has no column {name!r}; it has {', '.join(self.__fields__)}"
            ) from None

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, str):
            try:
                at = self.__fields__.index(at)
            except ValueError:
                raise KeyError(at) from None
        return super().__getitem__(at)

    def __contains__(self, name: object) -> bool:
        return name in self.__fields__

    def asDict(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the values by name."""
        return dict(zip(self.__fields__, self, strict=True))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.asDict().items())})"


class RowSetup(HandlerSetup):
    """Called in a sandbox: returns the function that runs a handler on rows with these names.

    `times`: the places of times, which come as numbers unless a row is pickled, and their zones.
    """

    def __init__(
        self,
        handler: Handler,
        names: Sequence[str],
        times: Sequence[tuple[int, datetime.tzinfo | None]] = (),
    ) -> None:
        super().__init__(handler)
        self._names = tuple(names)
        self._times = tuple(times)

    @property
    def key(self) -> object:
        return super().key, self._names, self._times

    def given(self, item: Item) -> tuple[Any, ReceivedMessage]:
        values, facts = item[VALUES], item[FACTS]
        if type(values) is bytes:
            # From our own worker.
            values = pickle.loads(values)  # noqa: S301
        elif self._times:
            values = list(values)
            for at, zone in self._times:
                if values[at] is not None:
                    values[at] = moment_of(values[at], zone)
        return _kind(self._names)(values), _FIRST if facts is None else ReceivedMessage(*facts)


@functools.lru_cache(16)
def _kind(names: tuple[str, ...]) -> type[Row]:
    return type("Row", (Row,), {"__slots__": (), "__fields__": names})
