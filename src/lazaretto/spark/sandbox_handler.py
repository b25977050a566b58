"""The handler in its sandbox. Imports no Spark and no Arrow: their threads would keep it from forking."""

from __future__ import annotations

import datetime
import marshal
import pickle
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lazaretto.broker.handling.context import Effects, decode_effects, encode_effects
from lazaretto.errors import InvalidMessage, TransactionError
from lazaretto.host.handler_calls import Caller, SandboxSetup
from lazaretto.isolation import FailedResult, Repeated
from lazaretto.isolation.columns import JOIN
from lazaretto.model.failure import failure_of
from lazaretto.model.messages import Past, ReceivedMessage
from lazaretto.observe.traces import API as TRACES
from lazaretto.observe.traces import within
from lazaretto.spark.plain_values import UnfitValue, plain

#: Bytes of results after which a sandbox leaves the rest of its batch for later.
MOST_HELD = 16 * 1024 * 1024
#: What a context tells of the first attempt at what is no message.
FIRST = ReceivedMessage(0, b"", "", 0, None, None, None, 1, 0, 0, 0, None, None, None)
#: What stands for the result of a message that was left for later.
LATER = b"l"
#: How bytes of pickle begin, and none of marshal: there it would be a value without a type.
_PICKLE = pickle.PROTO[0]
#: The format of marshal, and how a list begins there.
_FORMAT, _LIST = 2, struct.Struct("<ci")

#: What to do about a function that cannot be sent to Spark's workers.
ADVICE = (
    "Spark sends it to its workers, whatever the isolation: define it in a module that they can import, or "
    "make that variable where it is used, inside the function"
)


class Unfit:
    """An item that its handler is not given. `problem`: what is wrong with its body."""

    __slots__ = ("problem",)

    def __init__(self, problem: str) -> None:
        self.problem = problem


class HandlerSetup(SandboxSetup):
    """Called in a sandbox: returns the function of bytes that runs a handler there, and what it returned.

    Items are messages, or Unfit.
    """

    advice = ADVICE

    def call(self, call: Caller) -> Callable[[Any], tuple[Effects | None, Any]]:
        """Return the function that runs the handler on an item."""
        read = self.reader()

        def run(item: Any) -> tuple[Effects | None, Any]:
            if type(item) is Unfit:
                return _invalid(InvalidMessage(item.problem)), None
            subject, message = read(item)
            past = Past(0) if message.deliveries > 1 else None
            with within(message):
                effects = call(subject, past, message)
            if effects is not None and effects.statements:
                raise TransactionError("a handler cannot run its own SQL in a Spark pipeline")
            return effects, call.returned

        return run

    @property
    def kind(self) -> type:
        """Return the type of items that a handler gets as they are."""
        return ReceivedMessage

    def reader(self) -> Callable[[Any], tuple[Any, ReceivedMessage]]:
        """Return what makes of an item what the handler is given, and the message its context tells of."""
        return lambda message: (message, message)

    def joiner(self) -> Callable[[Sequence[Sequence[Any]]], Iterable[Any]]:
        """Return what makes items of columns: what is wrong with bodies, and fields of ReceivedMessage."""

        def join(columns: Sequence[Sequence[Any]]) -> Iterable[Any]:
            problems, *fields = columns
            return without_unfit(map(ReceivedMessage, *fields), problems)

        return join

    def __call__(self) -> Callable[[Any], bytes | None]:
        call = self.caller()
        run, join, modules = self.call(call), self.joiner(), sys.modules
        bare = call.bare
        kind = None if bare is None else self.kind
        held = 0

        def run_item(item: Any) -> bytes | None:
            nonlocal held
            if held >= MOST_HELD:
                return LATER
            # Nearly all items are of this kind: each call that they are spared counts.
            if type(item) is kind and TRACES not in modules:
                effects = None
                try:
                    result = bare(item)
                    if result is not None:
                        result = call.settled(result)
                except InvalidMessage as error:
                    effects, result = _invalid(error), None
            else:
                effects, result = run(item)
            if effects is None and result is None:
                return None
            packed = pack_result(effects, result)
            held += len(packed)
            # The rest of its session must wait: who goes on is decided outside.
            return packed if effects is None or effects.failure is None else FailedResult(packed)

        def begin(columns: Sequence[Sequence[Any]]) -> Iterable[Any]:
            nonlocal held
            held = 0
            return join(columns)

        setattr(run_item, JOIN, begin)
        return run_item


def _invalid(error: InvalidMessage) -> Effects:
    return Effects(verdict="invalid", failure=failure_of(error))


def without_unfit(items: Iterable[Any], problems: Sequence[str | None]) -> Iterable[Any]:
    """Return items, those with a problem as Unfit."""
    if type(problems) is Repeated:
        return items
    pairs = zip(items, problems, strict=True)
    return [item if problem is None else Unfit(problem) for item, problem in pairs]


def plain_result(result: Any) -> Any:
    """Return what a handler returned as plain values, or what is wrong with it."""
    try:
        return plain(result)
    except Exception as error:
        # Said of the result, which is not the handler's own error.
        return UnfitValue(str(error))


def pack_result(effects: Effects | None, result: Any) -> bytes:
    """Return what a handler asked for and returned, as bytes.

    If it asked for nothing, and marshal takes what it returned, they are just that. Otherwise they are a
    tuple, which no plain value is.
    """
    encoded = None if effects is None else encode_effects(effects)
    result, problem = plain_result(result), None
    if type(result) is UnfitValue:
        result, problem = None, result.text
    if encoded is None and problem is None:
        packed = _dumped(result)
        if packed is not None:
            return packed
    # Times as numbers: marshal has none, and takes a third of the time of pickle.
    times: dict[str, bool] = {}
    if type(result) is dict:
        times = {name: one.tzinfo is not None for name, one in result.items() if type(one) is _TIME}
        if times:
            result = {**result, **{name: micros_of(result[name]) for name in times}}
    whole = (encoded, result, problem, times)
    return _dumped(whole) or pickle.dumps(whole)


def _dumped(value: Any) -> bytes | None:
    """Return a value as marshal writes it, None if it has a type that marshal has not."""
    try:
        # The older format: values of it stand one behind the other in a list of them.
        return marshal.dumps(value, _FORMAT)
    except ValueError:
        return None


def unpack_results(packed: Sequence[bytes]) -> list[tuple[Effects | None, Any]]:
    """Return what calls of `pack_result` were given, with plain values. Raises an error if one is damaged."""
    # From our own sandbox, whose code is the user's as ours is.
    if any(one[0] == _PICKLE for one in packed):
        loaded = [(pickle if one[0] == _PICKLE else marshal).loads(one) for one in packed]
    else:
        loaded = marshal.loads(_LIST.pack(b"[", len(packed)) + b"".join(packed))  # noqa: S302
    return [(None, one) if type(one) is not tuple else _unpacked(*one) for one in loaded]


def _unpacked(
    encoded: bytes | None, result: Any, problem: str | None, times: dict[str, bool]
) -> tuple[Effects | None, Any]:
    for name, has_zone in times.items():
        result[name] = (_in_utc if has_zone else _without_zone)(result[name])
    effects = None if encoded is None else decode_effects(encoded)
    return effects, result if problem is None else UnfitValue(problem)


_TIME, _UTC = datetime.datetime, datetime.UTC
#: From where times count that are sent as numbers.
_EPOCH, _EPOCH_UTC = _TIME(1970, 1, 1), _TIME(1970, 1, 1, tzinfo=_UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
#: Names of zones in which no hour is there twice, as Python's and Arrow's zones have them.
_ALWAYS_UTC = {"UTC", "Etc/UTC"}


def micros_of(moment: datetime.datetime) -> int:
    """Return a time as microseconds, in its own zone if it has none."""
    return (moment - (_EPOCH if moment.tzinfo is None else _EPOCH_UTC)) // _MICROSECOND


def moments_in(zone: datetime.tzinfo | None) -> Callable[[int], datetime.datetime]:
    """Return the function that makes times in a zone, or without one, of microseconds."""
    since = datetime.timedelta
    if zone is None or str(zone) in _ALWAYS_UTC:
        epoch = _EPOCH.replace(tzinfo=zone)
        return lambda micros: epoch + since(0, 0, micros)
    return lambda micros: (_EPOCH_UTC + since(0, 0, micros)).astimezone(zone)


_in_utc, _without_zone = moments_in(_UTC), moments_in(None)
