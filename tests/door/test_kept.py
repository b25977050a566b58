"""Messages in AMQP's own form, kept whole: two clients that share no code, both stores, and every way on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)
from rabbitmq_amqp_python_client.wire import encoding as wire
from rabbitmq_amqp_python_client.wire.delivery_state import Accepted
from rabbitmq_amqp_python_client.wire.message import (
    AmqpSequence,
    AmqpValue,
    ApplicationProperties,
    Data,
    DeliveryAnnotations,
    Footer,
    Header,
    Message,
    MessageAnnotations,
    Properties,
)

from door import rabbit
from door.served import Served
from lazaretto import Broker, DeadLetter, QueueOptions, Rule, SqlAction, SqlFilter
from lazaretto.servicebus.amqp import Section, Sections

WAIT = 120

VALUES: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "ubyte": wire.Ubyte(255),
    "ushort": wire.Ushort(65_535),
    "uint": wire.Uint(4_294_967_295),
    "ulong": wire.Ulong((1 << 64) - 1),
    "byte": wire.Byte(-128),
    "short": wire.Short(-32_768),
    "int": wire.Int(5),
    "long": wire.Long(-(1 << 63)),
    "float": wire.Float(1.5),
    "double": wire.Double(0.1),
    "char": wire.Char("é"),
    "timestamp": wire.Timestamp(1_700_000_000_123),
    "uuid": uuid.UUID(int=7),
    "binary": b"\x00\xff",
    "string": "text",
    "symbol": wire.Symbol("name"),
}
ANNOTATIONS: dict[Any, Any] = {wire.Symbol("x-opt-mine"): wire.Ushort(5), wire.Symbol("x-list"): [1, "two"]}
SEQUENCES = [AmqpSequence([wire.Int(1), "two"]), AmqpSequence([])]
BODIES = [
    Data(b"\x00data\xff"),
    [Data(b"one"), Data(b""), Data(b"two")],
    AmqpValue("text é"),
    AmqpValue(b"\xff"),
    AmqpValue(None),
    AmqpValue({"a": [wire.Ubyte(1), {"b": uuid.UUID(int=7)}]}),
    SEQUENCES,
]


def full(body: Any) -> Message:
    """Return a message that says everything that one can say."""
    return Message(
        body,
        Header(durable=True, priority=7, ttl=60_000),
        DeliveryAnnotations({wire.Symbol("x-next"): wire.Ubyte(1)}),
        MessageAnnotations(dict(ANNOTATIONS)),
        Properties(
            uuid.UUID(int=5), b"user", "to", "subject", "reply", wire.Ulong(9), "text/plain", "gzip",
            1_800_000_000_000, 1_700_000_000_000, "group", 3, "other",
        ),
        ApplicationProperties(dict(VALUES)),
        Footer({wire.Symbol("x-crc"): wire.Uint(5)}),
    )  # fmt: skip


def exact(value: Any) -> Any:
    """Return a value with its types, which equality leaves out."""
    if isinstance(value, dict):
        return {(type(key), key): exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return type(value), value


def said(payload: bytes) -> dict[str, Any]:
    """Return all that an encoded message says, with types, without what only a broker says."""
    sections = Sections(payload)
    header, annotations = sections.header(), sections.mapping(Section.MESSAGE_ANNOTATIONS)
    delivery = sections.mapping(Section.DELIVERY_ANNOTATIONS)
    for name in ("sequence-number", "enqueued-time", "locked-until", "enqueue-sequence-number"):
        annotations.pop(f"x-opt-{name}", None)
    delivery.pop("x-opt-lock-token", None)
    return {
        "header": (header.durable, header.priority, header.ttl),
        "delivery": exact(delivery),
        "annotations": exact(annotations),
        "properties": exact(list(msgspec.structs.astuple(sections.properties()))),
        "application": exact(sections.mapping(Section.APPLICATION_PROPERTIES)),
        "body": [(part.section, payload[part.start : part.end]) for part in sections.body_parts],
        "footer": exact(sections.mapping(Section.FOOTER)),
    }


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_second_client_gets_back_what_it_sent(served: Served, body: Any) -> None:
    with rabbit.opened(served.port) as session:
        assert isinstance(rabbit.send(session, "q", full(body)), Accepted)
        assert said(rabbit.receive(session, "q")) == said(full(body).encode())


def test_python_sees_the_body_and_what_it_has_fields_for(served: Served, broker: Broker) -> None:
    with rabbit.opened(served.port) as session:
        for body in BODIES:
            message = full(body)
            assert message.properties is not None
            message.properties.message_id = None
            rabbit.send(session, "q", message)
    found = broker.peek("q", len(BODIES))
    assert [one.body for one in found[:4]] == [b"\x00data\xff", b"onetwo", "text é".encode(), b"\xff"]
    for one, body in zip(found[4:], BODIES[4:], strict=True):
        sections = body if isinstance(body, list) else [body]
        assert one.body == b"".join(part.encode() for part in sections)
    assert {one.correlation_id for one in found} == {"9"}
    assert {name for one in found for name in one.properties} == VALUES.keys() - {"ulong"}
    assert found[0].properties["int"] == 5


class TestWaysOn:
    """What a message passes through in the store leaves it whole."""

    @pytest.fixture(autouse=True)
    def given(self, served: Served, broker: Broker) -> Iterator[None]:
        broker.create_queue("end", QueueOptions())
        with rabbit.opened(served.port) as self.session:
            yield

    def send(self, queue: str = "q") -> None:
        assert isinstance(rabbit.send(self.session, queue, full(SEQUENCES)), Accepted)

    def dead(self, broker: Broker) -> list[DeadLetter]:
        with broker.receiver("q") as receiver:
            receiver.dead_letter(receiver.receive(1), reason="why")
        return list(broker.dead_letters("q"))

    def kept(self, queue: str = "end") -> None:
        assert said(rabbit.receive(self.session, queue)) == said(full(SEQUENCES).encode())

    def test_a_queue_that_forwards(self, broker: Broker) -> None:
        broker.create_queue("via", QueueOptions(forward_to="end"))
        self.send("via")
        self.kept()

    def test_a_topic_with_an_action(self, broker: Broker) -> None:
        broker.create_topic("t")
        broker.create_subscription("t", "all")
        broker.create_subscription(
            "t", "set", rules=[Rule("r", SqlFilter("int = 5"), SqlAction("SET int = 6"))]
        )
        self.send("t")
        self.kept("t/Subscriptions/all")
        expected = full(SEQUENCES)
        assert expected.application_properties is not None
        expected.application_properties.value |= {"int": wire.Int(6), "RuleName": "r"}
        assert said(rabbit.receive(self.session, "t/Subscriptions/set")) == said(expected.encode())

    def test_a_dead_letter_that_is_resubmitted(self, broker: Broker) -> None:
        self.send()
        (letter,) = self.dead(broker)
        broker.resubmit("q", letter.sequence_number)
        self.kept("q")

    def test_an_edit(self, broker: Broker) -> None:
        self.send()
        (letter,) = self.dead(broker)
        broker.resubmit("q", letter.sequence_number, edit="SET sys.message_id = 'new'; SET string = 'edited'")
        expected = full(SEQUENCES)
        assert expected.properties is not None
        assert expected.application_properties is not None
        expected.properties.message_id = "new"
        expected.application_properties.value["string"] = "edited"
        assert said(rabbit.receive(self.session, "q")) == said(expected.encode())

    def test_a_copy_that_python_sends(self, broker: Broker) -> None:
        self.send()
        with broker.receiver("q") as receiver:
            (found,) = receiver.receive(1)
            broker.sender("end").send(found)
            receiver.complete(found)
        (copy,) = broker.peek("end")
        assert copy.message_id == str(uuid.UUID(int=5))
        self.kept()

    def test_an_export_that_is_sent_again(self, broker: Broker, url: str) -> None:
        self.send()

        def run(*words: str, given: bytes = b"") -> bytes:
            command = [sys.executable, "-m", "lazaretto", *words, "--store", url]
            return subprocess.run(
                command, input=given, capture_output=True, check=True, env=os.environ
            ).stdout

        exported = run("peek", "q", "--json")
        (record,) = json.loads(exported) if exported.lstrip().startswith(b"[") else [json.loads(exported)]
        assert record["amqp"]["base64"]
        run("send", "end", "--jsonl", given=json.dumps(record).encode() + b"\n")
        self.kept()


class TestAzure:
    @pytest.fixture
    def client(self, served: Served) -> Iterator[ServiceBusClient]:
        with ServiceBusClient.from_connection_string(served.connection_string, retry_total=0) as client:
            yield client

    def through(self, client: ServiceBusClient, message: AmqpAnnotatedMessage) -> ServiceBusReceivedMessage:
        with client.get_queue_sender("q") as sender, client.get_queue_receiver("q") as receiver:
            sender.send_messages(message)
            (found,) = receiver.receive_messages(1, WAIT)
            receiver.complete_message(found)
            return found

    @pytest.mark.parametrize(
        ("kind", "given", "expected"),
        [
            ("value", "text", b"text"),
            ("value", {b"key": [1, b"two"]}, {b"key": [1, b"two"]}),
            ("value", None, None),
            ("sequence", [[1, b"two"], [3]], [[1, b"two"], [3]]),
            ("data", [b"one", b"two"], [b"one", b"two"]),
        ],
    )
    def test_each_kind_of_body(self, client: ServiceBusClient, kind: str, given: Any, expected: Any) -> None:
        message = AmqpAnnotatedMessage(**{f"{kind}_body": given})
        found = self.through(client, message)
        assert found.body_type == AmqpMessageBodyType(kind)
        body = found.body
        assert (body if kind == "value" else list(body)) == expected

    def test_annotations_header_footer_and_properties(self, client: ServiceBusClient) -> None:
        message = AmqpAnnotatedMessage(
            data_body=b"x",
            header=AmqpMessageHeader(priority=9, durable=True),
            footer={"f": 1},
            properties=AmqpMessageProperties(
                message_id="m",
                user_id=b"user",
                content_encoding="gzip",
                creation_time=1_700_000_000_000,
                absolute_expiry_time=1_800_000_000_000,
                group_sequence=4,
            ),
            application_properties={"n": 1},
            annotations={"x-mine": "yes"},
            delivery_annotations={"x-next": "hop"},
        )
        found = self.through(client, message).raw_amqp_message
        assert found.header is not None
        assert found.properties is not None
        assert (found.header.priority, found.header.durable) == (9, True)
        properties = found.properties
        assert (properties.user_id, properties.content_encoding) == (b"user", b"gzip")
        assert (properties.creation_time, properties.absolute_expiry_time) == (
            1_700_000_000_000,
            1_800_000_000_000,
        )
        assert properties.group_sequence == 4
        assert found.footer == {b"f": 1}
        assert found.annotations is not None
        assert found.annotations[b"x-mine"] == b"yes"
        assert found.delivery_annotations is not None
        assert found.delivery_annotations[b"x-next"] == b"hop"

    def test_a_batch_and_a_schedule_keep_them_too(self, client: ServiceBusClient, broker: Broker) -> None:
        messages = [AmqpAnnotatedMessage(value_body=n, annotations={"x-n": n}) for n in (1, 2, 3)]
        with client.get_queue_sender("q") as sender, client.get_queue_receiver("q") as receiver:
            sender.send_messages(messages)
            found = receiver.receive_messages(3, WAIT)
            while len(found) < 3:
                found += receiver.receive_messages(3, WAIT)
            assert [one.body for one in found] == [1, 2, 3]
            assert [one.raw_amqp_message.annotations[b"x-n"] for one in found] == [1, 2, 3]  # type: ignore[index]
            for one in receiver.peek_messages(3):
                assert one.body_type == AmqpMessageBodyType.VALUE
