"""Spans of what a program does with messages, and the trace context that goes with each message."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from traced import PARENT, Traces, attributes, links, names, parent_of, traced

import lazaretto.aio
from lazaretto import (
    Broker,
    DeadLetterFilter,
    EntityNotFound,
    InvalidMessage,
    InvalidOption,
    ManualClock,
    Message,
    MessageLockLost,
    RepairError,
    Rule,
    SqlAction,
    SqlFilter,
    commands,
    connect,
)
from lazaretto.aio import AsyncBroker
from lazaretto.broker.broker import store_of
from lazaretto.observe.traces import MOST_LINKS

from . import talk
from .actions import create, fail, peek_one, send, take

OTHER = "00-11111111111111111111111111111111-2222222222222222-01"
SECRET = "hunter2"


@pytest.fixture
def traces() -> Iterator[Traces]:
    with traced() as found:
        yield found


@pytest.fixture(autouse=True)
def queue(broker: Broker) -> None:
    create(broker, receive_retry_count=0)


def carried(broker: Broker, path: str = "q") -> Any:
    """Return the trace context of the only message of a queue."""
    return peek_one(broker, path).properties.get("traceparent")


def unserved(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span, without where the store is."""
    return {name: value for name, value in attributes(span).items() if not name.startswith("server.")}


def carried_all(broker: Broker) -> list[Any]:
    """Return the trace contexts of a queue's messages."""
    return [message.properties.get("traceparent") for message in broker.peek("q", 9)]


class TestSending:
    def test_one_message(self, broker: Broker, traces: Traces) -> None:
        number = send(broker, b"x", message_id="m", correlation_id="c", properties={"kept": 1})
        (span,) = traces.take()
        assert names([span]) == ["send q PRODUCER"]
        assert unserved(span) == {
            "system": "lazaretto", "operation.name": "send", "operation.type": "send",
            "destination.name": "q", "message.id": "m", "message.conversation_id": "c",
            "lazaretto.sequence_number": number,
        }  # fmt: skip
        assert peek_one(broker).properties == {"kept": 1, "traceparent": parent_of(span)}

    def test_several_have_a_span_each_to_which_that_of_the_send_links(
        self, broker: Broker, traces: Traces
    ) -> None:
        send(broker, b"1", b"2")
        *each, whole = traces.take()
        assert names([*each, whole]) == ["create q PRODUCER", "create q PRODUCER", "send q CLIENT"]
        parents = [parent_of(span) for span in each]
        assert [m.properties["traceparent"] for m in broker.peek("q", 9)] == parents == links(whole)
        assert attributes(whole)["batch.message_count"] == 2
        assert attributes(each[0])["operation.type"] == "create"

    def test_very_many_share_one_span(self, broker: Broker, traces: Traces) -> None:
        broker.sender("q").send([Message(b"") for _ in range(300)])
        with broker.transaction() as tx:
            tx.send("q", [Message(b"") for _ in range(200)])
        (first,), (second,) = traces.named("send q")[:1], traces.named("create q")
        found = [m.properties["traceparent"] for m in broker.peek("q", 1000)]
        assert found == [parent_of(first)] * 300 + [parent_of(second)] * 200
        assert first.kind.name == "PRODUCER"

    def test_they_are_children_of_the_current_span(self, broker: Broker, traces: Traces) -> None:
        with traces.tracer.start_as_current_span("outer"):
            send(broker, b"x")
            send(broker, b"1", b"2")
            broker.receiver("q").receive(2)
        *inner, outer = traces.take()
        assert outer.context is not None
        assert {span.parent and span.parent.span_id for span in inner} == {outer.context.span_id}

    @pytest.mark.parametrize("given", [PARENT, "", "nonsense", b"\xff", 5, None], ids=repr)
    @pytest.mark.parametrize("name", ["traceparent", "Diagnostic-Id"])
    def test_a_value_of_the_sender_is_kept(
        self, broker: Broker, traces: Traces, name: str, given: Any
    ) -> None:
        properties = {name: given, "tracestate": given}
        broker.sender("q").send(Message(b"x", properties=properties))
        broker.sender("q").send([Message(b"1", properties=properties), Message(b"2", properties=properties)])
        with broker.transaction() as tx:
            tx.send("q", Message(b"3", properties=properties))
        assert [m.properties for m in broker.peek("q", 9)] == [properties] * 4
        assert [links(span) for span in traces.named("send q")] == (
            [[PARENT], [PARENT] * 2, [PARENT]] if given == PARENT else [[], [], []]
        )
        receiver = broker.receiver("q")
        receiver.complete(receiver.receive(9))
        assert len(links(traces.one("complete q"))) == (4 if given == PARENT else 0)

    def test_a_copy_of_a_received_message_keeps_its_origin(self, broker: Broker, traces: Traces) -> None:
        send(broker, b"x")
        origin = carried(broker)
        create(broker, "copies")
        broker.sender("copies").send(take(broker))
        assert carried(broker, "copies") == origin
        assert links(traces.one("send copies")) == [origin]

    def test_without_room_for_it_the_message_is_sent(self, broker: Broker, traces: Traces) -> None:
        properties = {"a": "x" * 32_740, "b": "x" * 32_740}
        broker.sender("q").send(Message(b"", properties=properties))
        assert peek_one(broker).properties == properties
        body = b"x" * 262_144
        broker.sender("q").send([Message(body), Message(b"")])
        assert [(m.body, m.properties) for m in broker.peek("q", 9, 2)] == [(body, {}), (b"", {})]

    def test_an_error_is_told_by_its_type_alone(self, broker: Broker, traces: Traces) -> None:
        with pytest.raises(EntityNotFound):
            send(broker, SECRET.encode(), path="gone")
        (span,) = traces.take()
        assert (span.name, attributes(span)["error.type"]) == ("send gone", "lazaretto.errors.EntityNotFound")
        assert (span.status.is_ok, span.status.description, span.events) == (False, None, ())

    def test_what_is_refused_before_it_is_sent_makes_no_span(self, broker: Broker, traces: Traces) -> None:
        with pytest.raises(InvalidMessage):
            broker.sender("q").send([Message("text")])  # type: ignore[arg-type]
        broker.sender("q").send([])
        assert traces.take() == []

    def test_a_subscription(self, broker: Broker, traces: Traces) -> None:
        broker.create_topic("shop/news")
        broker.create_subscription("shop/news", "eu")
        send(broker, b"x", path="shop/news")
        take(broker, "shop/news/subscriptions/eu")
        sent, received = traces.take()
        assert attributes(sent)["destination.name"] == "shop/news"
        told = attributes(received)
        assert (told["destination.name"], told["destination.subscription.name"]) == ("shop/news", "eu")

    def test_without_a_provider_nothing_is_added(self, broker: Broker) -> None:
        send(broker, b"1", b"2")
        assert [m.properties for m in broker.peek("q", 9)] == [{}, {}]


class TestWithoutSpansOfEachMessage:
    @pytest.fixture(autouse=True)
    def sparse(self, broker: Broker) -> None:
        store_of(broker).create_spans = False

    def test_a_send_of_several_is_one_span_that_all_come_from(self, broker: Broker, traces: Traces) -> None:
        send(broker, b"1", b"2")
        (span,) = traces.take()
        assert names([span]) == ["send q PRODUCER"]
        assert [m.properties["traceparent"] for m in broker.peek("q", 9)] == [parent_of(span)] * 2

    def test_a_transaction_passes_the_current_span_on(self, broker: Broker, traces: Traces) -> None:
        with traces.tracer.start_as_current_span("outer"), broker.transaction() as tx:
            tx.send("q", [Message(b"1"), Message(b"2")])
        sent, outer = traces.take()
        assert names([sent]) == ["send q CLIENT"]
        assert links(sent) == [parent_of(outer)] * 2
        assert carried_all(broker) == [parent_of(outer)] * 2

    def test_where_there_is_no_current_span_nothing_is_passed_on(
        self, broker: Broker, traces: Traces
    ) -> None:
        with broker.transaction() as tx:
            tx.send("q", [Message(b"1", properties={"traceparent": OTHER}), Message(b"2")])
        assert names(traces.take()) == ["send q CLIENT"]
        assert carried_all(broker) == [OTHER, None]


def test_connect_takes_the_setting(tmp_path: Path) -> None:
    with connect(tmp_path / "s.db", create_spans=False) as broker:
        assert store_of(broker).create_spans is False
    with pytest.raises(InvalidOption, match="create_spans"):
        connect(tmp_path / "s.db", create_spans="no")  # type: ignore[arg-type]


def test_spans_name_the_server(broker: Broker, traces: Traces, url: str) -> None:
    broker.sender("q").send(Message(b""))
    told = attributes(traces.one("send q"))
    if not url.startswith("postgresql"):
        assert "server.address" not in told
        return
    info = store_of(broker)._connection.raw.info  # type: ignore[attr-defined]
    assert told["server.address"] == info.host
    assert told.get("server.port") == (None if info.host.startswith("/") else info.port)


class TestRepairs:
    def test_each_step_links_to_the_letters_it_sends(self, broker: Broker, traces: Traces) -> None:
        origins = []
        for _ in range(3):
            send(broker, SECRET.encode())
            fail(broker)
        origins = [m.properties["traceparent"] for m in broker.peek("q", 9, subqueue="dead_letter")]
        traces.take()
        repair = broker.plan_repair("q", [1, 2, 3], name="fix", canary=1, in_flight=None)
        repair.canary()
        repair.run(until=lambda: broker.queue("q").counts.active == 1)
        receiver = broker.receiver("q")
        receiver.complete(receiver.receive())
        repair.run(until=lambda: repair.status().phase.value == "canary processed")
        repair.apply()
        repair.run(until=lambda: broker.queue("q").counts.active == 2)
        made = {span.name: span for span in traces.take() if "lazaretto.repair" in attributes(span)}
        assert list(made) == ["plan_repair q", "canary_repair q", "resubmit q", "apply_repair q"]
        assert sorted(links(made["plan_repair q"])) == sorted(map(str, origins))
        assert len(links(made["apply_repair q"])) == len(links(made["resubmit q"])) == 2
        told = attributes(made["resubmit q"])
        assert (told["lazaretto.repair"], told["batch.message_count"]) == ("fix", 2)
        assert told["operation.type"] == "send" and made["resubmit q"].kind.name == "PRODUCER"
        assert "operation.type" not in attributes(made["plan_repair q"])
        assert SECRET not in "".join(span.to_json() for span in made.values())

    def test_what_is_refused_and_what_is_taken_back(self, broker: Broker, traces: Traces) -> None:
        send(broker, b"x")
        fail(broker)
        repair = broker.plan_repair("q", [1], canary=0, in_flight=None)
        with pytest.raises(RepairError):
            repair.canary()
        assert attributes(traces.one("canary_repair"))["error.type"] == "lazaretto.errors.RepairError"
        repair.apply()
        repair.run(until=lambda: broker.queue("q").counts.active == 1)
        repair.undo()
        repair.run()
        assert attributes(traces.one("take_back q"))["batch.message_count"] == 1

    def test_links_are_bounded(self, broker: Broker, traces: Traces) -> None:
        send(broker, *(b"" for _ in range(MOST_LINKS + 5)))
        receiver = broker.receiver("q")
        for message in receiver.receive(200):
            receiver.dead_letter(message)
        broker.plan_repair("q", DeadLetterFilter(), everything=True)
        span = traces.one("plan_repair q")
        assert len(links(span)) <= MOST_LINKS
        assert attributes(span)["batch.message_count"] == MOST_LINKS + 5


class TestReceivingAndSettling:
    def test_one(self, broker: Broker, traces: Traces) -> None:
        send(broker, b"x", message_id="m")
        origin = carried(broker)
        traces.take()
        receiver = broker.receiver("q")
        receiver.complete(receiver.receive())
        received, completed = traces.take()
        assert names([received, completed]) == ["receive q CLIENT", "complete q CLIENT"]
        assert links(received) == links(completed) == [origin]
        assert dict(received.links[0].attributes or {}) == {"messaging.message.id": "m"}
        assert unserved(received) == {
            "system": "lazaretto", "operation.name": "receive", "operation.type": "receive",
            "destination.name": "q", "message.id": "m", "lazaretto.sequence_number": 1,
            "lazaretto.attempt": 1, "lazaretto.delivery_count": 0, "lazaretto.generation": 0,
        }  # fmt: skip
        assert attributes(completed)["operation.type"] == "settle"

    def test_every_verb(self, broker: Broker, traces: Traces) -> None:
        send(broker, *(b"%d" % n for n in range(6)))
        receiver = broker.receiver("q")
        messages = receiver.receive(6)
        verbs = ("complete", "abandon", "defer", "dead_letter", "invalid", "release")
        for verb, message in zip(verbs, messages, strict=True):
            getattr(receiver, verb)(message)
        receiver.receive_deferred(3)
        receiver.receive_by_number(6)
        found = [span.name for span in traces.take()][7:]
        assert found == ["receive q", *(f"{verb} q" for verb in verbs), "receive q", "receive q"]

    def test_several_and_deleted_at_once(self, broker: Broker, traces: Traces) -> None:
        send(broker, b"1", b"2")
        parents = [m.properties["traceparent"] for m in broker.peek("q", 9)]
        traces.take()
        broker.receiver("q", mode="receive_and_delete").receive(9)
        (span,) = traces.take()
        assert (links(span), attributes(span)["batch.message_count"]) == (parents, 2)

    def test_a_receive_that_finds_nothing_makes_no_span(self, broker: Broker, traces: Traces) -> None:
        assert broker.receiver("q").receive(max_wait=0.01) == []
        assert traces.take() == []
        with pytest.raises(EntityNotFound):
            broker.receiver("gone").receive()
        assert attributes(traces.one("receive gone"))["error.type"] == "lazaretto.errors.EntityNotFound"

    def test_a_lost_lock(self, broker: Broker, clock: ManualClock, traces: Traces) -> None:
        send(broker, b"x")
        receiver = broker.receiver("q")
        (message,) = receiver.receive()
        clock.advance(3600)
        with pytest.raises(MessageLockLost):
            receiver.complete(message)
        assert attributes(traces.one("complete q"))["error.type"] == "lazaretto.errors.MessageLockLost"

    def test_what_service_bus_wrote_alone(self, broker: Broker, traces: Traces) -> None:
        broker.sender("q").send(Message(b"x", properties={"Diagnostic-Id": PARENT}))
        take(broker)
        assert links(traces.one("receive q")) == [PARENT]

    def test_a_transaction_is_traced_when_it_commits(self, broker: Broker, traces: Traces) -> None:
        send(broker, b"x")
        create(broker, "out")
        traces.take()
        with broker.transaction() as tx:
            tx.receive("q")
            tx.send("out", Message(b"y"))
            assert names(traces.take()) == ["receive q CLIENT", "create out PRODUCER"]
        settled, sent = traces.take()
        assert names([settled, sent]) == ["complete q CLIENT", "send out CLIENT"]
        assert links(sent) == [carried(broker, "out")]

    def test_a_transaction_that_fails_or_rolls_back(self, broker: Broker, traces: Traces) -> None:
        with contextlib.suppress(KeyError), broker.transaction() as tx:
            tx.send("q", Message(b"y"))
            raise KeyError
        assert names(traces.take()) == ["create q PRODUCER"]
        with pytest.raises(EntityNotFound), broker.transaction() as tx:
            tx.send("gone", Message(b"y"))
        assert attributes(traces.one("send gone"))["error.type"] == "lazaretto.errors.EntityNotFound"

    def test_consume(self, broker: Broker, traces: Traces) -> None:
        send(broker, b"good")
        send(broker, SECRET.encode())
        origins = [m.properties["traceparent"] for m in broker.peek("q", 9)]
        current = []

        def work(message: Any) -> None:
            current.append(trace.get_current_span().get_span_context())
            if message.body != b"good":
                raise ValueError(SECRET)

        with traces.tracer.start_as_current_span("outer"):
            broker.consume("q", work, stop_when_idle=True)
        good, bad = traces.named("process q")
        assert [span.context for span in (good, bad)] == current
        assert links(good) + links(bad) == origins
        assert good.kind.name == "CONSUMER"
        assert attributes(good)["lazaretto.outcome"] == "completed"
        assert (attributes(bad)["lazaretto.outcome"], attributes(bad)["error.type"]) == (
            "failed",
            "ValueError",
        )
        assert SECRET not in "".join(span.to_json() for span in traces.take())


class TestCarried:
    """The trace context stays with a message wherever it goes."""

    @pytest.fixture
    def origin(self, broker: Broker, traces: Traces) -> str:
        """The trace context of a message `x`, which is in `q`."""
        send(broker, b"x")
        found: str = carried(broker)
        return found

    def test_retries_and_dead_letters(self, broker: Broker, origin: str) -> None:
        receiver = broker.receiver("q")
        receiver.release(receiver.receive())
        receiver.defer(receiver.receive(), properties={"seen": True})
        receiver.dead_letter(receiver.receive_deferred(1), properties={"more": 1})
        (letter,) = broker.peek("q", 9, subqueue="dead_letter")
        assert letter.properties == {"traceparent": origin, "seen": True, "more": 1}

    def test_resubmission(self, broker: Broker, origin: str, traces: Traces) -> None:
        for edit in (None, "SET fixed = TRUE", lambda letter: None):
            fail(broker)
            traces.take()
            broker.resubmit("q", [peek_one(broker, "q/$deadletterqueue").sequence_number], edit=edit)
            assert carried(broker) == origin
            (span,) = traces.take()
            assert (names([span]), links(span)) == (["resubmit q PRODUCER"], [origin])
            told = attributes(span)
            assert (told["operation.type"], told["batch.message_count"]) == ("send", 1)

    def test_resubmission_by_a_command(self, broker: Broker, origin: str, traces: Traces) -> None:
        fail(broker)
        traces.take()
        broker.run(commands.Resubmit(path="q", sequence_numbers=(1,)))
        (span,) = traces.take()
        assert (names([span]), links(span)) == (["resubmit q PRODUCER"], [origin])
        assert span.status.is_ok and "error.type" not in attributes(span)

    def test_a_repair(self, broker: Broker, origin: str) -> None:
        fail(broker)
        repair = broker.plan_repair("q", [1], edit="SET fixed = TRUE", canary=0, in_flight=None)
        repair.apply()
        repair.run(until=lambda: broker.queue("q").counts.active == 1)
        assert carried(broker) == origin

    def test_moved_purged_and_restored(self, broker: Broker, origin: str) -> None:
        create(broker, "other")
        fail(broker)
        broker.purge("q", 1)
        broker.restore("q", 1)
        broker.move_dead_letters("q", 1, "other")
        assert carried(broker, "other") == origin

    def test_forwarded(self, broker: Broker, origin: str) -> None:
        create(broker, "last")
        create(broker, "letters")
        broker.create_queue("first")
        broker.update_queue("first", forward_to="last")
        broker.sender("first").send(Message(b"", properties={"traceparent": origin}))
        broker.update_queue("q", forward_dead_lettered_messages_to="letters")
        fail(broker)
        assert [carried(broker, "last"), carried(broker, "letters")] == [origin, origin]

    def test_a_topic_with_actions_and_republished(self, broker: Broker, traces: Traces) -> None:
        broker.create_topic("t")
        rule = Rule("r", SqlFilter("traceparent IS NOT NULL"), SqlAction("SET region = 'eu'; REMOVE gone"))
        broker.create_subscription("t", "s", rules=[rule])
        broker.sender("t").send(Message(b"x", properties={"gone": 1}))
        origin = parent_of(traces.one("send t"))
        path = "t/subscriptions/s"
        assert peek_one(broker, path).properties == {"traceparent": origin, "region": "eu", "RuleName": "r"}
        receiver = broker.receiver(path)
        receiver.dead_letter(receiver.receive())
        broker.republish(path, 1)
        assert carried(broker, path) == origin

    def test_transfer_dead_letters(self, broker: Broker, traces: Traces) -> None:
        create(broker, "out")
        create(broker, "via", forward_to="out")
        broker.delete_queue("out")
        send(broker, b"x", path="via")
        origin = parent_of(traces.one("send via"))
        create(broker, "out")
        letters = "via/$Transfer/$deadletterqueue"
        assert carried(broker, letters) == origin
        broker.resubmit(letters, [peek_one(broker, letters).sequence_number])
        assert carried(broker, "out") == origin

    def test_scheduled_and_sent_via(self, broker: Broker, clock: ManualClock, traces: Traces) -> None:
        create(broker, "out")
        sender = broker.sender("out", via="q")
        sender.schedule(Message(b"x"), clock_time(clock))
        origin = parent_of(traces.one("send out"))
        clock.advance(100)
        assert take(broker, "out").properties["traceparent"] == origin

    def test_dialogs(self, broker: Broker, traces: Traces) -> None:
        talk.services(broker)
        handle = talk.begin(broker, b"1")
        created = traces.one("create")
        assert attributes(created)["message.conversation_id"] == handle[:-2]
        traces.take()
        (message,) = talk.read(broker)
        assert message.received.properties == {"traceparent": parent_of(created)}
        received, completed = traces.take()
        assert names([received, completed]) == ["receive shop CLIENT", "complete shop CLIENT"]
        assert links(received) == links(completed) == [parent_of(created)]


def clock_time(clock: ManualClock) -> datetime:
    return datetime.fromtimestamp(clock.now() / 1_000_000 + 50, UTC)


class TestCoroutines:
    """Each coroutine has a current span of its own."""

    def test_several_at_once(self, url: str, traces: Traces) -> None:
        async def one(broker: AsyncBroker, name: str) -> None:
            with traces.tracer.start_as_current_span(name):
                async with broker.sender("q") as sender, broker.receiver("q") as receiver:
                    await sender.send(Message(name.encode(), message_id=name))
                    await receiver.complete(await receiver.receive(max_wait=120))
                async with broker.transaction() as tx:
                    await tx.send("q", Message(b""))

        async def main() -> None:
            async with await lazaretto.aio.connect(url) as broker:
                await asyncio.gather(*(one(broker, f"outer {n}") for n in range(5)))

        asyncio.run(main())
        spans = traces.take()
        outer = {span.context.span_id for span in spans if span.context and span.name.startswith("outer")}
        for name in ("send q", "receive q", "complete q", "create q"):
            parents = [span.parent.span_id for span in spans if span.name == name and span.parent]
            assert set(parents) == outer, name
        for span in spans:
            if "message.id" in attributes(span) and span.name == "send q":
                assert span.parent is not None

    def test_a_cancelled_receive_makes_no_span(self, url: str, traces: Traces) -> None:
        async def main() -> None:
            async with await lazaretto.aio.connect(url) as broker, broker.receiver("q") as receiver:
                waiting = asyncio.ensure_future(receiver.receive(max_wait=None))
                await asyncio.sleep(0)
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await waiting

        asyncio.run(main())
        assert traces.take() == []
