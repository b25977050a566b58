"""A key, a token or a role is for what it names, and never for a stranger whose name begins alike."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from door.client import Client, Manager, connected, opened, run, token
from web.conftest import serving

from lazaretto import Broker, aio
from lazaretto.aio.witness import SigningRules
from lazaretto.errors import InvalidPath
from lazaretto.model.grants import Grant, Permission, Reach, Role, SigningRule, grant_covers, may
from lazaretto.model.redaction import checked_rule, rules_for
from lazaretto.servicebus import AccessPolicy, Door, DoorLimits
from lazaretto.servicebus.amqp.events import LinkDetached
from lazaretto.web import Identity

#: What belongs to the queue or topic `shop`, however it is spelled.
BELONGS = (
    "shop", "SHOP", "shop/$deadletterqueue", "shop/$DeadLetterQueue", "shop;poison", "shop;retry",
    "shop/$Transfer/$deadletterqueue", "shop/$management", "shop/$deadletterqueue/$management",
    "shop/subscriptions/all", "Shop/Subscriptions/all/$deadletterqueue", "shop/subscriptions/all;poison",
    "shop/subscriptions/all/$management", "shop/subscriptions/all/rules/$Default", "shop/subscriptions",
)  # fmt: skip
#: Other entities below its path, and what belongs to those.
BELOW = (
    "shop/orders", "shop/orders/$deadletterqueue", "shop/events/subscriptions/all", "shop/orders/$management",
    "shop/subscriptionsx", "Shop/Orders;poison",
)  # fmt: skip
#: What only looks like it.
STRANGERS = (
    "shopping", "shop-orders", "sho", "", "shopping/subscriptions/shop", "other/shop", "$cbs",
    "other/subscriptions/shop", "$system/deadletter",
)  # fmt: skip


@pytest.mark.parametrize(
    ("reach", "covered"),
    [(Reach.ENTITY, BELONGS), (Reach.BELOW, BELONGS + BELOW)],
    ids=["key of an entity", "token of the server's key"],
)
def test_a_key_covers_its_entity_and_what_belongs_to_it(reach: Reach, covered: tuple[str, ...]) -> None:
    for path in BELONGS + BELOW + STRANGERS:
        for scope in ("shop", "Shop"):
            assert grant_covers(reach, scope, path) == (path in covered), (scope, path)


def test_a_token_of_the_server_for_no_path_covers_everything() -> None:
    assert all(grant_covers(Reach.BELOW, "", path) for path in BELONGS + BELOW + STRANGERS)
    assert not any(grant_covers(Reach.ENTITY, "", path) for path in BELONGS + BELOW)


@pytest.mark.parametrize(
    ("pattern", "covered"),
    [("shop", BELONGS), ("shop/*", BELOW), ("*/orders", tuple(p for p in BELOW if "rders" in p))],
)
def test_roles_and_redaction_take_the_same_patterns(pattern: str, covered: tuple[str, ...]) -> None:
    rule = checked_rule(pattern, "body", "mask")
    for path in BELONGS + BELOW + STRANGERS:
        try:
            allowed = may((Grant(Role.ADMIN, pattern),), Permission.SEE, path)
        except InvalidPath:
            assert path in STRANGERS
            continue
        assert allowed == (path in covered), path
        assert bool(rules_for([rule], path)) == allowed, path


async def _client(door: Door, client: Client, key: str, *audiences: str) -> None:
    manager = Manager(client)
    await manager.open("$cbs")
    for audience in audiences:
        address = f"sb://h/{audience}"
        assert (await manager.put_token(address, token(key, "secret", address)))[0] == 202


async def _shop(broker: aio.AsyncBroker) -> None:
    """Make a queue and a topic that have keys, and others below their paths."""
    for path in ("shop", "shop/orders", "shop/orders/late"):
        await broker.create_queue(path)
    for path in ("news", "news/events", "private"):
        await broker.create_topic(path)
        await broker.create_subscription(path, "all")
    keys = SigningRules(broker)
    for path in ("shop", "news"):
        rights = ("Manage", "Send", "Listen")
        await keys.set(path, [SigningRule(name="own", rights=rights, primary="secret", secondary="x")], "me")


POLICIES = [AccessPolicy("server", "secret")]


def test_over_amqp_a_key_of_a_queue_opens_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, policies=POLICIES) as (broker, door), connected(door) as client:
            await _shop(broker)
            await _client(door, client, "own", "shop", "news")
            for address in ("shop", "shop/$deadletterqueue", "news/subscriptions/all"):
                assert (await client.link(sends=False, address=address, name=address)).attached
            for address in ("shop/orders", "shop/orders/$deadletterqueue", "news/events/subscriptions/all"):
                await client.link(sends=False, address=address, name=address)
                error = (await client.until(LinkDetached)).error
                assert error is not None
                assert error.condition == "amqp:unauthorized-access", address
            await client.link(sends=True, address="shop/orders", name="sender")
            assert (await client.until(LinkDetached)).error is not None
            manager = Manager(client)
            await manager.open("shop/orders/$management")
            asked = {"message-count": 10, "enqueued-time-utc": 0}
            assert (await manager.ask("batch-delete-messages", **asked))[0] == 401
            rules = Manager(client)
            await rules.open("news/events/subscriptions/all/$management")
            assert (await rules.ask("remove-rule", **{"rule-name": "$Default"}))[0] == 401

    run(work)


def test_over_amqp_a_token_of_the_server_covers_what_lies_below(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, policies=POLICIES) as (broker, door), connected(door) as client:
            await _shop(broker)
            await _client(door, client, "server", "shop")
            for address in ("shop", "shop/orders", "shop/orders/late"):
                assert (await client.link(sends=False, address=address, name=address)).attached
            await client.link(sends=False, address="news/subscriptions/all", name="news")
            assert (await client.until(LinkDetached)).error is not None

    run(work)


def test_over_atom_a_key_of_a_queue_administers_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        # The answer to a wrong key comes later with each.
        limits = DoorLimits(refusal_seconds=0.0)
        async with opened(tmp_path, policies=POLICIES, limits=limits) as (broker, door):
            await _shop(broker)
            address = f"http://127.0.0.1:{door.port}"
            async with httpx.AsyncClient(base_url=address) as client:
                signed = {path: token("own", "secret", f"{address}/{path}") for path in ("shop", "news")}

                async def status(method: str, path: str, key: str) -> int:
                    headers = {"Authorization": signed[key], "If-Match": "*"}
                    return (await client.request(method, f"/{path}", headers=headers)).status_code

                assert await status("GET", "shop", "shop") == 200
                assert await status("GET", "news/subscriptions/all/rules", "news") == 200
                for path, key in (
                    ("shop/orders", "shop"), ("shop/orders/late", "shop"), ("news/events", "news"),
                    ("news/events/subscriptions/all", "news"),
                    ("news/events/subscriptions/all/rules/$Default", "news"), ("$Resources/queues", "shop"),
                ):  # fmt: skip
                    assert await status("GET", path, key) == 401, path
                    assert await status("DELETE", path, key) == 401, path
                # A queue that one manages may not send what it gets where one may not send.
                entry = (
                    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
                    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/'
                    'servicebus/connect"><ForwardTo>shop/orders</ForwardTo></QueueDescription>'
                    "</content></entry>"
                )
                headers = {"Authorization": signed["shop"], "If-Match": "*"}
                refused = await client.put("/shop", content=entry, headers=headers)
                assert refused.status_code == 401
                assert (await broker.queue("shop")).options.forward_to is None

    run(work)


def test_errors_over_amqp_name_only_entities_that_the_asker_may_see(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, policies=POLICIES) as (store, door):
            await _shop(store)
            for key, audience, seen in (("own", "news", False), ("server", "", True)):
                async with connected(door) as client:
                    await _client(door, client, key, audience)
                    await client.link(sends=False, address="news/subscriptions/privat", name="a")
                    error = (await client.until(LinkDetached)).error
                    assert error is not None
                    text = str(error.description)
                    assert "could not be found" in text
                    assert "shop" not in text
                    assert "private" not in text
                    assert "news/subscriptions/all" in text
                    if seen:
                        await client.link(sends=False, address="privat", name="b")
                        error = (await client.until(LinkDetached)).error
                        assert error is not None
                        assert "private" in str(error.description)

    run(work)


@pytest.mark.stores("sqlite")
def test_errors_over_http_name_only_entities_that_the_asker_may_see(url: str, broker: Broker) -> None:
    broker.create_queue("orders")
    broker.create_queue("private")
    grants = (Grant(Role.VIEWER, "orde*"), Grant(Role.VIEWER, "privat"))
    with serving(url, anonymous=Identity("guest", grants)) as served:
        stranger, admin = served.client(None), served.client("admin")
        for path, name, seen in (("ordes", "orders", True), ("privat", "private", False)):
            said = stranger.get(f"/queues/{path}")
            assert said.status_code == 404
            assert (name in said.json()["detail"]) == seen
            assert ("none exists" in said.json()["detail"]) is False
            assert name in admin.get(f"/queues/{path}").json()["detail"]
