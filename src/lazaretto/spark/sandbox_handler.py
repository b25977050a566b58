"""The handler in its sandbox. Imports no Spark and no Arrow: their threads would keep it from forking."""

from __future__ import annotations

import datetime
import marshal
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from lazaretto.broker.handling.context import Effects, decode_effects, encode_effects
from lazaretto.errors import InvalidMessage, TransactionError
from lazaretto.host.handler_calls import SandboxSetup
from lazaretto.isolation import FailedResult
from lazaretto.model.failure import failure_of
from lazaretto.model.messages import Past, ReceivedMessage
from lazaretto.observe.traces import within
from lazaretto.spark.plain_values import UnfitValue, plain

#: Bytes of results after which a sandbox leaves the rest of its batch for later.
MOST_HELD = 16 * 1024 * 1024
#: What stands for the result of a message that was left for later.
LATER = b"l"
#: A message as the sandbox is given it: whether it is the first of its batch, whether messages of the batch
#: have sessions, what is wrong with its body, and the fields of ReceivedMessage.
Item = tuple[Any, ...]
BEGINS, IN_ORDER, PROBLEM_AT, FIELDS, BODY = range(5)
#: How bytes of pickle begin, and none of marshal: there it would be a value without a type.
_PICKLE = pickle.PROTO[0]

#: What to do about a function that cannot be sent to Spark's workers.
ADVICE = (
    "Spark sends it to its workers, whatever the isolation: define it in a module that they can import, or "
    "make that variable where it is used, inside the function"
)


class HandlerSetup(SandboxSetup):
    """Called in a sandbox: returns the function of bytes that runs a handler there, and what it returned."""

    advice = ADVICE

    def call(self) -> Callable[[Item], tuple[Effects | None, Any]]:
        """Return the function that runs the handler on a message."""
        call = self.caller()

        def run(item: Item) -> tuple[Effects | None, Any]:
            problem = item[PROBLEM_AT]
            if problem is not None:
                return Effects(verdict="invalid", failure=failure_of(InvalidMessage(problem))), None
            given, message = self.given(item)
            past = Past(0) if message.deliveries > 1 else None
            with within(message):
                effects = call(given, past, message)
            if effects is not None and effects.statements:
                raise TransactionError("a handler cannot run its own SQL in a Spark pipeline")
            return effects, call.returned

        return run

    def given(self, item: Item) -> tuple[Any, ReceivedMessage]:
        """Return what the handler is given, and the message that its context tells of."""
        message = ReceivedMessage(*item[FIELDS:])
        return message, message

    def __call__(self) -> Callable[[Item], bytes | None]:
        run = self.call()
        held = 0

        def run_item(item: Item) -> bytes | None:
            nonlocal held
            if item[BEGINS]:
                held = 0
            elif held >= MOST_HELD:
                return LATER
            effects, result = run(item)
            if effects is None and result is None:
                return None
            packed = pack_result(effects, result)
            held += len(packed)
            # The rest of its session must wait: who goes on is decided outside.
            return packed if effects is None or effects.failure is None else FailedResult(packed)

        return run_item


def as_batch(items: Sequence[Item]) -> list[Item]:
    """Return items as one batch: the first says that it is the first."""
    return [(True, *items[0][1:]), *items[1:]]


def pack_result(effects: Effects | None, result: Any) -> bytes:
    """Return what a handler asked for and returned, as bytes."""
    told = None if effects is None else encode_effects(effects)
    problem = None
    try:
        result = plain(result)
    except Exception as error:
        # As without a sandbox: said of the result, which is not the handler's own error.
        result, problem = None, str(error)
    # Times as numbers: marshal has none, and takes a third of the time of pickle.
    times: dict[str, bool] = {}
    if type(result) is dict:
        times = {name: one.tzinfo is not None for name, one in result.items() if type(one) is _TIME}
        if times:
            result = {**result, **{name: micros_of(result[name]) for name in times}}
    try:
        return marshal.dumps((told, result, problem, times))
    except ValueError:
        return pickle.dumps((told, result, problem, times))


def unpack_result(packed: bytes) -> tuple[Effects | None, Any]:
    """Return what `pack_result` was given, with plain values. Raises an error if it is damaged."""
    # From our own sandbox, whose code is the user's as ours is.
    told, result, problem, times = (pickle if packed[0] == _PICKLE else marshal).loads(packed)
    for name, has_zone in times.items():
        result[name] = moment_of(result[name], _UTC if has_zone else None)
    return None if told is None else decode_effects(told), result if problem is None else UnfitValue(problem)


_TIME, _UTC = datetime.datetime, datetime.UTC
#: From where times count that are sent as numbers.
_EPOCH, _EPOCH_UTC = _TIME(1970, 1, 1), _TIME(1970, 1, 1, tzinfo=_UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def micros_of(moment: datetime.datetime) -> int:
    """Return a time as microseconds, in its own zone if it has none."""
    return (moment - (_EPOCH if moment.tzinfo is None else _EPOCH_UTC)) // _MICROSECOND


def moment_of(micros: int, zone: datetime.tzinfo | None) -> datetime.datetime:
    """Return microseconds as a time with a zone, or without one."""
    since = datetime.timedelta(microseconds=micros)
    if zone is None:
        return _EPOCH + since
    return _EPOCH_UTC + since if zone is _UTC else (_EPOCH_UTC + since).astimezone(zone)
