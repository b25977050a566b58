"""The spans and durations of attempts that a host makes at messages, with how each ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from lazaretto.engine.workers.leases import Handover
from lazaretto.host.handlers import Handler
from lazaretto.host.outcomes import RELEASED, Ended
from lazaretto.isolation import Verdict
from lazaretto.model.messages import ReceivedMessage
from lazaretto.observe.traces import active
from lazaretto.store.runtime.measures import Measures
from lazaretto.store.runtime.measures import active as measured
from lazaretto.store.sql.store import Store

if TYPE_CHECKING:
    from lazaretto.observe.traces.spans import Processing, Tracing


def begin(
    tracing: Tracing, handler: Handler, message: ReceivedMessage, began: int | None = None
) -> Processing:
    """Begin the span of an attempt, as the handler's `trace_parent` says."""
    child = handler.options.trace_parent == "first_attempt" and message.attempt == 1
    return tracing.processing(handler.path, message, child=child, began=began)


def finish(processing: Processing, ended: Ended, at: int | None = None) -> Ended:
    """End the span of an attempt; return how it ended, with trace contexts in the messages it sends."""
    failure, effects = ended.settlement.failure, ended.effects
    if effects is not None and effects.sends:
        sends = [(path, processing.sends(path, messages)) for path, messages in effects.sends]
        ended = ended._replace(effects=msgspec.structs.replace(effects, sends=sends))
    processing.end(ended.settlement.outcome, None if failure is None else failure.type, at)
    return ended


class TimedHandover:
    """Notes how long the attempts of a hand-over in a sandbox took, and makes their spans, from what is told.

    So an attempt has its span even if its process dies.
    """

    def __init__(
        self, tracing: Tracing | None, measures: Measures | None, handler: Handler, handover: Handover
    ) -> None:
        self._tracing = tracing
        self._measures = measures
        self._handler = handler
        self._messages = handover.messages
        self._began = self._last = time.time_ns()
        self._ended: dict[int, Ended] = {}

    def ended(self, place: int, ended: Ended, verdict: Verdict) -> Ended:
        """Take note of one attempt, once; return how it ended."""
        if ended is RELEASED:
            return ended
        if place not in self._ended:
            self._ended[place] = self._make(place, ended, verdict)
        return self._ended[place]

    def _make(self, place: int, ended: Ended, verdict: Verdict) -> Ended:
        now = time.time_ns()
        # One that raised, or whose process died, began when the one before it had ended.
        last = self._began if self._handler.at_once else self._last
        began, end = ended.ran or (last, verdict.ended or last + round(verdict.elapsed * 1e9))
        # What a handler's process tells may be anything.
        began = min(max(began, self._began), now)
        self._last = end = min(max(end, began), now)
        if self._measures is not None:
            took(self._measures, self._handler, ended, (end - began) / 1e9)
        if self._tracing is None:
            return ended
        return finish(begin(self._tracing, self._handler, self._messages[place], began), ended, end)


def timed(store: Store, handler: Handler, handover: Handover) -> TimedHandover | None:
    """Return what notes the times of a hand-over in a sandbox; None if nobody traces or measures."""
    tracing, measures = active(store), measured()
    if tracing is None and measures is None:
        return None
    return TimedHandover(tracing, measures, handler, handover)


def took(measures: Measures, handler: Handler, ended: Ended, seconds: float) -> None:
    """Note how long one attempt took."""
    measures.handlers.note((str(handler.path), ended.settlement.outcome.value), [seconds])
