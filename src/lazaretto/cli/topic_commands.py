"""`lazaretto topic` and `lazaretto subscription`: create, list, show, update, delete."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from lazaretto.broker.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.command import Group
from lazaretto.cli.entity_commands import (
    Entity,
    Key,
    SubscriptionArgument,
    Texts,
    TopicArgument,
    add_entity,
    key_of,
    messages_of,
)
from lazaretto.cli.output import Facts
from lazaretto.cli.queue_options import (
    given_options,
    option_facts,
    queue_changes,
    queue_settings,
    topic_changes,
    topic_settings,
)
from lazaretto.commands import (
    Command,
    CreateSubscription,
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    UpdateSubscription,
    UpdateTopic,
)
from lazaretto.engine.entities.topics import SubscriptionDescription, TopicDescription
from lazaretto.model.entities import TopicOptions
from lazaretto.model.filters.records import rule_record
from lazaretto.model.filters.rules import Rule, SqlFilter, describe_filter

commands = Group()
topics = commands.group("topic")
subscriptions = commands.group("subscription")


def _topic_row(topic: TopicDescription) -> tuple[object, ...]:
    return (
        topic.path,
        topic.status.value,
        topic.subscriptions,
        topic.scheduled,
        topic.unmatched,
        topic.expired,
    )


def _topic_facts(topic: TopicDescription) -> Facts:
    return [
        ("status", topic.status.value),
        ("subscriptions", topic.subscriptions),
        ("scheduled", topic.scheduled),
        ("unmatched", topic.unmatched),
        ("expired", topic.expired),
        ("created", output.shown_time(topic.created)),
        ("updated", output.shown_time(topic.updated)),
        ("size", topic.size),
        *option_facts(topic.options),
    ]


def _subscription_row(description: SubscriptionDescription) -> tuple[object, ...]:
    counts = description.queue.counts
    return (
        description.name,
        description.queue.status.value,
        counts.active,
        counts.locked,
        counts.deferred,
        counts.dead_letter + counts.transfer_dead_letter,
        ", ".join(rule.name for rule in description.rules),
    )


def _sections(description: SubscriptionDescription) -> list[tuple[str, Facts]]:
    counts = dataclasses.asdict(description.queue.counts)
    return [
        ("", [("status", description.queue.status.value), *counts.items()]),
        ("rules", [(rule.name, describe_rule(rule)) for rule in description.rules]),
    ]


def describe_rule(rule: Rule) -> str:
    """Return a rule's filter and action as one reads them."""
    text = describe_filter(rule.filter)
    return text if rule.action is None else f"{text}, then {rule.action.expression}"


def _new_subscription(key: Key, values: Mapping[str, Any]) -> Command:
    settings = dict(values)
    condition = settings.pop("filter", None)
    rules = None if condition is None else [rule_record(Rule(filter=SqlFilter(condition)))]
    topic, name = key
    return CreateSubscription(topic=topic, subscription=name, options=given_options(settings), rules=rules)


_FILTER = Annotated[
    str | None,
    typer.Option(
        "--filter", metavar="SQL", help="Condition for its messages.  [default: all]", show_default=False
    ),
]

add_entity(
    topics,
    Entity(
        noun="topic",
        texts=Texts(
            create="Create a topic, and the store if there is none.",
            list="List all topics.",
            show="Show a topic: options and counts.",
            delete="Delete a topic with its subscriptions.\n\nAll their messages are deleted too.",
        ),
        key=key_of(topic=TopicArgument),
        settings=topic_settings,
        changes=topic_changes,
        columns=("topic", "status", "subscriptions", "scheduled", "unmatched", "expired"),
        row=_topic_row,
        path=lambda found: found.path,
        options=lambda found: found.options,
        sections=lambda found: [("", _topic_facts(found))],
        losses=lambda found: f"{output.plural(found.subscriptions, 'subscription')} and all their messages",
        find=Broker.topic,
        find_all=Broker.topics,
        create=lambda key, given: CreateTopic(path=key[0], options=given_options(given, TopicOptions)),
        update=lambda key, changes: UpdateTopic(path=key[0], changes=changes),
        delete=lambda key: DeleteTopic(path=key[0]),
    ),
)
add_entity(
    subscriptions,
    Entity(
        noun="subscription",
        texts=Texts(
            create="Create a subscription of a topic, with one rule.",
            list="List a topic's subscriptions with counts and rules.",
            show="Show a subscription: counts and rules.\n\n"
            "`lazaretto queue show` with its path shows its options.",
            delete="Delete a subscription with all its messages.",
        ),
        key=key_of(topic=TopicArgument, name=SubscriptionArgument),
        within=key_of(topic=TopicArgument),
        settings=queue_settings.with_options(filter=(_FILTER, None)),
        changes=queue_changes,
        creates_store=False,
        columns=("subscription", "status", "active", "locked", "deferred", "dead letters", "rules"),
        row=_subscription_row,
        shortened="rules",
        path=lambda found: found.queue.path,
        options=lambda found: found.queue.options,
        sections=_sections,
        losses=lambda found: messages_of(found.queue.counts),
        find=Broker.subscription,
        find_all=Broker.subscriptions,
        create=_new_subscription,
        update=lambda key, changes: UpdateSubscription(topic=key[0], subscription=key[1], changes=changes),
        delete=lambda key: DeleteSubscription(topic=key[0], subscription=key[1]),
    ),
)
