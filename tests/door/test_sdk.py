"""Azure's own Service Bus client for Python, unchanged, at the door."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from rabbitmq_amqp_python_client.exceptions import AMQPError
from rabbitmq_amqp_python_client.wire.message import Message as RabbitMessage
from traced import PARENT, links, traced

from door import rabbit
from door.served import Served
from door.wire import some
from lazaretto import NEXT_SESSION, Broker, Message, PoisonPolicy, QueueOptions, Rule, SqlFilter
from lazaretto.cli.amqp_door import AmqpDoor
from lazaretto.cli.secret_files import local_certificate

WAIT = 120


def connected(served: Served, key: str = "any") -> ServiceBusClient:
    text = served.connection_string.replace("SharedAccessKey=KEY", f"SharedAccessKey={key}")
    return ServiceBusClient.from_connection_string(text, retry_total=0)


@pytest.fixture
def client(served: Served) -> Iterator[ServiceBusClient]:
    with connected(served) as client:
        yield client


def send(client: ServiceBusClient, queue: str, *messages: str | ServiceBusMessage) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(m) if isinstance(m, str) else m for m in messages])


def bodies(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]


def test_every_field_travels(client: ServiceBusClient, broker: Broker) -> None:
    properties = {"n": 5, "f": 2.5, "t": "é", "b": True, "u": uuid.UUID(int=7), "none": None}
    given = ServiceBusMessage(
        b"\x00body\xff",
        message_id="m",
        subject="s",
        correlation_id="c",
        to="there",
        reply_to="here",
        reply_to_session_id="r",
        content_type="text/plain",
        partition_key="p",
        time_to_live=timedelta(hours=1),
        application_properties=properties,  # type: ignore[arg-type]
    )
    send(client, "q", given)
    (seen,) = broker.peek("q")
    assert seen.body == b"\x00body\xff"
    assert seen.properties == properties
    assert (seen.message_id, seen.subject, seen.correlation_id) == ("m", "s", "c")
    assert (seen.to, seen.reply_to, seen.reply_to_session_id) == ("there", "here", "r")
    assert (seen.content_type, seen.partition_key) == ("text/plain", "p")
    assert seen.time_to_live == timedelta(hours=1)
    with client.get_queue_receiver("q") as receiver:
        (found,) = receiver.receive_messages(1, WAIT)
        assert b"".join(found.body) == b"\x00body\xff"
        assert {str(k, "utf-8"): v for k, v in found.application_properties.items()} == {  # type: ignore[union-attr, arg-type]
            **properties,
            "t": "é".encode(),
        }
        assert (found.message_id, found.subject, found.correlation_id) == ("m", "s", "c")
        assert (found.to, found.reply_to, found.reply_to_session_id) == ("there", "here", "r")
        assert (found.content_type, found.partition_key) == ("text/plain", "p")
        assert found.sequence_number == seen.sequence_number
        assert found.time_to_live == timedelta(hours=1)
        assert found.delivery_count == 0
        assert abs(found.enqueued_time_utc - seen.enqueued_time) < timedelta(milliseconds=1)  # type: ignore[operator]
        receiver.complete_message(found)
    assert broker.queue("q").counts.total == 0


@pytest.mark.parametrize("names", [[b"traceparent", b"Diagnostic-Id"], [b"Diagnostic-Id"]], ids=repr)
def test_the_trace_context_that_the_sdk_writes_is_read(
    client: ServiceBusClient, broker: Broker, names: list[bytes]
) -> None:
    properties: dict[str | bytes, Any] = {name: PARENT.encode() for name in names}
    send(client, "q", ServiceBusMessage("x", application_properties=properties))
    with traced() as traces:
        broker.receiver("q").receive()
    assert links(traces.one("receive q")) == [PARENT]


def test_what_python_sends_the_sdk_receives(client: ServiceBusClient, broker: Broker) -> None:
    broker.sender("q").send(Message(b"from Python", subject="s", properties={"when": datetime.now(UTC)}))
    with client.get_queue_receiver("q") as receiver:
        (found,) = receiver.receive_messages(1, WAIT)
        assert (str(found), found.subject) == ("from Python", "s")


def test_each_way_to_settle(client: ServiceBusClient, broker: Broker) -> None:
    send(client, "q", *"abcde")
    with client.get_queue_receiver("q") as receiver:
        a, b, c, d, e = some(receiver, 5)
        receiver.complete_message(a)
        receiver.abandon_message(b)
        receiver.defer_message(c)
        receiver.dead_letter_message(d, reason="why", error_description="because")
        assert receiver.renew_message_lock(e) > datetime.now(UTC)
        (again,) = receiver.receive_messages(1, WAIT)
        assert (str(again), again.delivery_count) == ("b", 1)
        (deferred,) = receiver.receive_deferred_messages([c.sequence_number])  # type: ignore[list-item]
        assert str(deferred) == "c"
        receiver.complete_message(deferred)
    (dead,) = broker.dead_letters("q")
    assert (dead.reason, dead.description) == ("why", "because")
    with client.get_queue_receiver(
        "q",
        sub_queue=ServiceBusSubQueue.DEAD_LETTER,
        receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
    ) as receiver:
        (letter,) = receiver.receive_messages(1, WAIT)
        assert (letter.dead_letter_reason, letter.dead_letter_error_description) == ("why", "because")
    assert broker.queue("q").counts.dead_letter == 0


def test_a_lost_lock_is_told_and_spares_the_others(client: ServiceBusClient, broker: Broker) -> None:
    broker.update_queue("q", lock_duration=1)
    send(client, "q", "a", "b")
    with client.get_queue_receiver("q") as receiver:
        first, second = some(receiver, 2)
        with broker.receiver("q") as other:
            # Both locks run out, and somebody else takes the first message.
            (taken,) = other.receive(1, max_wait=WAIT)
            assert taken.sequence_number == first.sequence_number
            with pytest.raises(MessageLockLostError):
                receiver.complete_message(first)
            other.complete(taken)
        assert second.sequence_number == 2


def test_schedule_cancel_and_peek(client: ServiceBusClient, broker: Broker) -> None:
    with client.get_queue_sender("q") as sender:
        later = datetime.now(UTC) + timedelta(hours=1)
        one, two = sender.schedule_messages([ServiceBusMessage("one"), ServiceBusMessage("two")], later)
        sender.cancel_scheduled_messages([one])
    with client.get_queue_receiver("q") as receiver:
        (seen,) = receiver.peek_messages(5)
        assert (str(seen), seen.sequence_number) == ("two", two)
        assert receiver.receive_messages(1, 0.5) == []
    assert broker.queue("q").counts.scheduled == 1


def test_peek_at_a_session(client: ServiceBusClient, broker: Broker) -> None:
    """Of very many others nothing is read."""
    broker.create_queue("s", QueueOptions(requires_session=True))
    broker.sender("s").send([Message(b"%d" % n, session_id="ab"[n % 300 == 0]) for n in range(900)])
    with client.get_queue_receiver("s", session_id="b") as receiver:
        assert bodies(receiver.peek_messages(10)) == ["0", "300", "600"]
        assert bodies(receiver.peek_messages(10, sequence_number=302)) == ["600"]


def test_a_receiver_waits_and_is_woken(client: ServiceBusClient, broker: Broker) -> None:
    with client.get_queue_receiver("q") as receiver:
        assert receiver.receive_messages(1, 0.5) == []
        broker.sender("q").send(Message(b"soon"))
        assert bodies(receiver.receive_messages(1, WAIT)) == ["soon"]


def test_a_closed_receiver_leaves_nothing_locked(client: ServiceBusClient, broker: Broker) -> None:
    with client.get_queue_receiver("q", prefetch_count=0) as receiver:
        assert receiver.receive_messages(5, 0.5) == []
    broker.sender("q").send(Message(b"x"))
    with broker.receiver("q") as own:
        (found,) = own.receive(1, max_wait=WAIT)
        assert found.delivery_count == 0


def test_topics(client: ServiceBusClient, broker: Broker) -> None:
    broker.create_topic("t")
    broker.create_subscription("t", "all")
    broker.create_subscription("t", "some", rules=[Rule("r", SqlFilter("n > 1"))])
    with client.get_topic_sender("t") as sender:
        for n in (1, 2):
            sender.send_messages(ServiceBusMessage(f"{n}", application_properties={"n": n}))
    for name, expected in (("all", ["1", "2"]), ("some", ["2"])):
        with client.get_subscription_receiver("t", name) as receiver:
            assert bodies(some(receiver, len(expected))) == expected
            assert not receiver.receive_messages(1, 0.2)


class TestSessions:
    @pytest.fixture(autouse=True)
    def queue(self, broker: Broker) -> None:
        broker.create_queue("s", QueueOptions(requires_session=True, lock_duration=30))

    def test_each_is_taken_in_order(self, client: ServiceBusClient) -> None:
        send(client, "s", *(ServiceBusMessage(f"{n}", session_id="ab"[n % 2]) for n in range(6)))
        with client.get_queue_receiver("s", session_id=NEXT_AVAILABLE_SESSION) as receiver:
            assert receiver.session.session_id == "a"
            assert receiver.session.locked_until_utc > datetime.now(UTC)  # type: ignore[operator]
            found = some(receiver, 3)
            assert bodies(found) == ["0", "2", "4"]
            receiver.session.set_state(b"half")
            assert receiver.session.get_state() == b"half"
            assert receiver.session.renew_lock() > datetime.now(UTC)
            for message in found:
                receiver.complete_message(message)
            with client.get_queue_receiver("s", session_id="b") as other:
                assert bodies(some(other, 3)) == ["1", "3", "5"]
            with pytest.raises(SessionCannotBeLockedError), client.get_queue_receiver("s", session_id="a"):
                pass
        with client.get_queue_receiver("s", session_id="a") as receiver:
            assert receiver.session.get_state() == b"half"

    def test_they_are_listed(self, client: ServiceBusClient) -> None:
        assert list(client.list_queue_sessions("s")) == []
        begin = datetime.now(UTC)
        send(client, "s", *(ServiceBusMessage("x", session_id=f"{n:03}") for n in range(103)))
        assert list(client.list_queue_sessions("s")) == [f"{n:03}" for n in range(103)]
        with client.get_queue_receiver("s", session_id="100") as receiver:
            receiver.session.set_state(b"set")
        assert list(client.list_queue_sessions("s", state_updated_after=begin)) == ["100"]

    def test_no_session_free_in_time(self, client: ServiceBusClient) -> None:
        with (
            pytest.raises(OperationTimeoutError),
            client.get_queue_receiver("s", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1),
        ):
            pass

    def test_the_wrong_kind_of_receiver_is_refused(self, client: ServiceBusClient) -> None:
        with pytest.raises(ServiceBusError, match="requires sessions"), client.get_queue_receiver("s"):
            pass
        with pytest.raises(ServiceBusError), client.get_queue_receiver("q", session_id="a"):
            pass

    def test_a_lock_that_runs_out_detaches(self, client: ServiceBusClient, broker: Broker) -> None:
        broker.update_queue("s", lock_duration=1)
        send(client, "s", ServiceBusMessage("x", session_id="a"))
        with client.get_queue_receiver("s", session_id="a") as receiver:
            (message,) = receiver.receive_messages(1, WAIT)
            # Somebody else can have the session when the lock has run out.
            with (
                broker.receiver("s", session=_free_session(broker)),
                pytest.raises((SessionLockLostError, MessageLockLostError)),
            ):
                receiver.complete_message(message)


def _free_session(broker: Broker) -> str:
    """Return a session's id as soon as it is free."""
    with broker.receiver("s", session=NEXT_SESSION) as receiver:
        found = receiver.accept_session(WAIT)
    assert found is not None
    return found


class TestAccess:
    @pytest.fixture
    def guarded(self, serve: Callable[..., Served], tmp_path: Path) -> Served:
        file = tmp_path / "key"
        file.write_text("the key\n")
        return serve("--key-file", str(file))

    def test_the_right_key(self, guarded: Served, broker: Broker) -> None:
        with connected(guarded, "the key") as client:
            send(client, "q", "in")
        assert broker.queue("q").counts.active == 1

    def test_a_wrong_key(self, guarded: Served, broker: Broker) -> None:
        with connected(guarded, "another") as client, pytest.raises(ServiceBusAuthenticationError):
            send(client, "q", "in")
        assert broker.queue("q").counts.total == 0


class TestTls:
    """Clients check the server's certificate; whoever speaks to it without TLS is hung up on."""

    @pytest.fixture
    def authority(self) -> trustme.CA:
        return trustme.CA()

    @pytest.fixture
    def guarded(self, serve: Callable[..., Served], authority: trustme.CA, tmp_path: Path) -> Served:
        (tmp_path / "key").write_text("the key")
        made = authority.issue_cert("localhost")
        made.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
        made.private_key_pem.write_to_path(tmp_path / "private.pem")
        names = ("--key-file", "key", "--certificate", "certificate.pem", "--private-key", "private.pem")
        return serve(*(name if name.startswith("--") else str(tmp_path / name) for name in names))

    def test_azure(self, guarded: Served, broker: Broker, authority: trustme.CA, tmp_path: Path) -> None:
        authority.cert_pem.write_to_path(tmp_path / "authority.pem")
        assert "UseDevelopmentEmulator" not in guarded.connection_string
        text = guarded.connection_string.replace("SharedAccessKey=KEY", "SharedAccessKey=the key")
        with ServiceBusClient.from_connection_string(
            text,
            retry_total=0,
            # Without it the SDK knows no port but 5671.
            custom_endpoint_address=f"sb://localhost:{guarded.port}",
            transport_type=TransportType.Amqp,
            connection_verify=str(tmp_path / "authority.pem"),
        ) as client:
            send(client, "q", "x" * 200_000)
            with client.get_queue_receiver("q") as receiver:
                (found,) = receiver.receive_messages(1, WAIT)
                assert len(str(found)) == 200_000
                receiver.complete_message(found)
        assert broker.queue("q").counts.total == 0

    @pytest.mark.stores("sqlite")
    def test_a_certificate_made_for_localhost(
        self, serve: Callable[..., Served], broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        served = serve("--tls")
        made = local_certificate()
        assert made.server.read_text().count("BEGIN CERTIFICATE") == 2
        assert stat.S_IMODE(made.server.stat().st_mode) == 0o600
        assert "PRIVATE" not in made.authority.read_text()
        assert served.told["authority"] == str(made.authority)
        assert served.told["fingerprint"] == made.fingerprint
        for host in ("localhost", "127.0.0.1"):
            with ServiceBusClient.from_connection_string(
                served.connection_string.replace("localhost", host),
                retry_total=0,
                custom_endpoint_address=f"sb://{host}:{served.port}",
                transport_type=TransportType.Amqp,
                connection_verify=str(made.authority),
            ) as client:
                send(client, "q", host)
        assert broker.queue("q").counts.active == 2

    def test_a_name_and_a_key(self, guarded: Served, authority: trustme.CA) -> None:
        """As clients of JMS log in."""
        context = ssl.create_default_context()
        authority.configure_trust(context)
        policy = "RootManageSharedAccessKey"
        with rabbit.opened(guarded.port, policy, "the key", context) as session:
            rabbit.send(session, "q", RabbitMessage(b"in"))
            assert b"in" in rabbit.receive(session, "q")
        for user, key in ((policy, "another"), ("another", "the key"), ("x", "")):
            with pytest.raises(AMQPError), rabbit.opened(guarded.port, user, key, context):
                pass
        with (
            rabbit.opened(guarded.port, tls=context) as session,
            pytest.raises(AMQPError, match="unauthorized"),
        ):
            rabbit.send(session, "q", RabbitMessage(b"in"))

    def test_who_does_not_encrypt_is_hung_up_on(self, guarded: Served) -> None:
        with socket.create_connection(("localhost", guarded.port)) as plain:
            plain.settimeout(WAIT)
            plain.sendall(b"AMQP\x03\x01\x00\x00")
            while plain.recv(1_000):
                pass


@pytest.mark.stores("sqlite")
def test_beyond_this_machine_only_with_tls_and_a_key(url: str, broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("the key")
    (tmp_path / "bad.pem").write_text("no certificate")
    for words, said in (
        (("--amqp-host", "0.0.0.0"), "TLS and a key"),
        (("--amqp-host", "0.0.0.0", "--key-file", str(tmp_path / "key")), "TLS and a key"),
        (("--private-key", str(tmp_path / "key")), "--certificate"),
        (("--tls", "--certificate", str(tmp_path / "bad.pem")), "not both"),
        (("--certificate", str(tmp_path / "bad.pem")), "certificate and its key"),
        (("--certificate", str(tmp_path / "nowhere")), "certificate and its key"),
    ):
        command = [sys.executable, "-m", "lazaretto", "serve", "--store", url, "--amqp", "0", *words]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
        assert refused.returncode != 0
        assert said in " ".join(refused.stderr.split()), refused.stderr


@pytest.mark.stores("sqlite")
def test_options_of_amqp_need_its_port(url: str, broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("the key")
    for words in (("--plain",), ("--key-file", str(tmp_path / "key"))):
        command = [sys.executable, "-m", "lazaretto", "serve", "--store", url, "--http", "0", *words]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
        assert refused.returncode == 2
        assert f"give --amqp with {words[0]}" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("host", "shown"), [("::1", "[::1]"), ("::", "localhost"), ("127.0.0.1", "localhost"), ("a.b", "a.b")]
)
def test_the_connection_string_is_a_url(host: str, shown: str) -> None:
    door = AmqpDoor(
        amqp=0, amqp_host=host, key_file=None, certificate=None, private_key=None,
        insecure=True, plain=False, more_ports=None,
    )  # fmt: skip
    assert door.connection_string(5672).startswith(f"Endpoint=sb://{shown}:5672;")


def test_what_is_not_there(client: ServiceBusClient) -> None:
    # Its token is refused with 404, as at Service Bus, which this SDK tells in this way.
    with pytest.raises(ServiceBusAuthenticationError):
        send(client, "nowhere", "x")
    with pytest.raises(ServiceBusAuthenticationError), client.get_queue_receiver("nowhere"):
        pass


def test_a_message_too_large_is_refused(client: ServiceBusClient, broker: Broker) -> None:
    broker.create_queue("small", QueueOptions(max_message_size=1024))
    with client.get_queue_sender("small") as sender:
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage("x" * 2000))
        sender.send_messages(ServiceBusMessage("x"))
    assert broker.queue("small").counts.active == 1


def test_poison_is_set_aside(client: ServiceBusClient, broker: Broker) -> None:
    broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=1))
    send(client, "q", "bad")
    with client.get_queue_receiver("q") as receiver:
        for count in (0, 1):
            (message,) = receiver.receive_messages(1, WAIT)
            assert message.delivery_count == count
            receiver.abandon_message(message)
        assert receiver.receive_messages(1, 0.5) == []
    assert broker.queue("q").counts.dead_letter == 1


@pytest.mark.stores("sqlite")
def test_a_killed_door_loses_nothing(serve: Callable[..., Served], broker: Broker) -> None:
    served = serve()
    with connected(served) as client:
        send(client, "q", *(f"{n}" for n in range(100)))
        with client.get_queue_receiver("q") as receiver:
            held = some(receiver, 100)
            for message in held[:40]:
                receiver.complete_message(message)
            served.process.kill()
            with pytest.raises(ServiceBusError):
                receiver.complete_message(held[40])
    assert broker.queue("q").counts.total == 60
    with connected(serve()) as client:
        send(client, "q", "last")
    assert broker.queue("q").counts.total == 61


def test_two_doors_on_one_store(serve: Callable[..., Served], broker: Broker) -> None:
    """What was received through one server is renewed and settled through another one."""
    broker.update_queue("q", lock_duration=10)
    with connected(serve()) as first, connected(serve()) as second:
        send(first, "q", "a", "b")
        with first.get_queue_receiver("q") as here, second.get_queue_receiver("q") as there:
            (taken,) = here.receive_messages(1, WAIT)
            before = taken.locked_until_utc
            assert before is not None
            assert there.renew_message_lock(taken) >= before
            here.defer_message(taken)
            assert taken.sequence_number is not None
            (deferred,) = here.receive_deferred_messages(taken.sequence_number)
            there.complete_message(deferred)
        assert [message.body for message in broker.peek("q", 5)] == [b"b"]
