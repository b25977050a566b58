"""Azure's own administration client for Python, unchanged, at the door."""

from __future__ import annotations

import asyncio
import base64
import hmac
import http.client
import math
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import (
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from door.served import Served
from lazaretto import Broker, CorrelationFilter, Message, PoisonPolicy, QueueOptions, Rule, SqlFilter
from lazaretto.servicebus.atom.settings import changes_of

WAIT = 120
KEY = "of the door"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path) -> str:
    """The file of the authority that clients trust."""
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    return str(tmp_path / "authority.pem")


@pytest.fixture
def guarded(serve: Callable[..., Served], authority: trustme.CA, tmp_path: Path) -> Served:
    """A server on whose one port are AMQP without TLS and HTTP with it."""
    (tmp_path / "key").write_text(KEY)
    made = authority.issue_cert("localhost")
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "certificate.pem")
    return serve(
        "--key-file", str(tmp_path / "key"), "--certificate", str(tmp_path / "certificate.pem"), "--plain"
    )


def string(served: Served, key: str = KEY) -> str:
    return served.connection_string.replace("SharedAccessKey=KEY", f"SharedAccessKey={key}")


@pytest.fixture
def client(guarded: Served, trusted: str) -> Iterator[ServiceBusAdministrationClient]:
    with ServiceBusAdministrationClient.from_connection_string(
        string(guarded), connection_verify=trusted, retry_total=0
    ) as client:
        yield client


sqlite = pytest.mark.stores("sqlite")


def test_a_queue(client: ServiceBusAdministrationClient, broker: Broker) -> None:
    made = client.create_queue(
        "Sales/orders",
        lock_duration=timedelta(seconds=13),
        default_message_time_to_live=timedelta(hours=3),
        dead_lettering_on_message_expiration=True,
        max_delivery_count=4,
        requires_session=True,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(minutes=2),
        forward_dead_lettered_messages_to="q",
        max_size_in_megabytes=2048,
        max_message_size_in_kilobytes=1024,
        user_metadata='<owner> & "co"',
        enable_express=True,
        enable_batched_operations=False,
    )
    options = broker.queue("sales/orders").options
    assert options.lock_duration == 13
    assert options.default_time_to_live == 3 * 3600
    assert options.dead_letter_on_expiration
    assert options.policy == PoisonPolicy(receive_retry_count=3)
    assert (options.requires_session, options.requires_duplicate_detection) == (True, True)
    assert options.duplicate_detection_window == 120
    assert options.forward_dead_lettered_messages_to == "q"
    assert (options.max_size, options.max_message_size) == (2048 << 20, 1 << 20)
    found = client.get_queue("Sales/orders")
    assert (found.name, made.name) == ("Sales/orders", "Sales/orders")
    assert found.lock_duration == timedelta(seconds=13)
    assert found.default_message_time_to_live == timedelta(hours=3)
    assert found.duplicate_detection_history_time_window == timedelta(minutes=2)
    assert (found.max_delivery_count, found.max_size_in_megabytes) == (4, 2048)
    assert found.forward_dead_lettered_messages_to.endswith("/q")  # type: ignore[union-attr]
    assert found.forward_to is None
    assert found.user_metadata == '<owner> & "co"'
    assert (found.enable_express, found.enable_batched_operations) == (True, False)
    assert (found.enable_partitioning, found.requires_session) == (False, True)
    assert found.status == "Active"
    assert found == made
    client.delete_queue("sales/ORDERS")
    with pytest.raises(ResourceNotFoundError):
        client.get_queue("Sales/orders")


def test_two_updates_at_once_are_both_kept(broker: Broker) -> None:
    """Each client changes one text of an entity that both have read before."""
    broker.create_queue("own", QueueOptions(annotations={"team": "a", "servicebus:UserMetadata": "old"}))
    read = broker.queue("own").options
    for given in ({"UserMetadata": "new"}, {"SupportOrdering": "false", "UserMetadata": "old"}):
        changes: dict[str, Any] = changes_of("QueueDescription", given, read)
        broker.update_queue("own", **changes)
    assert broker.queue("own").options.annotations == {
        "team": "a", "servicebus:UserMetadata": "new", "servicebus:SupportOrdering": "false",
    }  # fmt: skip
    gone: dict[str, Any] = changes_of("QueueDescription", {"UserMetadata": ""}, broker.queue("own").options)
    broker.update_queue("own", **gone)
    assert broker.queue("own").options.annotations == {"team": "a", "servicebus:SupportOrdering": "false"}


def test_an_update_keeps_what_only_this_library_knows(
    client: ServiceBusAdministrationClient, broker: Broker
) -> None:
    policy = PoisonPolicy(receive_retry_count=2, max_retry_cycles=3)
    broker.create_queue(
        "own", QueueOptions(lock_duration=3600, policy=policy, kept_samples=7, annotations={"team": "a"})
    )
    found = client.get_queue("own")
    found.default_message_time_to_live = timedelta(minutes=1)
    found.user_metadata = "new"
    client.update_queue(found)
    options = broker.queue("own").options
    assert (options.default_time_to_live, options.lock_duration, options.kept_samples) == (60, 3600, 7)
    assert (options.policy, options.max_size) == (policy, None)
    assert options.annotations == {"team": "a", "servicebus:UserMetadata": "new"}
    found.max_delivery_count, found.forward_to, found.user_metadata = 9, "q", None
    client.update_queue(found)
    options = broker.queue("own").options
    assert (options.policy.receive_retry_count, options.policy.max_retry_cycles) == (8, 3)
    assert (options.forward_to, options.annotations) == ("q", {"team": "a"})
    found = client.get_queue("own")
    found.forward_to, found.default_message_time_to_live = None, timedelta.max
    client.update_queue(found)
    assert (broker.queue("own").options.forward_to, broker.queue("own").options.default_time_to_live) == (
        None,
        None,
    )


@sqlite
def test_metadata_keeps_its_spaces(client: ServiceBusAdministrationClient) -> None:
    queue = client.create_queue("spaced", user_metadata=" {\n} \n")
    assert queue.user_metadata == " {\n} \n"
    queue.user_metadata = "  "
    client.update_queue(queue)
    assert client.get_queue("spaced").user_metadata == "  "


@sqlite
def test_what_is_fixed_does_not_change(client: ServiceBusAdministrationClient, broker: Broker) -> None:
    found = client.get_queue("q")
    for name in ("requires_session", "requires_duplicate_detection", "enable_partitioning"):
        changed = client.get_queue("q")
        setattr(changed, name, True)
        with pytest.raises(HttpResponseError, match="of an existing Queue cannot be changed") as refused:
            client.update_queue(changed)
        assert refused.value.status_code == 400
    assert client.get_queue("q") == found
    assert broker.queue("q").options == QueueOptions()


@sqlite
def test_a_partitioned_queue(client: ServiceBusAdministrationClient, broker: Broker) -> None:
    client.create_queue("many", enable_partitioning=True)
    assert broker.queue("many").options.partitions == 16
    assert client.get_queue("many").enable_partitioning


@sqlite
def test_status(client: ServiceBusAdministrationClient, broker: Broker) -> None:
    for status in ("SendDisabled", "ReceiveDisabled", "Disabled", "Active"):
        queue = client.get_queue("q")
        queue.status = status
        client.update_queue(queue)
        assert client.get_queue("q").status == status
    assert broker.queue("q").status.value == "active"


@sqlite
def test_what_is_refused_changes_nothing(client: ServiceBusAdministrationClient, broker: Broker) -> None:
    client.create_topic("t")
    client.create_subscription("t", "s")
    sleeping: dict[str, Any] = {"status": "Sleeping"}
    for create in (
        lambda: client.create_queue("made", **sleeping),
        lambda: client.create_topic("made", **sleeping),
        lambda: client.create_topic("made", status="ReceiveDisabled"),
        lambda: client.create_subscription("t", "made", **sleeping),
        lambda: client.create_subscription("t", "made", status="SendDisabled"),
    ):
        with pytest.raises(HttpResponseError) as refused:
            create()
        assert refused.value.status_code == 400
    for get, update, status in (
        (lambda: client.get_queue("q"), client.update_queue, "Sleeping"),
        (lambda: client.get_topic("t"), client.update_topic, "ReceiveDisabled"),
        (
            lambda: client.get_subscription("t", "s"),
            lambda wanted: client.update_subscription("t", wanted),
            "SendDisabled",
        ),
    ):
        wanted: Any = get()
        before = wanted.default_message_time_to_live
        wanted.status, wanted.default_message_time_to_live = status, timedelta(minutes=1)
        with pytest.raises(HttpResponseError, match="Bad Request"):
            update(wanted)
        assert get().default_message_time_to_live == before
    assert [one.path for one in broker.queues()] == ["$system/deadletter", "q"]
    assert [one.path for one in broker.topics()] == ["t"]
    assert [one.name for one in broker.subscriptions("t")] == ["s"]


def test_counts(client: ServiceBusAdministrationClient, broker: Broker) -> None:
    broker.sender("q").send([Message(b"x") for _ in range(4)])
    broker.sender("q").schedule(Message(b"later"), datetime.now(UTC) + timedelta(hours=1))
    with broker.receiver("q") as receiver:
        one, two = receiver.receive(2, max_wait=WAIT)
        receiver.dead_letter(one)
        found = client.get_queue_runtime_properties("q")
        assert found.total_message_count == 5
        assert (found.active_message_count, found.dead_letter_message_count) == (3, 1)
        assert (found.scheduled_message_count, found.transfer_dead_letter_message_count) == (1, 0)
        assert abs(found.created_at_utc - datetime.now(UTC)) < timedelta(minutes=5)  # type: ignore[operator]
        receiver.release(two)
    broker.create_topic("t")
    broker.create_subscription("t", "s")
    broker.sender("t").send(Message(b"x"))
    assert client.get_topic_runtime_properties("t").subscription_count == 1
    assert client.get_subscription_runtime_properties("t", "s").active_message_count == 1


def test_lists_by_pages(client: ServiceBusAdministrationClient, broker: Broker) -> None:
    broker.create_queues([f"many/{n:03}" for n in range(102)])
    names = [queue.name for queue in client.list_queues()]
    assert names == [*(f"many/{n:03}" for n in range(102)), "q"]
    assert [one.name for one in client.list_queues(start_index=100)] == names[100:]
    assert len(list(client.list_queues(max_page_size=40))) == 103
    assert sum(one.total_message_count or 0 for one in client.list_queues_runtime_properties()) == 0
    assert list(client.list_topics()) == []
    client.create_topic("t")
    for name in "abc":
        client.create_subscription("t", name)
    assert [one.name for one in client.list_topics()] == ["t"]
    assert [one.name for one in client.list_subscriptions("t", max_page_size=2)] == ["a", "b", "c"]
    with pytest.raises(ResourceNotFoundError):
        list(client.list_subscriptions("nowhere"))


def test_a_topic_and_its_subscriptions(client: ServiceBusAdministrationClient, broker: Broker) -> None:
    topic = client.create_topic("Events", default_message_time_to_live="PT10M", user_metadata="m")
    assert (topic.default_message_time_to_live, topic.user_metadata) == (timedelta(minutes=10), "m")
    topic.max_size_in_megabytes = 5120
    client.update_topic(topic)
    assert broker.topic("events").options.max_size == 5 << 30
    made = client.create_subscription(
        "Events", "Audit", lock_duration="PT30S", max_delivery_count=2, forward_to="q",
        dead_lettering_on_filter_evaluation_exceptions=False,
    )  # fmt: skip
    assert made == client.get_subscription("events", "Audit")
    options = broker.subscription("events", "audit").queue.options
    assert (options.forward_to, options.lock_duration, options.dead_letter_on_filter_errors) == (
        "q",
        30,
        False,
    )
    made.forward_to = None
    made.user_metadata = "mine"
    client.update_subscription("Events", made)
    again = client.get_subscription("Events", "Audit")
    assert (again.forward_to, again.user_metadata, again.max_delivery_count) == (None, "mine", 2)
    client.delete_subscription("Events", "Audit")
    with pytest.raises(ResourceNotFoundError):
        client.get_subscription("Events", "Audit")
    with pytest.raises(ResourceNotFoundError):
        client.update_subscription("Events", made)
    client.delete_topic("Events")
    with pytest.raises(ResourceNotFoundError):
        client.get_topic("Events")


def test_rules(client: ServiceBusAdministrationClient, broker: Broker) -> None:
    client.create_topic("t")
    client.create_subscription("t", "s")
    (first,) = client.list_rules("t", "s")
    assert (first.name, type(first.filter)) == ("$Default", TrueRuleFilter)
    client.delete_rule("t", "s", "$Default")
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    properties = {"n": 5, "long": 1 << 40, "f": 2.5, "b": True, "t": "<é>", "when": at}
    sql = SqlRuleFilter("n > @least and name <> '<&>'", parameters={"@least": 3})
    client.create_rule(
        "t", "s", "sql", filter=sql, action=SqlRuleAction("SET x = @y", parameters={"@y": "z"})
    )
    wanted: dict[str, Any] = {"correlation_id": "c", "session_id": "i", "properties": properties}
    client.create_rule("t", "s", "Correlated", filter=CorrelationRuleFilter(label="l", **wanted))
    client.create_rule("t", "s", "none", filter=FalseRuleFilter())
    found = client.get_rule("t", "s", "sql")
    assert isinstance(found.filter, SqlRuleFilter)
    assert found.filter.sql_expression == "n > @least and name <> '<&>'"
    assert found.filter.parameters == {"@least": 3}
    assert found.action.sql_expression == "SET x = @y"  # type: ignore[union-attr]
    assert found.action.parameters == {"@y": "z"}  # type: ignore[union-attr]
    correlated = client.get_rule("t", "s", "correlated").filter
    assert isinstance(correlated, CorrelationRuleFilter)
    assert (correlated.correlation_id, correlated.label, correlated.session_id) == ("c", "l", "i")
    assert correlated.properties == properties
    ours = next(rule.filter for rule in broker.subscription("t", "s").rules if rule.name == "Correlated")
    assert ours == CorrelationFilter(subject="l", **wanted)
    found.filter = CorrelationRuleFilter(label="other")
    found.action = None
    client.update_rule("t", "s", found)
    assert broker.subscription("t", "s").rules[-1] == Rule("sql", CorrelationFilter(subject="other"))
    assert [rule.name for rule in client.list_rules("t", "s")] == ["Correlated", "none", "sql"]
    with pytest.raises(ResourceExistsError):
        client.create_rule("t", "s", "NONE", filter=TrueRuleFilter())
    with pytest.raises(ResourceNotFoundError):
        client.get_rule("t", "s", "nowhere")
    with pytest.raises(ResourceNotFoundError):
        client.delete_rule("t", "s", "nowhere")
    with pytest.raises(HttpResponseError, match="expected a condition") as refused:
        client.create_rule("t", "s", "wrong", filter=SqlRuleFilter("SELECT"))
    assert refused.value.status_code == 400


@sqlite
def test_rules_made_here_are_told(client: ServiceBusAdministrationClient, broker: Broker) -> None:
    broker.create_topic("t")
    values: dict[str, Any] = {"id": uuid.UUID(int=3), "data": b"\x00\xff", "odd": "a\x00b"}
    rules = [Rule("one", CorrelationFilter(properties=values)), Rule("two", SqlFilter("a < 1"))]
    broker.create_subscription("t", "s", rules=rules)
    one, two = client.list_rules("t", "s")
    assert isinstance(one.filter, CorrelationRuleFilter)
    told = {"id": str(uuid.UUID(int=3)), "data": "AP8=", "odd": "a\N{REPLACEMENT CHARACTER}b"}
    assert one.filter.properties == told
    assert isinstance(two.filter, SqlRuleFilter)
    assert two.filter.sql_expression == "a < 1"


@sqlite
def test_values_of_rules_are_told_as_xml_has_them(
    guarded: Served, client: ServiceBusAdministrationClient, broker: Broker
) -> None:
    broker.create_topic("t")
    old = datetime(33, 4, 3, tzinfo=UTC)
    values: dict[str, Any] = {"old": old, "lines": "a\r\nb", "most": math.inf, "least": -math.inf}
    broker.create_subscription("t", "s", rules=[Rule("r", CorrelationFilter(properties=values))])
    (rule,) = client.list_rules("t", "s")
    assert isinstance(rule.filter, CorrelationRuleFilter)
    assert rule.filter.properties == values
    # .NET's and Java's read no other spelling.
    path = "t/subscriptions/s/rules/r"
    said = _asked(guarded, "GET", f"/{path}", Authorization=_token(KEY, path))[1]
    assert [one for one in ("0033-04-03T", ">INF<", ">-INF<") if one not in said] == []


@sqlite
def test_conflicts_and_refusals(client: ServiceBusAdministrationClient, broker: Broker) -> None:
    with pytest.raises(ResourceExistsError):
        client.create_queue("Q")
    with pytest.raises(ResourceExistsError):
        client.create_topic("q")
    with pytest.raises(ResourceNotFoundError):
        client.delete_queue("nowhere")
    lost = client.get_queue("q")
    client.delete_queue("q")
    with pytest.raises(ResourceNotFoundError):
        client.update_queue(lost)
    access = [AuthorizationRule(type="SharedAccessAuthorizationRule", key_name="k", rights=[])]
    for name, options in (
        ("a", {"lock_duration": "PT6M"}),
        ("a", {"forward_to": "nowhere"}),
        ("a", {"max_delivery_count": 0}),
        ("a", {"auto_delete_on_idle": "PT1M"}),
        ("a", {"authorization_rules": access}),
        ("a", {"user_metadata": "x" * 1025}),
        ("a//b", {}),
        ("a/$DeadLetterQueue", {}),
        ("$system/x", {}),
    ):
        with pytest.raises(HttpResponseError) as refused:
            client.create_queue(name, **options)
        assert refused.value.status_code in (400, 404), (name, options)
    assert [one.path for one in broker.queues()] == ["$system/deadletter"]


def test_one_port_for_messages_and_administration(
    guarded: Served, client: ServiceBusAdministrationClient, broker: Broker
) -> None:
    client.create_queue("fresh")
    with (
        ServiceBusClient.from_connection_string(string(guarded), retry_total=0) as messages,
        messages.get_queue_sender("fresh") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
    assert client.get_queue_runtime_properties("fresh").active_message_count == 1
    assert client.get_namespace_properties().messaging_sku == "Standard"


@sqlite
def test_the_asynchronous_client(guarded: Served, trusted: str, broker: Broker) -> None:
    async def main() -> None:
        async with AsyncAdministrationClient.from_connection_string(
            string(guarded), connection_verify=trusted, retry_total=0
        ) as client:
            await client.create_queue("a", lock_duration=timedelta(seconds=20))
            await client.create_topic("t")
            await client.create_subscription("t", "s")
            await client.create_rule("t", "s", "r", filter=SqlRuleFilter("1=1"))
            assert [queue.name async for queue in client.list_queues()] == ["a", "q"]
            assert [rule.name async for rule in client.list_rules("t", "s")] == ["$Default", "r"]
            queue = await client.get_queue("a")
            queue.lock_duration = timedelta(seconds=30)
            await client.update_queue(queue)
            await client.delete_topic("t")

    asyncio.run(main())
    assert broker.queue("a").options.lock_duration == 30
    assert broker.topics() == []


def _token(key: str, path: str = "") -> str:
    """Return a signature as clients make them."""
    resource, until = urllib.parse.quote_plus(f"https://localhost/{path}"), int(time.time()) + 600
    made = hmac.digest(key.encode(), f"{resource}\n{until}".encode(), "sha256")
    signature = urllib.parse.quote_plus(base64.b64encode(made))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={until}&skn=RootManageSharedAccessKey"


def _asked(served: Served, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("localhost", served.port, timeout=WAIT)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, given)
        found = connection.getresponse()
        return found.status, found.read().decode()
    finally:
        connection.close()


class TestAccess:
    @pytest.fixture
    def served(self, serve: Callable[..., Served], tmp_path: Path) -> Served:
        (tmp_path / "key").write_text(KEY)
        return serve("--key-file", str(tmp_path / "key"))

    @sqlite
    def test_only_with_the_key(self, served: Served, broker: Broker) -> None:
        good = _token(KEY)
        assert _asked(served, "GET", "/q", Authorization=good)[0] == 200
        old = good.replace(good[good.index("se=") + 3 : good.index("&skn")], str(int(time.time()) - 1))
        for wrong in (
            "",
            "Bearer x",
            "SharedAccessSignature x",
            _token("another"),
            old,
            _token(KEY, "other"),
        ):
            status, body = _asked(served, "GET", "/q", Authorization=wrong)
            assert status == 401
            assert "<Code>401</Code>" in body
            assert KEY not in body
        # Whether it exists is told only to those who may know.
        assert _asked(served, "DELETE", "/nowhere")[0] == 401
        assert _asked(served, "GET", "/nowhere", Authorization=_token(KEY, "nowhere"))[0] == 200

    @sqlite
    def test_whoever_administers_is_noted(self, served: Served, broker: Broker) -> None:
        assert _asked(served, "DELETE", "/q", Authorization=_token(KEY))[0] == 200
        entry = broker.audit()[0]
        assert (entry.actor, entry.action) == ("key:RootManageSharedAccessKey", "delete")


@sqlite
class TestRequests:
    """What no client of Service Bus sends."""

    def test_bad_entries(self, serve: Callable[..., Served], broker: Broker) -> None:
        served = serve()
        entry = '<entry xmlns="http://www.w3.org/2005/Atom"><content><{0}>{1}</{0}></content></entry>'
        queue = entry.format("QueueDescription", "<LockDuration>PT5S</LockDuration>")
        bomb = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + queue.replace("PT5S", "&b;")
        file = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + queue.replace("PT5S", "&a;")
        for body in (
            "",
            "no XML",
            "<entry/>",
            queue[:-9],
            bomb,
            file,
            entry.format("RuleDescription", ""),
            entry.format("QueueDescription", "<LockDuration>PT1Y</LockDuration>"),
            entry.format("QueueDescription", "<LockDuration>P</LockDuration>"),
            entry.format("QueueDescription", "<MaxDeliveryCount>-1</MaxDeliveryCount>"),
            entry.format("QueueDescription", "<RequiresSession>maybe</RequiresSession>"),
            entry.format("QueueDescription", "<IsAnonymousAccessible>true</IsAnonymousAccessible>"),
            entry.format("QueueDescription", "<a>" * 10_000 + "</a>" * 10_000),
        ):
            status, said = _asked(served, "PUT", "/made", body.encode())
            assert (status, "<Code>400</Code>" in said) == (400, True), body[:100]
            assert "root:" not in said
        assert _asked(served, "PUT", "/made", b"\xff\xfe\x00")[0] == 400
        assert _asked(served, "PUT", "/made", b"<" * (2 << 20))[0] == 413
        assert _asked(served, "PUT", "/made", queue.encode(), If_Match='"1"')[0] == 412
        assert [one.path for one in broker.queues()] == ["$system/deadletter", "q"]
        assert _asked(served, "GET", "/$Resources/queues?" + "a=b&" * 100)[0] == 400
        assert _asked(served, "PUT", "/made", queue.encode())[0] == 201

    def test_bad_paths_and_verbs(self, serve: Callable[..., Served]) -> None:
        served = serve()
        for method, path, expected in (
            ("GET", "/", 400),
            ("GET", "/q//x", 400),
            ("GET", "/q/$DeadLetterQueue", 400),
            ("GET", "/t/subscriptions/s/other", 400),
            ("GET", "/t/subscriptions/s/rules/r/x", 400),
            ("GET", "/$Resources/queues?$skip=-1", 400),
            ("GET", "/$Resources/queues?$skip=x", 400),
            ("GET", "/$Resources/queues?$top=0", 200),
            ("GET", "/$Resources/others", 400),
            ("POST", "/q", 405),
            ("DELETE", "/$Resources/queues", 405),
            ("GET", "/" + "x" * 300, 400),
            ("GET", "/%ff", 400),
            ("GET", "/health", 200),
        ):
            assert _asked(served, method, path)[0] == expected, (method, path)

    def test_pages_of_other_sites_are_kept_out(self, serve: Callable[..., Served], broker: Broker) -> None:
        served = serve()
        assert _asked(served, "DELETE", "/q", Host="evil.example")[0] == 401
        assert _asked(served, "DELETE", "/q", Origin="https://evil.example")[0] == 401
        assert _asked(served, "DELETE", "/q", Origin="null")[0] == 401
        assert broker.queue("q").path == "q"
        assert _asked(served, "DELETE", "/q", Origin="http://localhost:3000")[0] == 200
