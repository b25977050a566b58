"""Messages over HTTP in Service Bus's form, beside its SDK, with and without keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import urllib.parse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from patience import wait_until

from door.emulators import Answer
from door.served import Served
from door.wire import some
from lazaretto import Broker, Message, QueueOptions

WAIT = 120


def ask(
    served: Served, method: str, path: str, body: bytes | str = b"", headers: dict[str, str] | None = None
) -> Answer:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=WAIT)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, told, answer.read())
    finally:
        connection.close()


def properties_of(answer: Answer) -> dict[str, object]:
    return dict(json.loads(answer.headers["brokerproperties"]))


def signature(name: str, key: str, path: str, until: float) -> str:
    resource = urllib.parse.quote_plus(f"http://localhost/{path}")
    signed = hmac.new(key.encode(), f"{resource}\n{until:.0f}".encode(), hashlib.sha256).digest()
    signature = urllib.parse.quote_plus(base64.b64encode(signed))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={until:.0f}&skn={name}"


def test_a_message_is_sent_locked_and_completed(served: Served, broker: Broker) -> None:
    sent = {
        "MessageId": "m-1", "Label": "order", "CorrelationId": "c", "To": "t", "ReplyTo": "r",
        "TimeToLive": 90, "ReplyToSessionId": "rs", "PartitionKey": "k",
    }  # fmt: skip
    headers = {
        "BrokerProperties": json.dumps(sent), "Content-Type": "text/plain", "Priority": '"High"',
        "Count": "5", "Paid": "true", "Note": "as it is", "Rate": "1.5",
    }  # fmt: skip
    assert ask(served, "POST", "/q/messages", "three lamps", headers).status == 201
    (stored,) = broker.peek("q")
    assert (stored.body, stored.message_id, stored.subject) == (b"three lamps", "m-1", "order")
    assert stored.time_to_live == timedelta(seconds=90)
    assert stored.properties == {
        "Priority": "High",
        "Count": 5,
        "Paid": True,
        "Note": "as it is",
        "Rate": 1.5,
    }
    locked = ask(served, "POST", "/q/messages/head?timeout=60")
    assert (locked.status, locked.body, locked.headers["content-type"]) == (201, b"three lamps", "text/plain")
    told = properties_of(locked)
    assert {name: told[name] for name in sent} == sent
    assert (told["DeliveryCount"], told["SequenceNumber"], told["State"]) == (1, 1, "Active")
    assert (locked.headers["priority"], locked.headers["count"]) == ('"High"', "5")
    place = urllib.parse.urlsplit(locked.headers["location"]).path
    assert place == f"/q/messages/1/{told['LockToken']}"
    assert ask(served, "POST", place).status == 200  # renewed
    assert ask(served, "PUT", place).status == 200  # unlocked
    assert ask(served, "DELETE", place).status == 404
    again = ask(served, "POST", "/q/messages/head?timeout=60")
    assert properties_of(again)["DeliveryCount"] == 2
    token = properties_of(again)["LockToken"]
    assert ask(served, "DELETE", f"/q/messages/2/{token}").status == 404
    # The message's id names it, too.
    assert ask(served, "DELETE", f"/q/messages/m-1/{token}").status == 200
    assert broker.queue("q").counts.total == 0


def test_an_sdk_reads_what_came_over_http_and_the_other_way(served: Served, broker: Broker) -> None:
    headers = {"BrokerProperties": '{"Label": "l"}', "Colour": '"red"'}
    assert ask(served, "POST", "/q/messages", b"\x00\xff", headers).status == 201
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        with client.get_queue_receiver("q") as receiver:
            (message,) = some(receiver, 1)
            assert (b"".join(message.body), message.subject) == (b"\x00\xff", "l")
            assert message.application_properties == {b"Colour": b"red"}
            receiver.complete_message(message)
        with client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("lamp", application_properties={"n": 7}, subject="s"))
    taken = ask(served, "DELETE", "/q/messages/head?timeout=60")
    assert (taken.status, taken.body, taken.headers["n"]) == (200, b"lamp", "7")
    assert properties_of(taken)["Label"] == "s"
    assert "LockToken" not in properties_of(taken)
    assert broker.queue("q").counts.total == 0


@pytest.mark.parametrize("content_type", ["text/plain\r\nX-Other: 1", "téxt/plain", " ", "a\x7f"])
def test_a_type_that_no_header_can_hold(served: Served, broker: Broker, content_type: str) -> None:
    broker.sender("q").send(Message(b"lamp", content_type=content_type))
    answer = ask(served, "DELETE", "/q/messages/head?timeout=60")
    assert (answer.status, answer.body) == (200, b"lamp")
    assert answer.headers["content-type"] == "application/octet-stream" and "x-other" not in answer.headers
    assert properties_of(answer)["ContentType"] == content_type


def test_topics_and_dead_letters(served: Served, broker: Broker) -> None:
    broker.create_topic("t")
    broker.create_subscription("t", "s")
    assert ask(served, "POST", "/t/messages", "news").status == 201
    locked = ask(served, "POST", "/t/Subscriptions/s/messages/head?timeout=60")
    assert (locked.status, locked.body) == (201, b"news")
    place = urllib.parse.urlsplit(locked.headers["location"]).path
    assert ask(served, "DELETE", place).status == 200
    broker.sender("q").send(Message(b"bad"))
    with broker.receiver("q") as receiver:
        receiver.dead_letter(receiver.receive(), reason="r")
    assert ask(served, "DELETE", "/q/$DeadLetterQueue/messages/head?timeout=60").body == b"bad"


def test_a_batch_is_one_commit(served: Served, broker: Broker) -> None:
    kind = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
    rows = [
        {"Body": "one", "BrokerProperties": {"Label": "a"}, "UserProperties": {"Case": 1}},
        {"Body": "two"},
    ]
    assert ask(served, "POST", "/q/messages", json.dumps(rows), kind).status == 201
    one, two = broker.peek("q", 10)
    assert (one.body, one.subject, one.properties, two.body) == (b"one", "a", {"Case": 1}, b"two")
    for wrong in ("{}", "[]", "[1]", '[{"Body": 1}]', '[{"UserProperties": {"a": []}}]', "[" * 10_000):
        assert ask(served, "POST", "/q/messages", wrong, kind).status == 400
    assert broker.queue("q").counts.total == 2


def test_a_scheduled_message_lives_from_its_time(served: Served, broker: Broker) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    for text in (later.isoformat(), later.strftime("%a, %d %b %Y %H:%M:%S GMT")):
        given = json.dumps({"ScheduledEnqueueTimeUtc": text, "TimeToLive": 2})
        assert ask(served, "POST", "/q/messages", "x", {"BrokerProperties": given}).status == 201
    assert broker.queue("q").counts.scheduled == 2
    assert ask(served, "DELETE", "/q/messages/head?timeout=0").status == 204


def test_a_message_lives_no_longer_than_its_entity_lets_it(served: Served, broker: Broker) -> None:
    broker.create_queue("short", QueueOptions(default_time_to_live=3600))
    for said in ({}, {"TimeToLive": 7200}, {"TimeToLive": 60}):
        headers = {"BrokerProperties": json.dumps(said)}
        assert ask(served, "POST", "/short/messages", "x", headers).status == 201
    answers = [ask(served, "DELETE", "/short/messages/head?timeout=60") for _ in range(3)]
    assert [properties_of(one)["TimeToLive"] for one in answers] == [3600, 3600, 60]


def test_who_waits_is_woken_and_who_goes_takes_nothing(served: Served, broker: Broker) -> None:
    waiting = HTTPConnection("127.0.0.1", served.port, timeout=WAIT)
    waiting.request("POST", "/q/messages/head?timeout=60")
    gone = HTTPConnection("127.0.0.1", served.port, timeout=WAIT)
    gone.request("DELETE", "/q/messages/head?timeout=60")
    gone.close()
    ask(served, "POST", "/q/messages", "lamp")
    answer = waiting.getresponse()
    assert (answer.status, answer.read()) == (201, b"lamp")
    waiting.close()
    wait_until(lambda: broker.queue("q").counts.locked == 1)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/nothing/messages", {}, 404),
        ("POST", "/nothing/messages/head", {}, 404),
        ("POST", "/sessions/messages/head", {}, 400),
        ("POST", "/q/messages/head?timeout=x", {}, 400),
        ("POST", "/q/messages/head?timeout=nan", {}, 400),
        ("POST", "/q/messages", {"BrokerProperties": "{"}, 400),
        ("POST", "/q/messages", {"BrokerProperties": "[]"}, 400),
        ("POST", "/q/messages", {"BrokerProperties": '{"TimeToLive": "x"}'}, 400),
        ("POST", "/q/messages", {"BrokerProperties": '{"MessageId": 1}'}, 400),
        ("POST", "/q/messages", {"BrokerProperties": '{"ScheduledEnqueueTimeUtc": "soon"}'}, 400),
        ("POST", "/q/messages", {"Host": "site.example"}, 401),
        ("POST", "/q/messages", {"Origin": "https://site.example"}, 401),
        ("DELETE", "/q/messages/1/00000000-0000-0000-0000-000000000000", {}, 404),
    ],
)
@pytest.mark.stores("sqlite")
def test_what_is_refused(
    served: Served, broker: Broker, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    broker.create_queue("sessions", QueueOptions(requires_session=True))
    answer = ask(served, method, path, "x" if path.endswith("/messages") else "", headers)
    assert answer.status == status
    assert b"<Detail>" in answer.body
    assert broker.queue("q").counts.total == 0


@pytest.mark.stores("sqlite")
def test_what_is_too_large_is_refused(served: Served, broker: Broker) -> None:
    assert ask(served, "POST", "/q/messages", b"x" * 300_000).status in (403, 413)
    assert ask(served, "POST", "/q/messages/head", b"x" * 10).status == 413
    assert broker.queue("q").counts.total == 0


@pytest.mark.stores("sqlite")
def test_keys_give_their_rights_alone(serve: Callable[..., Served], broker: Broker, tmp_path: Path) -> None:
    keys = {name: tmp_path / name for name in ("root", "sender", "reader")}
    for name, file in keys.items():
        file.write_text(f"{name}-key-that-is-long-enough")
        file.chmod(0o600)
    served = serve(
        "--key-file", str(keys["root"]),
        "--policy", f"sender:Send:{keys['sender']}", "--policy", f"reader:Listen:{keys['reader']}",
    )  # fmt: skip

    def as_of(name: str, path: str = "q", seconds: float = 600) -> dict[str, str]:
        key = keys["root" if name == "RootManageSharedAccessKey" else name].read_text()
        return {"Authorization": signature(name, key, path, time.time() + seconds)}

    assert ask(served, "POST", "/q/messages", "x").status == 401
    assert ask(served, "POST", "/q/messages", "x", as_of("reader")).status == 401
    assert ask(served, "POST", "/q/messages", "x", as_of("sender", "other")).status == 401
    assert ask(served, "POST", "/q/messages", "x", as_of("sender", seconds=-5)).status == 401
    assert ask(served, "POST", "/q/messages", "x", as_of("sender")).status == 201
    assert ask(served, "POST", "/q/messages/head", "", as_of("sender")).status == 401
    # Whoever may not know of an entity is not told that there is none.
    assert ask(served, "POST", "/nothing/messages", "x", as_of("sender")).status == 401
    locked = ask(served, "POST", "/q/messages/head?timeout=60", "", as_of("reader"))
    assert (locked.status, locked.body) == (201, b"x")
    place = urllib.parse.urlsplit(locked.headers["location"]).path
    assert ask(served, "DELETE", place, "", as_of("sender")).status == 401
    assert ask(served, "DELETE", place, "", as_of("RootManageSharedAccessKey")).status == 200
