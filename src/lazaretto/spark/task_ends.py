"""Ends of messages in a task: of what a sandbox answered, and for what is staged."""

from __future__ import annotations

from typing import Any

from lazaretto.engine.claims.settle_claims import StagedRow
from lazaretto.engine.messages.settle import Settlement
from lazaretto.host.outcomes import Ended, ended_with
from lazaretto.model.failure import failure_of
from lazaretto.model.policy import Outcome
from lazaretto.spark.sandbox_handler import unpack_result


def unpacked_end(packed: bytes) -> tuple[Ended, Any]:
    """Return how a message ended and what its handler returned, of what came from the sandbox."""
    try:
        effects, result = unpack_result(packed)
    except Exception as error:
        # The handler damaged its process. The message has failed.
        return Ended(Settlement(Outcome.FAILED, failure_of(error))), None
    return ended_with(effects), result


def has_failed(end: tuple[Ended, Any]) -> bool:
    """Return whether a message has failed."""
    return end[0].settlement.failure is not None


def staged_row(key: int, ended: Ended) -> StagedRow:
    """Return what is staged of a message."""
    settlement, effects = ended.settlement, ended.effects
    return StagedRow(
        key,
        settlement.outcome.value,
        settlement.failure,
        settlement.reason,
        settlement.description,
        settlement.reject,
        list(effects.sends) if effects is not None else [],
    )


def size_of_result(result: object) -> int:
    """Return about how many bytes a handler's result has."""
    if isinstance(result, str | bytes):
        return len(result)
    if isinstance(result, dict):
        return sum(size_of_result(value) for value in result.values())
    return sum(size_of_result(value) for value in result) if isinstance(result, list | tuple) else 8
