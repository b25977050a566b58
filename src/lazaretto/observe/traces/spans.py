"""Spans by OpenTelemetry's conventions for messaging. Importing it imports OpenTelemetry.

A span has names, numbers and types of errors: never a body, a property, or the text of an error.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import msgspec
from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from lazaretto.engine.messages.prepare import encode_bounded
from lazaretto.engine.messages.send import Send
from lazaretto.engine.messages.settle import Settled
from lazaretto.errors import MessageTooLarge
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import name_of
from lazaretto.model.headers import decode_headers
from lazaretto.model.messages import ReceivedMessage, StoredMessage
from lazaretto.model.policy import Outcome
from lazaretto.observe.traces.attributes import (
    Attributes,
    destination_attributes,
    messages_of,
    new_attributes,
    new_or_count,
    server_attributes,
    stored_attributes,
    stored_or_count,
)
from lazaretto.observe.traces.context import (
    MOST_LINKS,
    TraceContext,
    TracedStore,
    context_of,
    has_context,
    properties_of,
)
from lazaretto.store.records.messages import NewMessage
from lazaretto.store.records.repairs import RepairRecord
from lazaretto.store.sql.operation import Operation

T = TypeVar("T")
SYSTEM = "lazaretto"
_VERBS = {
    Outcome.COMPLETED: "complete",
    Outcome.DEFERRED: "defer",
    Outcome.RELEASED: "release",
    Outcome.DEAD_LETTERED: "dead_letter",
    Outcome.INVALID: "invalid",
}


def span_context(context: TraceContext) -> SpanContext:
    """Return the context of a span."""
    state = TraceState.from_header([context.state]) if context.state else TraceState()
    return SpanContext(context.trace_id, context.span_id, True, TraceFlags(context.flags), state)


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


def tracing_with(provider: trace.TracerProvider) -> Callable[[TracedStore], Tracing] | None:
    """Return what makes a store's spans with a provider; None if it is one that makes none."""
    quiet = isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    return None if quiet else functools.partial(Tracing, provider.get_tracer(SYSTEM))


class Tracing:
    """Makes the spans of what a program does with a store's messages. Threads and coroutines share it."""

    def __init__(self, tracer: trace.Tracer, store: TracedStore) -> None:
        self._tracer = tracer
        self._store = store

    # -- sending --------------------------------------------------------------------------------

    def sending(
        self,
        path: EntityPath,
        messages: list[NewMessage],
        step: Callable[[list[NewMessage]], Any],
    ) -> Generator[Any, Any, list[int]]:
        """Return the steps of a send: of one message, or of several with a span for each.

        `step`: makes the step that sends them, with their trace contexts.
        """
        single = len(messages) == 1
        many = len(messages) > MOST_LINKS or not self._store.create_spans
        made = messages if single or many else self.created(path, messages)
        kind = SpanKind.PRODUCER if single or many else SpanKind.CLIENT
        attributes = new_or_count(messages)
        with self._span("send", "send", path, kind, attributes, map(context_of_new, made)) as span:
            if single or many:
                made = [with_context(message, span.get_span_context()) for message in made]
            try:
                numbers: list[int] = yield step(made)
            except MessageTooLarge:
                # What is just as large as it may be is sent without.
                numbers = yield step(messages)
            if single and span.is_recording():
                span.set_attribute("lazaretto.sequence_number", numbers[0])
        return numbers

    def created(
        self,
        path: EntityPath,
        messages: Sequence[NewMessage],
        *,
        parent: Context | None = None,
    ) -> list[NewMessage]:
        """Return messages with the contexts of spans, one for each that has no trace context of its own.

        Where no such spans are wanted, they get the context of `parent`, or of the current span.
        """
        made: list[NewMessage] = []
        shared: SpanContext | None = None
        if not self._store.create_spans:
            shared = trace.get_current_span(parent).get_span_context()
        for message in messages:
            if shared is not None:
                message = with_context(message, shared)
            elif not has_context(decode_headers(message.headers).properties):
                attributes = new_attributes(message)
                span = self._begin("create", "create", path, SpanKind.PRODUCER, attributes, parent=parent)
                span.end()
                if len(messages) > MOST_LINKS:
                    shared = span.get_span_context()
                message = with_context(message, span.get_span_context())
            made.append(message)
        return made

    def created_properties(self, conversation: str) -> dict[str, str]:
        """Return the properties of one new message of a dialog."""
        if not self._store.create_spans:
            return properties_with(trace.get_current_span().get_span_context())
        attributes: Attributes = {"messaging.message.conversation_id": conversation}
        span = self._begin("create", "create", None, SpanKind.PRODUCER, attributes)
        span.end()
        return properties_with(span.get_span_context())

    @contextmanager
    def resubmitting(self, path: EntityPath, messages: Iterable[StoredMessage], count: int) -> Iterator[None]:
        """Trace that an operator sends dead letters back. `messages`: some of them, to link to."""
        attributes: Attributes = {"messaging.batch.message_count": count}
        links = map(context_of_stored, messages)
        with self._span("resubmit", "send", path, SpanKind.PRODUCER, attributes, links):
            yield

    def repaired(
        self,
        verb: str,
        record: RepairRecord | None,
        count: int = 0,
        headers: Iterable[bytes | None] = (),
        *,
        began: int,
        error: str | None = None,
    ) -> None:
        """Trace what was done with letters of a repair. `headers`: of some of them, to link to."""
        attributes: Attributes = {}
        if record is not None:
            attributes = {"lazaretto.repair": record.name, "messaging.batch.message_count": count}
        sends = verb == "resubmit"
        kind = SpanKind.PRODUCER if sends else SpanKind.CLIENT
        path = None if record is None else EntityPath(record.path)
        links = map(context_in, headers)
        span = self._begin(verb, "send" if sends else "", path, kind, attributes, links, began=began)
        if error is not None:
            _fail(span, error)
        span.end()

    # -- receiving and settling -----------------------------------------------------------------

    def receiving(
        self,
        path: EntityPath,
        steps: Generator[Any, Any, T],
    ) -> Generator[Any, Any, T]:
        """Return the steps of a receive of messages or a hand-over. What finds nothing makes no span."""
        began = time.time_ns()
        try:
            answer = yield from steps
        except Exception as error:
            span = self._begin("receive", "receive", path, SpanKind.CLIENT, {}, began=began)
            _fail(span, name_of(error))
            span.end()
            raise
        messages = messages_of(answer)
        if messages:
            attributes = stored_or_count(messages)
            links = map(context_of_stored, messages)
            ids = [message.message_id for message in messages[:MOST_LINKS]]
            self._begin(
                "receive", "receive", path, SpanKind.CLIENT, attributes, links, ids=ids, began=began
            ).end()
        return answer

    def settling(self, entries: Sequence[Settled], steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Return the steps that settle messages."""
        with self.committing(entries):
            return (yield from steps)

    @contextmanager
    def committing(
        self, entries: Sequence[Settled], operations: Iterable[Operation[Any]] = ()
    ) -> Iterator[None]:
        """Trace a commit that settles messages and sends others: a span for each verb and destination."""
        settled: dict[tuple[str, EntityPath | None], list[ReceivedMessage]] = {}
        for entry in entries:
            verb = _VERBS.get(entry.settlement.outcome, "abandon")
            lock = entry.message.lock
            settled.setdefault((verb, None if lock is None else lock.path), []).append(entry.message)
        spans = [
            self._begin(
                verb,
                "settle",
                path,
                SpanKind.CLIENT,
                stored_or_count(of_verb),
                map(context_of_stored, of_verb),
            )
            for (verb, path), of_verb in settled.items()
        ]
        for sent in operations:
            if isinstance(sent, Send):
                contexts = map(context_of_new, sent.messages)
                attributes = new_or_count(sent.messages)
                spans.append(self._begin("send", "send", sent.path, SpanKind.CLIENT, attributes, contexts))
        try:
            yield
        except BaseException as error:
            for span in spans:
                _fail(span, name_of(error))
            raise
        finally:
            for span in spans:
                span.end()

    # -- processing -----------------------------------------------------------------------------

    def processing(
        self,
        path: EntityPath,
        message: ReceivedMessage,
        *,
        child: bool = False,
        began: int | None = None,
    ) -> Processing:
        """Begin the span of one attempt at a message. `child`: of the sender's span, else it links to it."""
        context = context_of_stored(message)
        parent = None
        if child and context is not None:
            parent, context = trace.set_span_in_context(trace.NonRecordingSpan(context)), None
        attributes = stored_attributes(message)
        span = self._begin(
            "process", "process", path, SpanKind.CONSUMER, attributes, [context], parent=parent, began=began
        )
        return Processing(self, span)

    def shard(
        self,
        path: EntityPath,
        claim: int,
        rows: int,
        contexts: Iterable[TraceContext | None],
        between: tuple[int, int],
        *,
        error: str | None,
    ) -> None:
        """Trace a pipeline's work on one shard of a claim. `between`: in nanoseconds since 1970."""
        attributes: Attributes = {"lazaretto.claim": claim, "messaging.batch.message_count": rows}
        links = (None if one is None else span_context(one) for one in contexts)
        span = self._begin("process", "process", path, SpanKind.CONSUMER, attributes, links, began=between[0])
        if error is not None:
            _fail(span, error)
        span.end(between[1])

    # -- spans ----------------------------------------------------------------------------------

    def _begin(
        self,
        name: str,
        kind_of_operation: str,
        path: EntityPath | None,
        kind: SpanKind,
        attributes: Attributes,
        contexts: Iterable[SpanContext | None] = (),
        *,
        ids: Sequence[str] | None = None,
        parent: Context | None = None,
        began: int | None = None,
    ) -> Span:
        attributes |= {
            "messaging.system": SYSTEM,
            "messaging.operation.name": name,
        }
        if kind_of_operation:
            attributes["messaging.operation.type"] = kind_of_operation
        attributes |= server_attributes(self._store.server)
        if path is not None:
            attributes |= destination_attributes(path)
            name = f"{name} {path}"
        return self._tracer.start_span(
            name, parent, kind, attributes, links=links_to(contexts, ids), start_time=began
        )

    @contextmanager
    def _span(
        self,
        name: str,
        kind_of_operation: str,
        path: EntityPath,
        kind: SpanKind,
        attributes: Attributes,
        contexts: Iterable[SpanContext | None],
    ) -> Iterator[Span]:
        span = self._begin(name, kind_of_operation, path, kind, attributes, contexts)
        try:
            yield span
        except Exception as error:
            _fail(span, name_of(error))
            raise
        finally:
            span.end()


class Processing:
    """The span of one attempt at a message, while it lasts."""

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracing = tracing
        self._span = span

    def current(self) -> AbstractContextManager[None]:
        """Make it the current span."""
        return _attached(trace.set_span_in_context(self._span))

    def sends(self, path: str, messages: Sequence[NewMessage]) -> list[NewMessage]:
        """Return messages that the handler sends, with the contexts of spans below this one."""
        parent = trace.set_span_in_context(self._span)
        return self._tracing.created(EntityPath.parse(path), messages, parent=parent)

    def end(self, outcome: Outcome, error_type: str | None, at: int | None = None) -> None:
        """End it. `at`: in nanoseconds since 1970."""
        self._span.set_attribute("lazaretto.outcome", outcome.value)
        if error_type is not None:
            _fail(self._span, error_type)
        self._span.end(at)


def current(context: TraceContext) -> AbstractContextManager[None]:
    """Make a message's trace context the current one."""
    return _attached(trace.set_span_in_context(trace.NonRecordingSpan(span_context(context))))


@contextmanager
def _attached(context: Context) -> Iterator[None]:
    token = otel.attach(context)
    try:
        yield
    finally:
        otel.detach(token)


def _fail(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))
