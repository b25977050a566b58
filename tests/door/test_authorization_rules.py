"""Keys of one queue or topic: made by the administration client, honoured for messages and over HTTP."""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import (
    AuthorizationRule,
    QueueProperties,
    ServiceBusAdministrationClient,
    TopicProperties,
)
from rabbitmq_amqp_python_client.exceptions import AMQPError
from rabbitmq_amqp_python_client.wire.message import Message as RabbitMessage

import lazaretto
from door import rabbit
from door.client import Manager, connected, opened, run, token
from door.served import Served
from door.test_administration import authority, client, guarded, string, trusted
from lazaretto import Broker, aio
from lazaretto.aio.witness import SigningRules
from lazaretto.errors import InvalidOption, NotAllowed
from lazaretto.model.grants import SigningRule
from lazaretto.servicebus import AccessPolicy, grants
from lazaretto.servicebus.amqp.events import LinkDetached
from lazaretto.store.addresses import copy_store

__all__ = ["authority", "client", "guarded", "trusted"]

PRIMARY, SECONDARY = "UHJpbWFyeQ==", "U2Vjb25kYXJ5"
sqlite = pytest.mark.stores("sqlite")


def rule(name: str, *rights: str, primary: str | None = PRIMARY) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=list(rights),
        key_name=name,
        primary_key=primary,
        secondary_key=SECONDARY,
        created_at_utc=datetime(2026, 1, 1, tzinfo=UTC),
        modified_at_utc=datetime(2026, 1, 1, tzinfo=UTC),
    )


def rules_of(found: QueueProperties | TopicProperties) -> list[AuthorizationRule]:
    return found.authorization_rules or []


def signed_in(served: Served, name: str, key: str, path: str = "") -> str:
    text = string(served, key).replace("RootManageSharedAccessKey", name)
    return f"{text}EntityPath={path};" if path else text


@pytest.fixture
def lamps(client: ServiceBusAdministrationClient) -> Iterator[ServiceBusAdministrationClient]:
    """The administration client, with a queue and a topic that have rules."""
    rules = [rule("seller", "Send"), rule("packer", "Listen"), rule("owner", "Manage", "Send", "Listen")]
    client.create_queue("lamps", authorization_rules=rules)
    client.create_topic("news", authorization_rules=[rule("reader", "Listen")])
    client.create_subscription("news", "all")
    yield client


def test_they_are_kept_as_they_were_given(lamps: ServiceBusAdministrationClient, broker: Broker) -> None:
    found = lamps.get_queue("lamps")
    kept = rules_of(found)
    told = [(one.key_name, one.rights, one.primary_key, one.secondary_key) for one in kept]
    assert told == [
        ("seller", ["Send"], PRIMARY, SECONDARY),
        ("packer", ["Listen"], PRIMARY, SECONDARY),
        ("owner", ["Manage", "Send", "Listen"], PRIMARY, SECONDARY),
    ]
    assert [one.key_name for one in rules_of(lamps.get_topic("news"))] == ["reader"]
    listed = {one.name: rules_of(one) for one in lamps.list_queues()}
    assert [len(listed[name]) for name in ("lamps", "q")] == [3, 0]
    # An update that says nothing about them, or the same, changes nothing.
    found.max_delivery_count = 3
    lamps.update_queue(found)
    assert rules_of(lamps.get_queue("lamps"))[0].modified_at_utc == kept[0].modified_at_utc
    # Neither key is in what others see of the store.
    shown = f"{broker.queue('lamps')} {broker.audit()} {broker.events()}"
    assert "packer" in shown
    assert PRIMARY not in shown
    assert SECONDARY not in shown
    # Who makes an entity of the same name later gets none of them.
    lamps.delete_queue("lamps")
    assert rules_of(lamps.create_queue("lamps")) == []


def test_each_gives_its_rights_on_its_entity(
    guarded: Served, lamps: ServiceBusAdministrationClient, broker: Broker
) -> None:
    with ServiceBusClient.from_connection_string(
        signed_in(guarded, "seller", PRIMARY), retry_total=0
    ) as seller:
        with seller.get_queue_sender("lamps") as sender:
            sender.send_messages(ServiceBusMessage("desk"))
        with pytest.raises(ServiceBusError), seller.get_queue_receiver("lamps") as receiver:
            receiver.receive_messages(max_wait_time=1)
        with pytest.raises(ServiceBusError), seller.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("desk"))
    with ServiceBusClient.from_connection_string(
        signed_in(guarded, "packer", SECONDARY), retry_total=0
    ) as packer:
        with packer.get_queue_receiver("lamps") as receiver:
            (message,) = receiver.receive_messages(max_wait_time=20)
            receiver.dead_letter_message(message, reason="Broken")
        with packer.get_queue_receiver("lamps", sub_queue="deadletter") as receiver:
            (message,) = receiver.receive_messages(max_wait_time=20)
            receiver.complete_message(message)
    assert broker.queue("lamps").counts.total == 0
    broker.sender("news").send(lazaretto.Message(b"new lamps"))
    with ServiceBusClient.from_connection_string(
        signed_in(guarded, "reader", PRIMARY), retry_total=0
    ) as reader:
        with reader.get_subscription_receiver("news", "all") as receiver:
            assert [str(one) for one in receiver.receive_messages(max_wait_time=20)] == ["new lamps"]
        with pytest.raises(ServiceBusError), reader.get_topic_sender("news") as sender:
            sender.send_messages(ServiceBusMessage("old lamps"))


@sqlite
def test_who_logs_in_with_one_has_its_rights(
    guarded: Served, lamps: ServiceBusAdministrationClient, broker: Broker, trusted: str
) -> None:
    """As clients of JMS log in, with the entity before the rule's name."""
    tls = ssl.create_default_context(cafile=trusted)
    with rabbit.opened(guarded.port, "lamps/seller", SECONDARY, tls) as session:
        rabbit.send(session, "lamps", RabbitMessage(b"desk"))
    refused = (
        lambda session: rabbit.send(session, "q", RabbitMessage(b"desk")),
        lambda session: rabbit.receive(session, "lamps"),
    )
    for act in refused:
        with (
            rabbit.opened(guarded.port, "lamps/seller", PRIMARY, tls) as session,
            pytest.raises(AMQPError, match="unauthorized"),
        ):
            act(session)
    with rabbit.opened(guarded.port, "Lamps/packer", PRIMARY, tls) as session:
        assert b"desk" in rabbit.receive(session, "lamps")
    for user, key in (
        ("lamps/seller", "cGFja2Vy"), ("lamps/reader", PRIMARY), ("seller", PRIMARY), ("q/seller", PRIMARY),
    ):  # fmt: skip
        with pytest.raises(AMQPError), rabbit.opened(guarded.port, user, key, tls):
            pass


def test_who_manages_an_entity_administers_that_one_alone(
    guarded: Served, lamps: ServiceBusAdministrationClient, trusted: str, broker: Broker
) -> None:
    def administration(name: str) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            signed_in(guarded, name, PRIMARY), connection_verify=trusted, retry_total=0
        )

    with administration("owner") as owner:
        found = owner.get_queue("lamps")
        found.max_delivery_count = 7
        rules_of(found)[0].primary_key = "TmV3"
        owner.update_queue(found)
        assert broker.queue("lamps").options.policy.receive_retry_count == 6
        for refused in (
            lambda: owner.get_queue("q"),
            lambda: owner.create_queue("mine"),
            lambda: list(owner.list_queues()),
        ):
            with pytest.raises(ClientAuthenticationError):
                refused()
        # What it may not send to, it may not make its queue send to either.
        found.forward_to = "q"
        with pytest.raises(ClientAuthenticationError):
            owner.update_queue(found)
    with administration("seller") as seller, pytest.raises(ClientAuthenticationError):
        seller.get_queue("lamps")
    assert rules_of(lamps.get_queue("lamps"))[0].primary_key == "TmV3"
    found = lamps.get_queue("lamps")
    found.forward_to = "q"
    lamps.update_queue(found)
    assert broker.queue("lamps").options.forward_to == "q"


@sqlite
def test_what_is_no_rule_is_refused(client: ServiceBusAdministrationClient, broker: Broker) -> None:
    other = rule("k", "Send")
    other.type = "AllowRule"
    for rules in (
        [rule(f"k{n}", "Send") for n in range(13)],
        [rule("k", "Send"), rule("k", "Listen")],
        [rule("k")],
        [rule("k", "Own")],
        [rule("", "Send")],
        [rule("k" * 257, "Send")],
        [rule("k", "Send", primary="k" * 257)],
        [rule("k", "Send", primary="\N{SNOWMAN}")],
        [other],
    ):
        with pytest.raises(HttpResponseError) as refused:
            client.create_queue("a", authorization_rules=rules)
        assert refused.value.status_code == 400
        assert PRIMARY not in str(refused.value)
    assert [one.path for one in broker.queues()] == ["$system/deadletter", "q"]
    made = client.create_queue("a", authorization_rules=[rule("k", "Send", primary=None)])
    (given,) = rules_of(made)
    assert given.primary_key is not None
    assert len(base64.b64decode(given.primary_key)) == 32
    most = client.create_queue("b", authorization_rules=[rule(f"k{n}", "Send") for n in range(12)])
    assert len(rules_of(most)) == 12


def test_a_key_that_is_taken_away_ends_links(tmp_path: Path) -> None:
    async def work() -> None:
        policies = [AccessPolicy("server", "key")]
        async with opened(tmp_path, policies=policies) as (broker, door), connected(door) as client:
            rules = SigningRules(broker)
            given = SigningRule(name="k", rights=("Send",), primary="one", secondary="two")
            await rules.set("q", [given], "somebody")
            manager = Manager(client)
            await manager.open("$cbs")
            assert (await manager.put_token("sb://h/q", token("k", "three", "sb://h/q")))[0] == 401
            assert (await manager.put_token("sb://h/other", token("k", "one", "sb://h/other")))[0] == 401
            assert (await manager.put_token("sb://h/q", token("k", "two", "sb://h/")))[0] == 202
            link = await client.link(sends=True)
            # The key stays, whichever of the two it is.
            await rules.set("q", [SigningRule(name="k", rights=("Send",), primary="two", secondary="x")], "b")
            await door.check_access()
            await client.link(sends=True, name="other")
            assert link.attached
            await rules.set("q", [given], "somebody")
            await rules.set("q", [], "somebody")
            await door.check_access()
            error = (await client.until(LinkDetached)).error
            assert error is not None
            assert error.condition == "amqp:unauthorized-access"

    run(work)


def test_a_token_that_runs_out_ends_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        policies = [AccessPolicy("server", "key")]
        async with opened(tmp_path, policies=policies) as (_, door), connected(door) as client:
            manager = Manager(client)
            await manager.open("$cbs")
            assert (await manager.put_token("sb://h/q", token("server", "key", "sb://h/q")))[0] == 202
            link = await client.link(sends=True)
            await door.check_access()
            assert link.attached
            later = SimpleNamespace(time=lambda: time.time() + 101, monotonic=time.monotonic)
            monkeypatch.setattr(grants, "time", later)
            await door.check_access()
            error = (await client.until(LinkDetached)).error
            assert error is not None
            assert error.condition == "amqp:unauthorized-access"
            # A new token lets it in again, once time is as it was.
            monkeypatch.undo()
            assert (await manager.put_token("sb://h/q", token("server", "key", "sb://h/q")))[0] == 202
            assert (await client.link(sends=True, name="again")).attached

    run(work)


def test_a_copy_of_the_store_has_them(tmp_path: Path) -> None:
    source, target = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    given = SigningRule(name="k", rights=("Send",), primary="one", secondary="two")
    assert "one" not in repr(given)

    async def fill() -> None:
        async with await aio.connect(source) as broker:
            await broker.create_queue("q")
            await broker.create_topic("t")
            await broker.create_subscription("t", "s")
            rules = SigningRules(broker)
            await rules.set("Q", [given], "somebody")
            with pytest.raises(NotAllowed):
                await rules.set("t/Subscriptions/s", [given], "somebody")
            with pytest.raises(InvalidOption):
                await rules.set("t", [given] * 2, "somebody")

    async def look() -> None:
        async with await aio.connect(target) as broker:
            found = await SigningRules(broker).at(["q", "t", "nothing"])
            assert [one.primary for one in found.pop("q")] == ["one"]
            assert not found

    run(fill)
    copy_store(source, target, lambda table, done, total: None)
    run(look)
