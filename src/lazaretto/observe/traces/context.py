"""Trace contexts in the properties of messages: W3C's `traceparent`, `tracestate`, and `Diagnostic-Id`. Pure.

What a message says may come from anybody. What is not a trace context is none, and no error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

#: Links of one span at most, which is what OpenTelemetry keeps. Larger batches have no span for each message.
MOST_LINKS = 128
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
#: What Service Bus's clients write beside `traceparent`, and older ones alone.
DIAGNOSTIC_ID = "Diagnostic-Id"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
#: Longer lists of vendors' values are left out.
_LONGEST_STATE = 2048


class TraceContext(NamedTuple):
    """Which span a message comes from. `state`: vendors' values, as they stand in the message."""

    trace_id: int
    span_id: int
    flags: int
    state: str


def context_of(properties: Mapping[str, Any]) -> TraceContext | None:
    """Return the trace context in a message's properties; None if there is none, or nothing that is one."""
    if not properties:
        return None
    header = properties.get(TRACEPARENT)
    if header is None:
        header = properties.get(DIAGNOSTIC_ID)
    return None if header is None else parse(header, properties.get(TRACESTATE))


def has_context(properties: Mapping[str, Any]) -> bool:
    """Return whether properties say where a message comes from, rightly or not."""
    return TRACEPARENT in properties or DIAGNOSTIC_ID in properties


def parse(traceparent: object, tracestate: object = None) -> TraceContext | None:
    """Return the trace context of two headers; None if the first is not valid."""
    match = _TRACEPARENT.fullmatch(_text(traceparent))
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    # Later versions may say more than this one.
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = _text(tracestate)
    return TraceContext(
        int(trace_id, 16), int(span_id, 16), int(flags, 16), state if len(state) <= _LONGEST_STATE else ""
    )


def properties_of(context: TraceContext) -> dict[str, str]:
    """Return the properties that carry a trace context."""
    made = {TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.flags:02x}"}
    if context.state:
        made[TRACESTATE] = context.state
    return made


def _text(value: object) -> str:
    """Return a header as text. Over AMQP it may be bytes. Anything else is none."""
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return value if isinstance(value, str) else ""


class TracedStore(Protocol):
    """A store as spans describe it, and which of them are wanted."""

    create_spans: bool

    @property
    def server(self) -> tuple[str, int | None] | None:
        """The address and port of the server that it is on; None if it is a file."""
        ...
