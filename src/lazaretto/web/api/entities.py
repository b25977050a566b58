"""Queues, topics, subscriptions and their rules."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.responses import Response

from lazaretto import commands
from lazaretto.engine.entities.topics import SubscriptionDescription, TopicDescription
from lazaretto.engine.messages.prepare import view_of
from lazaretto.errors import EntityExists, InvalidMessage
from lazaretto.model.descriptions import QueueDescription
from lazaretto.model.filters.rules import Rule, SqlFilter, judge_of
from lazaretto.model.grants import Permission
from lazaretto.model.messages import Message
from lazaretto.model.records.messages import message_of
from lazaretto.web.answers import json_of
from lazaretto.web.routes import Call, Query, route

T = TypeVar("T")

Options = dict[str, Any]
Creation = commands.CreateQueue | commands.CreateTopic | commands.CreateSubscription | commands.AddRule


class QueuesQuery(Query, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    after: str | None = None
    name_contains: str | None = None


class OfTopic(Query, kw_only=True, frozen=True):
    topic: str


class OfSubscription(OfTopic, kw_only=True, frozen=True):
    subscription: str


class QueuePage(msgspec.Struct):
    """Queues in the order of their paths. `next`: what `after` is on the next page; null on the last."""

    items: list[QueueDescription]
    next: str | None


class Rules(msgspec.Struct):
    """What a new subscription has: its options, and its rules instead of the default one."""

    options: Options = {}
    rules: list[dict[str, Any]] | None = None


async def _created(call: Call, command: Creation, read: Callable[[], Awaitable[T]]) -> T | Response:
    """Create something; if it exists as it is to be, answer that nothing had to change."""
    try:
        await call.change(command)
        return await read()
    except EntityExists:
        await call.change(msgspec.structs.replace(command, exist_ok=True))
        return Response(json_of(await read()), media_type="application/json")


@route("GET", "/queues", Permission.SEE)
async def list_queues(call: Call, query: QueuesQuery) -> QueuePage:
    """List queues in the order of their paths, with counts of their messages."""
    page = await call.broker.queues(limit=query.limit, after=query.after, name_contains=query.name_contains)
    return QueuePage(page, page[-1].path if len(page) == query.limit else None)


@route("GET", "/queues/{path:path}", Permission.SEE)
async def show_queue(call: Call, path: str) -> QueueDescription:
    """Show a queue: its options, its status, and exact counts of its messages."""
    return await call.broker.queue(path)


@route("PUT", "/queues/{path:path}", Permission.ADMINISTER, success=201)
async def create_queue(call: Call, path: str, body: Options) -> QueueDescription | Response:
    """Create a queue. If it exists with the same options, nothing changes and the answer is 200."""
    made = commands.CreateQueue(path=path, options=body)
    return await _created(call, made, lambda: call.broker.queue(path))


@route("PATCH", "/queues/{path:path}", Permission.ADMINISTER)
async def update_queue(call: Call, path: str, body: Options) -> QueueDescription:
    """Change the options that are given. Of a policy, only the options in it that are given change."""
    await call.change(commands.UpdateQueue(path=path, changes=body))
    return await call.broker.queue(path)


@route("DELETE", "/queues/{path:path}", Permission.ADMINISTER, success=204)
async def delete_queue(call: Call, path: str) -> None:
    """Delete a queue with all its messages and dead letters."""
    await call.change(commands.DeleteQueue(path=path))


@route("GET", "/topics", Permission.SEE)
async def list_topics(call: Call) -> list[TopicDescription]:
    """List all topics."""
    return await call.broker.topics()


@route("GET", "/topics/{path:path}", Permission.SEE)
async def show_topic(call: Call, path: str) -> TopicDescription:
    """Show a topic."""
    return await call.broker.topic(path)


@route("PUT", "/topics/{path:path}", Permission.ADMINISTER, success=201)
async def create_topic(call: Call, path: str, body: Options) -> TopicDescription | Response:
    """Create a topic. If it exists with the same options, nothing changes and the answer is 200."""
    made = commands.CreateTopic(path=path, options=body)
    return await _created(call, made, lambda: call.broker.topic(path))


@route("PATCH", "/topics/{path:path}", Permission.ADMINISTER)
async def update_topic(call: Call, path: str, body: Options) -> TopicDescription:
    """Change the options that are given."""
    await call.change(commands.UpdateTopic(path=path, changes=body))
    return await call.broker.topic(path)


@route("DELETE", "/topics/{path:path}", Permission.ADMINISTER, success=204)
async def delete_topic(call: Call, path: str) -> None:
    """Delete a topic with its subscriptions and all their messages."""
    await call.change(commands.DeleteTopic(path=path))


@route("GET", "/subscriptions", Permission.SEE)
async def list_subscriptions(call: Call, query: OfTopic) -> list[SubscriptionDescription]:
    """List the subscriptions of a topic, with their rules."""
    return await call.broker.subscriptions(query.topic)


@route("GET", "/subscriptions/{name:path}", Permission.SEE)
async def show_subscription(call: Call, name: str, query: OfTopic) -> SubscriptionDescription:
    """Show a subscription, with its rules."""
    return await call.broker.subscription(query.topic, name)


@route("PUT", "/subscriptions/{name:path}", Permission.ADMINISTER, success=201)
async def create_subscription(
    call: Call, name: str, query: OfTopic, body: Rules
) -> SubscriptionDescription | Response:
    """Create a subscription, with the rules that are given or one that takes every message.

    If it exists with the same options, and with the rules if any are given, nothing changes and the answer is
    200.
    """
    made = commands.CreateSubscription(
        topic=query.topic, subscription=name, options=body.options, rules=body.rules
    )
    return await _created(call, made, lambda: call.broker.subscription(query.topic, name))


@route("PATCH", "/subscriptions/{name:path}", Permission.ADMINISTER)
async def update_subscription(
    call: Call, name: str, query: OfTopic, body: Options
) -> SubscriptionDescription:
    """Change the options that are given."""
    change = commands.UpdateSubscription(topic=query.topic, subscription=name, changes=body)
    await call.change(change)
    return await call.broker.subscription(query.topic, name)


@route("DELETE", "/subscriptions/{name:path}", Permission.ADMINISTER, success=204)
async def delete_subscription(call: Call, name: str, query: OfTopic) -> None:
    """Delete a subscription with all its messages and dead letters."""
    await call.change(commands.DeleteSubscription(topic=query.topic, subscription=name))


@route("PUT", "/rules/{name:path}", Permission.ADMINISTER, success=201)
async def add_rule(
    call: Call, name: str, query: OfSubscription, body: Options
) -> SubscriptionDescription | Response:
    """Add a rule to a subscription. If it has the same one already, nothing changes and the answer is 200."""
    rule = {**body, "name": name}
    made = commands.AddRule(topic=query.topic, subscription=query.subscription, rule=rule)
    return await _created(call, made, lambda: call.broker.subscription(query.topic, query.subscription))


@route("DELETE", "/rules/{name:path}", Permission.ADMINISTER)
async def remove_rule(call: Call, name: str, query: OfSubscription) -> SubscriptionDescription:
    """Remove a rule from a subscription."""
    await call.change(commands.RemoveRule(topic=query.topic, subscription=query.subscription, rule=name))
    return await call.broker.subscription(query.topic, query.subscription)


class RuleTest(msgspec.Struct, kw_only=True):
    """What is tested. `filter`: a condition in SQL instead of the subscription's rules.

    `messages`: as `POST /messages` takes them; a message without a body has an empty one.
    """

    filter: str | None = None
    messages: Annotated[list[dict[str, msgspec.Raw]], Meta(max_length=1000)]


class Judged(msgspec.Struct):
    """What a rule says of a message. `matches`: null if it cannot say, and `why` is the error then."""

    message: int
    rule: str
    matches: bool | None
    why: str


@route("POST", "/rules/test", Permission.SEE, searches=True)
async def try_rules(call: Call, query: OfSubscription, body: RuleTest) -> list[Judged]:
    """Test which rules match messages, and say why; nothing is sent."""
    rules = (await call.broker.subscription(query.topic, query.subscription)).rules
    if body.filter is not None:
        rules = (Rule("filter", SqlFilter(body.filter)),)
    return await asyncio.to_thread(_judged, rules, body.messages)


def _judged(rules: Sequence[Rule], messages: Sequence[dict[str, msgspec.Raw]]) -> list[Judged]:
    judges = [judge_of(rule) for rule in rules]
    judged = []
    for number, message in enumerate(messages, 1):
        view = view_of(_message(number, message))
        judged += [Judged(number, *dataclasses.astuple(judge(view))) for judge in judges]
    return judged


def _message(number: int, fields: dict[str, msgspec.Raw]) -> Message:
    named = {"body": msgspec.Raw(b'""')} if not {"body", "body_base64"} & fields.keys() else {}
    try:
        return message_of(msgspec.json.encode(named | fields), Message(b""))
    except ValueError as error:
        raise InvalidMessage(f"message {number}: {error}") from None
