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
from opentelemetry.util.types import AttributeValue

from lazaretto.engine.dialogs.receive_group import GroupHandover
from lazaretto.engine.messages.prepare import encode_bounded
from lazaretto.engine.messages.send import Send
from lazaretto.engine.messages.settle import Settled
from lazaretto.engine.workers.leases import Handover
from lazaretto.errors import MessageTooLarge
from lazaretto.model.entities import EntityPath, split_subscription
from lazaretto.model.failure import name_of
from lazaretto.model.headers import decode_headers
from lazaretto.model.messages import ReceivedMessage, StoredMessage
from lazaretto.model.policy import Outcome
from lazaretto.store.contract.records import NewMessage
from lazaretto.store.contract.repair_contract import RepairRecord
from lazaretto.store.contract.transaction_contract import Operation
from lazaretto.traces import MOST_LINKS, TracedStore
from lazaretto.traces.context import TraceContext, context_of, has_context, properties_of

T = TypeVar("T")
Attributes = dict[str, AttributeValue]

SYSTEM = "lazaretto"
_VERBS = {
    Outcome.COMPLETED: "complete",
    Outcome.DEFERRED: "defer",
    Outcome.RELEASED: "release",
    Outcome.DEAD_LETTERED: "dead_letter",
    Outcome.INVALID: "invalid",
}


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
        attributes = _new_or_count(messages)
        with self._span("send", "send", path, kind, attributes, map(_context_of_new, made)) as span:
            if single or many:
                made = [_with_context(message, span.get_span_context()) for message in made]
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
                message = _with_context(message, shared)
            elif not has_context(decode_headers(message.headers).properties):
                attributes = _new_attributes(message)
                span = self._begin("create", "create", path, SpanKind.PRODUCER, attributes, parent=parent)
                span.end()
                if len(messages) > MOST_LINKS:
                    shared = span.get_span_context()
                message = _with_context(message, span.get_span_context())
            made.append(message)
        return made

    def created_properties(self, conversation: str) -> dict[str, str]:
        """Return the properties of one new message of a dialog."""
        if not self._store.create_spans:
            return _properties_of(trace.get_current_span().get_span_context())
        attributes: Attributes = {"messaging.message.conversation_id": conversation}
        span = self._begin("create", "create", None, SpanKind.PRODUCER, attributes)
        span.end()
        return _properties_of(span.get_span_context())

    @contextmanager
    def resubmitting(self, path: EntityPath, messages: Iterable[StoredMessage], count: int) -> Iterator[None]:
        """Trace that an operator sends dead letters back. `messages`: some of them, to link to."""
        attributes: Attributes = {"messaging.batch.message_count": count}
        links = map(_context_of, messages)
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
        links = map(_context_in, headers)
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
            found = yield from steps
        except Exception as error:
            span = self._begin("receive", "receive", path, SpanKind.CLIENT, {}, began=began)
            _fail(span, name_of(error))
            span.end()
            raise
        messages = _received(found)
        if messages:
            attributes = _stored_or_count(messages)
            links = map(_context_of, messages)
            ids = [message.message_id for message in messages[:MOST_LINKS]]
            self._begin(
                "receive", "receive", path, SpanKind.CLIENT, attributes, links, ids=ids, began=began
            ).end()
        return found

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
                verb, "settle", path, SpanKind.CLIENT, _stored_or_count(of_verb), map(_context_of, of_verb)
            )
            for (verb, path), of_verb in settled.items()
        ]
        for sent in operations:
            if isinstance(sent, Send):
                contexts = map(_context_of_new, sent.messages)
                attributes = _new_or_count(sent.messages)
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
        context = _context_of(message)
        parent = None
        if child and context is not None:
            parent, context = trace.set_span_in_context(trace.NonRecordingSpan(context)), None
        attributes = _stored_attributes(message)
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
        links = (None if one is None else _span_context(one) for one in contexts)
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
        attributes |= _server(self._store.server)
        if path is not None:
            attributes |= _destination(path)
            name = f"{name} {path}"
        return self._tracer.start_span(
            name, parent, kind, attributes, links=_links(contexts, ids), start_time=began
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
    return _attached(trace.set_span_in_context(trace.NonRecordingSpan(_span_context(context))))


@contextmanager
def _attached(context: Context) -> Iterator[None]:
    token = otel.attach(context)
    try:
        yield
    finally:
        otel.detach(token)


# -- trace contexts --------------------------------------------------------------------------------


def _span_context(found: TraceContext) -> SpanContext:
    state = TraceState.from_header([found.state]) if found.state else TraceState()
    return SpanContext(found.trace_id, found.span_id, True, TraceFlags(found.flags), state)


def _context_of(message: StoredMessage) -> SpanContext | None:
    found = context_of(message.properties)
    return None if found is None else _span_context(found)


def _context_of_new(message: NewMessage) -> SpanContext | None:
    return _context_in(message.headers)


def _context_in(headers: bytes | None) -> SpanContext | None:
    if headers is None:
        return None
    found = context_of(decode_headers(headers).properties)
    return None if found is None else _span_context(found)


def _properties_of(context: SpanContext) -> dict[str, str]:
    if not context.is_valid:
        return {}
    state = context.trace_state.to_header()
    return properties_of(TraceContext(context.trace_id, context.span_id, context.trace_flags, state))


def _with_context(message: NewMessage, context: SpanContext) -> NewMessage:
    """Return a message with a trace context, unless it has one, or no room for it."""
    headers = decode_headers(message.headers)
    if not context.is_valid or has_context(headers.properties):
        return message
    properties = {**headers.properties, **_properties_of(context)}
    try:
        encoded = encode_bounded(msgspec.structs.replace(headers, properties=properties))
    except MessageTooLarge:
        return message
    return msgspec.structs.replace(message, headers=encoded)


def _links(contexts: Iterable[SpanContext | None], ids: Sequence[str] | None) -> list[Link]:
    links: list[Link] = []
    for number, context in enumerate(contexts):
        if number == MOST_LINKS:
            break
        if context is not None:
            named: Mapping[str, str] | None = None if ids is None else {"messaging.message.id": ids[number]}
            links.append(Link(context, named))
    return links


# -- attributes ------------------------------------------------------------------------------------


def _fail(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


def _server(server: tuple[str, int | None] | None) -> Attributes:
    if server is None:
        return {}
    address, port = server
    return {"server.address": address} if port is None else {"server.address": address, "server.port": port}


def _destination(path: EntityPath) -> Attributes:
    of = split_subscription(path)
    if of is None:
        return {"messaging.destination.name": str(path)}
    topic, name = of[0], of[1] + str(path)[len(path.queue) :]
    return {"messaging.destination.name": topic, "messaging.destination.subscription.name": name}


def _count(messages: Sequence[object]) -> Attributes:
    return {"messaging.batch.message_count": len(messages)}


def _received(found: Any) -> Sequence[ReceivedMessage]:
    if isinstance(found, GroupHandover):
        return [message for message, _ in found.messages]
    return found.messages if isinstance(found, Handover) else found or ()


def _new_attributes(message: NewMessage) -> Attributes:
    attributes: Attributes = {}
    if message.message_id is not None:
        attributes["messaging.message.id"] = message.message_id
    correlation_id = decode_headers(message.headers).correlation_id
    if correlation_id is not None:
        attributes["messaging.message.conversation_id"] = correlation_id
    return attributes


def _stored_attributes(message: ReceivedMessage) -> Attributes:
    attributes: Attributes = {
        "messaging.message.id": message.message_id,
        "lazaretto.sequence_number": message.sequence_number,
        "lazaretto.attempt": message.attempt,
        "lazaretto.delivery_count": message.delivery_count,
        "lazaretto.generation": message.generation,
    }
    if message.headers.correlation_id is not None:
        attributes["messaging.message.conversation_id"] = message.headers.correlation_id
    return attributes


def _stored_or_count(messages: Sequence[ReceivedMessage]) -> Attributes:
    return _stored_attributes(messages[0]) if len(messages) == 1 else _count(messages)


def _new_or_count(messages: Sequence[NewMessage]) -> Attributes:
    return _new_attributes(messages[0]) if len(messages) == 1 else _count(messages)
