"""Ends of messages in a task: of what a sandbox answered, and for what is staged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazaretto.engine.claims.settle_claims import StagedRow
from lazaretto.engine.messages.settle import Settlement
from lazaretto.host.outcomes import COMPLETED, Ended, ended_of, ended_with
from lazaretto.isolation import DONE, Verdict
from lazaretto.model.failure import failure_of
from lazaretto.model.policy import Outcome
from lazaretto.spark.sandbox_handler import unpack_results

#: How nearly every message ends: completed, with nothing else to do. Looked for by identity, which is fast.
SIMPLY: tuple[Ended, Any] = (COMPLETED, None)


def ends_of(verdicts: Sequence[Verdict]) -> list[tuple[Ended, Any]]:
    """Return how messages ended that a sandbox has run, and what their handler returned."""
    packed = [verdict.result for verdict in verdicts if verdict.result is not None]
    unpacked = _unpacked_ends(packed)
    if len(unpacked) == len(verdicts):
        return unpacked
    rest = iter(unpacked)
    return [
        SIMPLY if verdict is DONE else next(rest) if verdict.result is not None else (ended_of(verdict), None)
        for verdict in verdicts
    ]


def _unpacked_ends(packed: Sequence[bytes]) -> list[tuple[Ended, Any]]:
    try:
        unpacked = unpack_results(packed)
    except Exception as error:
        if len(packed) > 1:
            return [end for one in packed for end in _unpacked_ends([one])]
        # The handler damaged its process. The message has failed.
        return [(Ended(Settlement(Outcome.FAILED, failure_of(error))), None)]
    return [(COMPLETED if effects is None else ended_with(effects), one) for effects, one in unpacked]


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
