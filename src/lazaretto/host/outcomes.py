"""Turns a sandbox's verdict into a settlement."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from lazaretto.broker.handling.context import Effects, decode_effects, settlement_of
from lazaretto.engine.messages.settle import COMPLETE, RELEASE, Settlement
from lazaretto.isolation import Status, Verdict
from lazaretto.model.failure import LONGEST_STACK, LONGEST_TEXT, LONGEST_TYPE, Failure, failure_of, shorten
from lazaretto.model.fingerprint import outage_of
from lazaretto.model.policy import Outcome
from lazaretto.model.site import LONGEST_SITE


class Ended(NamedTuple):
    """One message's finished attempt: its settlement, and its effects in the same commit."""

    settlement: Settlement
    effects: Effects | None = None
    #: Whether the `on_poison` functions were called for it.
    told: bool = False
    #: When its handler began and ended in a sandbox, in nanoseconds since 1970, if somebody traces.
    ran: tuple[int, int] | None = None

    @property
    def fingerprint(self) -> str | None:
        """The failure's fingerprint for the breaker; None for no failure, or one caused by the message."""
        if self.settlement.outcome not in _BREAKING:
            return None
        failure = self.settlement.failure
        return None if failure is None else outage_of(failure)


_BREAKING = (Outcome.FAILED, Outcome.LOCK_EXPIRED, Outcome.LOST)
COMPLETED = Ended(COMPLETE)
RELEASED = Ended(RELEASE)

#: A timeout counts as `lock_expired` and a crash as `lost`, like an expired lock or a dead worker.
_OUTCOMES = {
    Status.ERROR: Outcome.FAILED,
    Status.MEMORY: Outcome.FAILED,
    Status.TIMEOUT: Outcome.LOCK_EXPIRED,
    Status.CRASH: Outcome.LOST,
}


def ended_of(verdict: Verdict) -> Ended:
    """Return the finished attempt for a sandbox's verdict."""
    if verdict.status is Status.DONE:
        return COMPLETED if verdict.result is None else _ended_with_bytes(verdict.result)
    if verdict.status is Status.NOT_RUN:
        return RELEASED
    return Ended(Settlement(_OUTCOMES[verdict.status], _failure(verdict)))


def _ended_with_bytes(result: bytes) -> Ended:
    try:
        effects = decode_effects(result)
        if effects.ran is None:
            return ended_with(effects)
        asked = msgspec.structs.replace(effects, ran=None)
        return ended_with(None if asked == Effects() else asked)._replace(ran=effects.ran)
    except Exception as error:
        # The result cannot be trusted: the handler damaged its process. The message has failed.
        return Ended(Settlement(Outcome.FAILED, failure_of(error)))


def ended_with(effects: Effects | None) -> Ended:
    """Return the finished attempt of a handler that returned."""
    if effects is None:
        return COMPLETED
    settlement = settlement_of(effects)
    # Sends of a handler whose message is invalid are discarded, as after any other failure.
    return Ended(settlement, None if effects.verdict == "invalid" else effects)


def _failure(verdict: Verdict) -> Failure:
    return Failure(
        shorten(verdict.error_type or "Error", LONGEST_TYPE),
        None if verdict.error_message is None else shorten(verdict.error_message, LONGEST_TEXT),
        None if verdict.stack is None else shorten(verdict.stack, LONGEST_STACK),
        None if verdict.site is None else shorten(verdict.site, LONGEST_SITE),
    )
