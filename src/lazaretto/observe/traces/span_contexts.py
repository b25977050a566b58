"""The trace contexts of messages, as OpenTelemetry has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from opentelemetry.trace import Link, SpanContext, TraceFlags, TraceState

from lazaretto.engine.messages.prepare import encode_bounded
from lazaretto.errors import MessageTooLarge
from lazaretto.model.headers import decode_headers
from lazaretto.model.messages import StoredMessage
from lazaretto.observe.traces.context import MOST_LINKS, TraceContext, context_of, has_context, properties_of
from lazaretto.store.records.messages import NewMessage


def span_context(found: TraceContext) -> SpanContext:
    """Return the context of a span."""
    state = TraceState.from_header([found.state]) if found.state else TraceState()
    return SpanContext(found.trace_id, found.span_id, True, TraceFlags(found.flags), state)


def context_of_stored(message: StoredMessage) -> SpanContext | None:
    """Return a message's context; None if it has none."""
    context = context_of(message.properties)
    return None if context is None else span_context(context)


def context_of_new(message: NewMessage) -> SpanContext | None:
    """Return the context of a message that is to be sent; None if it has none."""
    return context_in(message.headers)


def context_in(headers: bytes | None) -> SpanContext | None:
    """Return the context in a message's headers; None if there is none."""
    if headers is None:
        return None
    context = context_of(decode_headers(headers).properties)
    return None if context is None else span_context(context)


def properties_with(context: SpanContext) -> dict[str, str]:
    """Return the properties that pass a context on; none if it is not valid."""
    if not context.is_valid:
        return {}
    state = context.trace_state.to_header()
    return properties_of(TraceContext(context.trace_id, context.span_id, context.trace_flags, state))


def with_context(message: NewMessage, context: SpanContext) -> NewMessage:
    """Return a message with a trace context, unless it has one, or no room for it."""
    headers = decode_headers(message.headers)
    if not context.is_valid or has_context(headers.properties):
        return message
    properties = {**headers.properties, **properties_with(context)}
    try:
        encoded = encode_bounded(msgspec.structs.replace(headers, properties=properties))
    except MessageTooLarge:
        return message
    return msgspec.structs.replace(message, headers=encoded)


def links_to(contexts: Iterable[SpanContext | None], ids: Sequence[str] | None) -> list[Link]:
    """Return the links of a span, as many as it may have. `ids`: of the messages, in the same order."""
    links: list[Link] = []
    for number, context in enumerate(contexts):
        if number == MOST_LINKS:
            break
        if context is not None:
            named: Mapping[str, str] | None = None if ids is None else {"messaging.message.id": ids[number]}
            links.append(Link(context, named))
    return links
