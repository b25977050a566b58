"""Rows of any source as a handler takes them. Imports no Spark and no Arrow: it runs in the sandbox."""

from __future__ import annotations

import collections
import datetime
import pickle
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from lazaretto.host.handlers import Handler
from lazaretto.model.messages import ReceivedMessage
from lazaretto.spark.sandbox_handler import HandlerSetup, Item, moments_in

#: In an item: the fields of the message that a row came back as, and behind them the row's values, or one:
#: all of them pickled.
FACTS, VALUES = 3, 4
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

    `times`: the places of times, which come as numbers, and their zones. `pickled`: the values of a row come
    as one, pickled.
    """

    def __init__(
        self,
        handler: Handler,
        names: Sequence[str],
        times: Sequence[tuple[int, datetime.tzinfo | None]] = (),
        *,
        pickled: bool = False,
    ) -> None:
        super().__init__(handler)
        self._names = tuple(names)
        self._times = tuple(times)
        self._is_pickled = pickled

    @property
    def key(self) -> object:
        return super().key, self._names, self._times, self._is_pickled

    def reader(self) -> Callable[[Item], tuple[Any, ReceivedMessage]]:
        kind, is_pickled = _kind(self._names), self._is_pickled
        times = [(at, moments_in(zone)) for at, zone in self._times]

        def read(item: Item) -> tuple[Any, ReceivedMessage]:
            facts = item[FACTS]
            message = _FIRST if facts is None else ReceivedMessage(*facts)
            if is_pickled:
                # From our own worker.
                return kind(pickle.loads(item[VALUES])), message  # noqa: S301
            values = item[VALUES:]
            if times:
                changed = list(values)
                for at, moment in times:
                    if changed[at] is not None:
                        changed[at] = moment(changed[at])
                return kind(changed), message
            return kind(values), message

        return read


def _kind(names: tuple[str, ...]) -> type[Row]:
    """Return the class of rows with these names. As in Spark's, a name of a method is the method."""
    # A namedtuple reads its places without a call of Python's.
    make: Any = collections.namedtuple
    places = vars(make("Places", [f"at{place}" for place in range(len(names))]))
    values = {
        name: places[f"at{place}"]
        for place, name in reversed(list(enumerate(names)))
        if not hasattr(Row, name)
    }
    return type("Row", (Row,), {**values, "__slots__": (), "__fields__": names})
