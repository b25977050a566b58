"""Rows of any source as a handler takes them. Imports no Spark and no Arrow: it runs in the sandbox."""

from __future__ import annotations

import collections
import datetime
import functools
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from lazaretto.host.handlers import Handler
from lazaretto.isolation import Repeated
from lazaretto.model.messages import ReceivedMessage
from lazaretto.spark.sandbox_handler import FIRST, HandlerSetup, moments_in, without_unfit


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


class Returned(NamedTuple):
    """A row that came back from the queue, and the message that it is."""

    row: Row
    message: ReceivedMessage


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

    @property
    def kind(self) -> type:
        return _kind(self._names)

    def reader(self) -> Callable[[Any], tuple[Any, ReceivedMessage]]:
        return lambda item: (item.row, item.message) if type(item) is Returned else (item, FIRST)

    def joiner(self) -> Callable[[Sequence[Sequence[Any]]], Iterable[Any]]:
        """Return what makes items of columns: what is wrong with rows, which messages they are, and values.

        Items are rows, or Returned, or Unfit.
        """
        names = self._names
        make = _kind(names)
        times = [(at, moments_in(zone)) for at, zone in self._times]

        def join(columns: Sequence[Sequence[Any]]) -> Iterable[Any]:
            problems, facts, *values = columns
            if self._is_pickled:
                # From our own worker.
                rows: Iterable[Any] = map(pickle.loads, values[0])
            else:
                for at, moment in times:
                    values[at], beyond = _moments(values[at], moment)
                    if beyond:
                        text = beyond_text(names[at])
                        pairs = zip(problems, beyond, strict=True)
                        problems = [text if is_beyond else problem for problem, is_beyond in pairs]
                rows = zip(*values, strict=True)
            items: Iterable[Any] = map(make, rows)
            if type(facts) is not Repeated:
                items = [
                    Returned(row, ReceivedMessage(*fields)) for row, fields in zip(items, facts, strict=True)
                ]
            return without_unfit(items, problems)

        return join


def beyond_text(name: str) -> str:
    """Return what is wrong with a row that has a time which Python has not."""
    return f"a time before the year 1 or after 9999 - at `$.{name}`"


def _moments(
    column: Sequence[int | None], moment: Callable[[int], datetime.datetime]
) -> tuple[list[datetime.datetime | None], list[bool]]:
    """Return a column of times, and which of them Python has not, if there are any."""
    times: dict[int | None, datetime.datetime | None] = {None: None}
    beyond = set()
    # Many rows of a source come at the same time.
    for one in set(column):
        if one is None:
            continue
        try:
            times[one] = moment(one)
        except (ValueError, OverflowError):
            times[one] = None
            beyond.add(one)
    return [times[one] for one in column], [one in beyond for one in column] if beyond else []


@functools.cache
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
