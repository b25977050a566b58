"""What a program traces, kept in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traces:
    """The spans that have ended, in the order of their ends."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        #: To make a span around what is tested.
        self.tracer = self.provider.get_tracer("test")

    def take(self) -> list[ReadableSpan]:
        """Return what was traced since the last call."""
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return found

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name, and keep all."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found


@contextlib.contextmanager
def traced() -> Iterator[Traces]:
    """Set a tracer provider, which a program can do only once, and undo it."""
    traces = Traces()
    known: Any = trace
    before, known._TRACER_PROVIDER = known._TRACER_PROVIDER, traces.provider
    try:
        yield traces
    finally:
        known._TRACER_PROVIDER = before


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span, those of messaging without their prefix."""
    given = span.attributes or {}
    return {name.removeprefix("messaging."): value for name, value in given.items()}


def parent_of(span: ReadableSpan) -> str:
    """Return the traceparent that a span gives to messages."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def links(span: ReadableSpan) -> list[str]:
    """Return the traceparents of what a span links to."""
    return [
        f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-{link.context.trace_flags:02x}"
        for link in span.links
    ]


def names(spans: list[ReadableSpan]) -> list[str]:
    return [f"{span.name} {span.kind.name}" for span in spans]
