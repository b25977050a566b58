"""`lazaretto topic` and `lazaretto subscription`: create, list, show, update, delete."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, StoreOption, YesOption, confirm_deletion
from lazaretto.cli.exits import usage
from lazaretto.cli.listings import print_listing, takes_listing_options
from lazaretto.cli.queue_commands import size_facts
from lazaretto.cli.queue_options import changes_of, takes_options, takes_queue_changes, takes_queue_options
from lazaretto.engine.entities.topics import SubscriptionDescription, TopicDescription
from lazaretto.filters.rules import CorrelationFilter, Rule, SqlFilter
from lazaretto.model.entities import FIXED_OPTIONS, TOPIC_OPTIONS, EntityPath, QueueOptions, TopicOptions

app = typer.Typer(help="Create, list, show, update and delete topics.", rich_markup_mode=None)
subscriptions = typer.Typer(
    help="Create, list, show, update and delete subscriptions of topics.", rich_markup_mode=None
)

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's path.", show_default=False)]
NameArgument = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="The subscription's name.", show_default=False)
]
#: Options of a topic that can be changed.
_CHANGEABLE = [name for name in TOPIC_OPTIONS if name not in FIXED_OPTIONS]

_TOPIC_COLUMNS = ("topic", "status", "subscriptions", "scheduled", "unmatched", "expired")
_COLUMNS = ("subscription", "status", "active", "locked", "deferred", "dead letters", "rules")


@app.command("create")
@takes_options(*TOPIC_OPTIONS)
def create(
    context: typer.Context,
    topic: TopicArgument,
    given: dict[str, Any],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Create a topic, and the store if there is none yet."""
    call = Call.of(context, store, json)
    options = TopicOptions(**changes_of(given, QueueOptions()))
    EntityPath.parse(topic)
    with call.broker(create=True) as broker:
        created = broker.create_topic(topic, options)
    if call.json:
        output.json_object(created)
    else:
        output.line(f"created topic {created.path}")


@app.command("list")
@takes_listing_options
def list_(context: typer.Context, store: StoreOption = None, json: JsonOption = False) -> None:
    """List all topics."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.topics()
    print_listing(context, call, found, _TOPIC_COLUMNS, _topic_row, "no topics", shortened=None)


def _topic_row(topic: TopicDescription) -> tuple[object, ...]:
    return (
        topic.path,
        topic.status.value,
        topic.subscriptions,
        topic.scheduled,
        topic.unmatched,
        topic.expired,
    )


@app.command("show")
def show(
    context: typer.Context, topic: TopicArgument, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Show a topic: options and counts."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.topic(topic)
    if call.json:
        output.json_object(found)
        return
    output.line(f"topic {output.safe(found.path)}")
    output.fields(_topic_facts(found), "  ")


def _topic_facts(topic: TopicDescription) -> list[tuple[str, object]]:
    options = topic.options
    return [
        ("status", topic.status.value),
        ("subscriptions", topic.subscriptions),
        ("scheduled", topic.scheduled),
        ("unmatched", topic.unmatched),
        ("expired", topic.expired),
        ("created", output.shown_time(topic.created)),
        ("updated", output.shown_time(topic.updated)),
        ("default time to live", output.shown_duration(options.default_time_to_live)),
        ("requires duplicate detection", "yes" if options.requires_duplicate_detection else "no"),
        ("duplicate detection window", output.shown_duration(options.duplicate_detection_window)),
        ("max message size", options.max_message_size),
        *size_facts(topic.size, options.max_size),
        ("auto-delete on idle", output.shown_duration(options.auto_delete_on_idle)),
    ]


@app.command("update")
@takes_options(*_CHANGEABLE, defaults=False)
def update(
    context: typer.Context,
    topic: TopicArgument,
    given: dict[str, Any],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Change options of a topic; what is not given stays as it is."""
    call = Call.of(context, store, json)
    changes = changes_of(given, QueueOptions())
    if not changes:
        raise usage("nothing to change; give at least one option, see `lazaretto topic update --help`")
    with call.broker() as broker:
        after = broker.update_topic(topic, **changes)
    if call.json:
        output.json_object(after)
    else:
        output.line(f"changed in topic {output.safe(after.path)}: {', '.join(changes)}")


@app.command("delete")
def delete(
    context: typer.Context,
    topic: TopicArgument,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a topic with its subscriptions and all their messages. Asks first."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.topic(topic)
        subscribers = output.plural(found.subscriptions, "subscription")
        confirm_deletion(f"topic {output.safe(found.path)} with {subscribers} and all their messages", yes)
        broker.delete_topic(topic)
    if call.json:
        output.json_object({"deleted": found.path})
    else:
        output.line(f"deleted topic {output.safe(found.path)}")


@subscriptions.command("create")
@takes_queue_options
def create_subscription(
    context: typer.Context,
    topic: TopicArgument,
    name: NameArgument,
    given: dict[str, Any],
    filter_: Annotated[
        str | None,
        typer.Option("--filter", metavar="SQL", help="Which messages it gets [all].", show_default=False),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Create a subscription of a topic, with one rule.

    Durations are 30, 30s, 5m, 2h or 1d.
    """
    call = Call.of(context, store, json)
    options = QueueOptions(**changes_of(given, QueueOptions()))
    rules = None if filter_ is None else [Rule(filter=SqlFilter(filter_))]
    with call.broker() as broker:
        created = broker.create_subscription(topic, name, options, rules)
    if call.json:
        output.json_object(created)
    else:
        output.line(f"created subscription {created.queue.path}")


def _row(found: SubscriptionDescription) -> tuple[object, ...]:
    counts = found.queue.counts
    return (
        found.name,
        found.queue.status.value,
        counts.active,
        counts.locked,
        counts.deferred,
        counts.dead_letter + counts.transfer_dead_letter,
        ", ".join(rule.name for rule in found.rules),
    )


@subscriptions.command("list")
@takes_listing_options
def list_subscriptions(
    context: typer.Context, topic: TopicArgument, store: StoreOption = None, json: JsonOption = False
) -> None:
    """List a topic's subscriptions with their counts and rules."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.subscriptions(topic)
    print_listing(context, call, found, _COLUMNS, _row, "no subscriptions")


@subscriptions.command("show")
def show_subscription(
    context: typer.Context,
    topic: TopicArgument,
    name: NameArgument,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show a subscription: counts and rules. `lazaretto queue show` with its path shows its options."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.subscription(topic, name)
    if call.json:
        output.json_object(found)
        return
    output.line(f"subscription {output.safe(found.queue.path)}")
    counts = dataclasses.asdict(found.queue.counts)
    output.fields([("status", found.queue.status.value), *counts.items()], "  ")
    output.line("rules")
    output.fields([(rule.name, describe_rule(rule)) for rule in found.rules], "  ")


def describe_rule(rule: Rule) -> str:
    """Return a rule's filter and action as one reads them."""
    wanted = rule.filter
    if isinstance(wanted, SqlFilter):
        text = wanted.expression
    elif isinstance(wanted, CorrelationFilter):
        pairs = wanted.wanted().items()
        text = " and ".join(f"{'sys.' if s == 'sys' else ''}{n} = {v!r}" for (s, n), v in pairs)
    else:
        text = type(wanted).__name__.removesuffix("Filter").lower()
    return text if rule.action is None else f"{text}, then {rule.action.expression}"


@subscriptions.command("update")
@takes_queue_changes
def update_subscription(
    context: typer.Context,
    topic: TopicArgument,
    name: NameArgument,
    given: dict[str, Any],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Change options of a subscription; what is not given stays as it is."""
    call = Call.of(context, store, json)
    if not given:
        raise usage("nothing to change; give at least one option, see `lazaretto subscription update --help`")
    with call.broker() as broker:
        before = broker.subscription(topic, name).queue.options
        changes = changes_of(given, before)
        after = broker.update_subscription(topic, name, **changes)
    if call.json:
        output.json_object(after)
    else:
        output.line(
            f"changed in subscription {output.safe(after.queue.path)}: {', '.join(changes) or 'nothing'}"
        )


@subscriptions.command("delete")
def delete_subscription(
    context: typer.Context,
    topic: TopicArgument,
    name: NameArgument,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a subscription with all its messages, dead letters too. Asks first."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.subscription(topic, name)
        path = found.queue.path
        messages = output.plural(found.queue.counts.total, "message")
        confirm_deletion(f"subscription {output.safe(path)} with {messages}", yes)
        broker.delete_subscription(topic, name)
    if call.json:
        output.json_object({"deleted": path})
    else:
        output.line(f"deleted subscription {output.safe(path)}")


def add_to(program: typer.Typer) -> None:
    """Add the commands to the command line."""
    program.add_typer(app, name="topic")
    program.add_typer(subscriptions, name="subscription")
