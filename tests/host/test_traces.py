"""Spans of attempts in a service host, and the trace context that a handler finds and passes on."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from traced import Traces, attributes, links, parent_of, traced

from lazaretto import Broker, Message, PoisonPolicy, ReceivedMessage
from lazaretto.host import Handler, HandlerContext
from lazaretto.host.handlers import GivenIsolation

from .serving import send, serve

SECRET = "hunter2"


@pytest.fixture
def traces() -> Iterator[Traces]:
    with traced() as found:
        yield found


def current() -> str:
    """Return the current trace context, as a property has it."""
    context = trace.get_current_span().get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def act(message: ReceivedMessage, context: HandlerContext) -> None:
    match message.body:
        case b"fail":
            time.sleep(0.05)
            raise ValueError(SECRET)
        case b"invalid":
            context.invalid("Nonsense: at all")
        case b"exit":
            os._exit(3)
        case b"dead letter":
            context.dead_letter("Because")
        case b"send":
            context.send("out", [Message(b"1"), Message(b"2", properties={"traceparent": "mine"})])
        case b"tell":
            context.send("out", Message(current().encode()))
        case b"slow":
            time.sleep(0.05)
        case b"hang":
            time.sleep(600)


async def act_async(message: ReceivedMessage, context: HandlerContext) -> None:
    await asyncio.sleep(0.01)
    act(message, context)


def handler(isolation: GivenIsolation, function: Any = act, **options: Any) -> Handler:
    return Handler(
        "work", function, isolation=isolation, policy=PoisonPolicy(receive_retry_count=0), **options
    )


def origins(broker: Broker) -> list[Any]:
    return [message.properties["traceparent"] for message in broker.peek("work", 99)]


@pytest.fixture(params=[act, act_async])
def function(request: pytest.FixtureRequest) -> Any:
    return request.param


class TestAttempts:
    def test_each_attempt_has_a_span_that_links_to_its_sender(
        self, broker: Broker, isolation: GivenIsolation, function: Any, traces: Traces
    ) -> None:
        send(broker, "work", b"good", b"fail", b"invalid", b"dead letter", b"good")
        sent = origins(broker)
        serve(broker, handler(isolation, function))
        spans = sorted(traces.named("process work"), key=lambda s: attributes(s)["lazaretto.sequence_number"])
        assert [links(span) for span in spans] == [[parent] for parent in sent]
        assert [(attributes(s)["lazaretto.outcome"], attributes(s).get("error.type")) for s in spans] == [
            ("completed", None), ("failed", "ValueError"), ("invalid", "Nonsense"), ("dead_lettered", None),
            ("completed", None),
        ]  # fmt: skip
        assert {(s.kind.name, s.parent) for s in spans} == {("CONSUMER", None)}
        assert len({s.context.trace_id for s in spans if s.context}) == len(spans)
        assert [s.status.is_ok for s in spans] == [True, False, False, True, True]
        for span in spans:
            assert span.start_time is not None and span.end_time is not None
            assert span.start_time <= span.end_time
        assert SECRET not in "".join(span.to_json() for span in traces.take())

    def test_receives_and_settlements(
        self, broker: Broker, isolation: GivenIsolation, traces: Traces
    ) -> None:
        send(broker, "work", b"good", b"fail", b"good", b"send")
        sent = origins(broker)
        serve(broker, handler(isolation))
        linked = {
            name: sorted(one for span in traces.named(f"{name} work") for one in links(span))
            for name in ("receive", "complete", "abandon")
        }
        good = sorted([sent[0], *sent[2:]])
        assert linked == {"receive": sorted(sent), "complete": good, "abandon": [sent[1]]}
        assert len(traces.named("send out")) == 1

    def test_times(self, broker: Broker, isolation: GivenIsolation, traces: Traces) -> None:
        send(broker, "work", b"good", b"slow", b"fail", b"fail", b"good")
        serve(broker, handler(isolation))
        spans = sorted(traces.named("process work"), key=lambda s: attributes(s)["lazaretto.sequence_number"])
        began, ended = [s.start_time or 0 for s in spans], [s.end_time or 0 for s in spans]
        assert all(end <= start for end, start in zip(ended, began[1:], strict=False))
        lasted = [(end - start) / 1e9 for start, end in zip(began, ended, strict=True)]
        assert min(lasted[1:4]) >= 0.05

    @pytest.mark.parametrize("body", [b"exit", b"good"])
    def test_what_dies_has_its_span_too(self, broker: Broker, traces: Traces, body: bytes) -> None:
        broker.sender("work").send(Message(body))
        (sent,) = origins(broker)
        serve(broker, handler("process"))
        span = traces.one("process work")
        told = attributes(span)
        assert links(span) == [sent]
        assert (told["lazaretto.outcome"], told.get("error.type")) == (
            ("lost", "WorkerCrashed") if body == b"exit" else ("completed", None)
        )

    def test_a_deadline(self, broker: Broker, traces: Traces) -> None:
        broker.sender("work").send(Message(b"hang"))
        serve(broker, handler("process", deadline=0.05))
        told = attributes(traces.one("process work"))
        assert (told["lazaretto.outcome"], told["error.type"]) == ("lock_expired", "HandlerTimeout")

    def test_the_first_attempt_can_be_a_child_of_the_sender(
        self, broker: Broker, isolation: GivenIsolation, traces: Traces
    ) -> None:
        with traces.tracer.start_as_current_span("outer"):
            broker.sender("work").send(Message(b"fail"))
        (sent,) = origins(broker)
        options: Any = {"policy": PoisonPolicy(receive_retry_count=1), "trace_parent": "first_attempt"}
        serve(broker, Handler("work", act, isolation=isolation, **options))
        first, second = traces.named("process work")
        sender = traces.one("send work")
        assert first.parent is not None and sender.context is not None and second.context is not None
        assert first.parent.span_id == sender.context.span_id
        assert links(first) == []
        assert (second.parent, links(second)) == (None, [sent])
        assert second.context.trace_id != sender.context.trace_id


class TestHandlers:
    def test_what_a_handler_sends_comes_from_its_span(
        self, broker: Broker, isolation: GivenIsolation, function: Any, traces: Traces
    ) -> None:
        broker.sender("work").send(Message(b"send"))
        serve(broker, handler(isolation, function))
        created, process = traces.one("create out"), traces.one("process work")
        assert created.parent is not None and process.context is not None
        assert created.parent.span_id == process.context.span_id
        assert [m.properties["traceparent"] for m in broker.peek("out", 9)] == [parent_of(created), "mine"]
        assert len(links(traces.one("send out"))) == 1

    def test_inline_the_span_of_the_attempt_is_current(
        self, broker: Broker, function: Any, traces: Traces
    ) -> None:
        broker.sender("work").send([Message(b"tell"), Message(b"tell")])
        serve(broker, handler("inline", function))
        assert sorted(m.body.decode() for m in broker.peek("out", 9)) == sorted(
            parent_of(span) for span in traces.named("process work")
        )

    def test_in_a_process_of_its_own_the_context_of_the_message_is_current(
        self, broker: Broker, function: Any, traces: Traces
    ) -> None:
        broker.sender("work").send(
            [Message(b"tell"), Message(b"tell", properties={"traceparent": "nonsense"})]
        )
        sent = origins(broker)[0]
        serve(broker, handler("process", function))
        nothing = f"00-{'0' * 32}-{'0' * 16}-00"
        assert sorted(m.body.decode() for m in broker.peek("out", 9)) == sorted([sent, nothing])

    def test_in_a_process_of_its_own_also_if_the_host_does_not_trace(self, broker: Broker) -> None:
        parent = f"00-{'1' * 32}-{'2' * 16}-01"
        broker.sender("work").send(Message(b"tell", properties={"traceparent": parent}))
        serve(broker, handler("process"))
        (told,) = broker.peek("out", 9)
        assert (told.body.decode(), told.properties) == (parent, {})

    def test_sql_that_fails_costs_one_message(
        self, broker: Broker, isolation: GivenIsolation, traces: Traces
    ) -> None:
        """What a handler asks for is the same whether somebody traces or not."""

        def execute(message: ReceivedMessage, context: HandlerContext) -> None:
            if message.body == b"bad":
                context.execute("INSERT INTO missing VALUES (1)")

        send(broker, "work", b"good", b"bad", b"good")
        serve(broker, handler(isolation, execute))
        counts = broker.queue("work").counts
        assert (counts.dead_letter, counts.total) == (1, 1)
