"""`lazaretto topic`, `lazaretto subscription` and `lazaretto rule`."""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from lazaretto.broker.broker import Broker
from lazaretto.cli import output, parse
from lazaretto.cli.call import ChangeOptions, ListingOptions
from lazaretto.cli.command import Group, Options, argument, option
from lazaretto.cli.completion import names_of_subscriptions, names_of_topics
from lazaretto.cli.entity_commands import (
    Entity,
    ExistOption,
    Key,
    SubscriptionArgument,
    Texts,
    TopicArgument,
    add_entity,
    create_or_find,
    key_of,
    messages_of,
)
from lazaretto.cli.exits import CommandError, usage
from lazaretto.cli.output import Columns, Facts
from lazaretto.cli.queue_options import (
    given_options,
    option_facts,
    queue_changes,
    queue_settings,
    topic_changes,
    topic_settings,
)
from lazaretto.commands import (
    AddRule,
    Command,
    CreateSubscription,
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    RemoveRule,
    UpdateSubscription,
    UpdateTopic,
)
from lazaretto.engine.entities.topics import SubscriptionDescription, TopicDescription
from lazaretto.engine.messages.prepare import view_of
from lazaretto.errors import InvalidMessage
from lazaretto.model.entities import TopicOptions
from lazaretto.model.filters.records import rule_record
from lazaretto.model.filters.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
    describe_filter,
    judge_of,
)
from lazaretto.model.filters.view import MessageView
from lazaretto.model.messages import Message
from lazaretto.model.records.messages import message_of, values_of

commands = Group()
topics = commands.group("topic")
subscriptions = commands.group("subscription")


#: What is told of a topic in a list, and where it is shown.
_FACTS = ("status", "subscriptions", "scheduled", "unmatched", "expired")


def _topic_facts(topic: TopicDescription) -> Facts:
    return [
        *((name, getattr(topic, name)) for name in (*_FACTS, "created", "updated")),
        ("size", topic.size),
        *option_facts(topic.options),
    ]


def _sections(description: SubscriptionDescription) -> list[tuple[str, Facts]]:
    counts = dataclasses.asdict(description.queue.counts)
    return [
        ("", [("status", description.queue.status), *counts.items()]),
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


_FILTER = Annotated[str | None, option("Condition for its messages.  [default: all]", "SQL", "--filter")]

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
        columns={"topic": "path", **{name: name for name in _FACTS}},
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
        columns={
            "subscription": "name",
            "status": "queue.status",
            **{name: f"queue.counts.{name}" for name in ("active", "locked", "deferred")},
            "dead letters": lambda one: one.queue.counts.dead_letter + one.queue.counts.transfer_dead_letter,
            "rules": lambda one: ", ".join(rule.name for rule in one.rules),
        },
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


rules = commands.group("rule")

_JUDGED = ("message", "rule", "matches", "why")
_SHOWN: Columns = {name: operator.itemgetter(name) for name in _JUDGED} | {
    "matches": lambda judged: {True: "yes", False: "no", None: "error"}[judged["matches"]]
}
RuleArgument = Annotated[str, argument("Name of the rule.")]
FilterOption = Annotated[str | None, option("Condition in SQL.", "SQL")]


@dataclasses.dataclass(frozen=True, slots=True)
class Equal:
    """What a message has, or must have."""

    properties: Annotated[
        list[str] | None, option("Application property; repeatable.", "NAME=VALUE", "--property", "-p")
    ] = None
    subject: Annotated[str | None, option("Subject.")] = None
    correlation_id: Annotated[str | None, option("Correlation ID.", "ID")] = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of a message, by name. Raises BadParameter."""
        properties = values_of(parse.properties(self.properties or []))
        return {"subject": self.subject, "correlation_id": self.correlation_id, "properties": properties}


EqualOptions = Annotated[Equal, Options.of(Equal)]


@rules.command("list")
def list_(call: ListingOptions, topic: TopicArgument, name: SubscriptionArgument) -> None:
    """List the rules of a subscription."""
    with call.broker() as broker:
        records = broker.subscription(topic, name).rules
    columns: Columns = {"rule": "name", "filter, and action": describe_rule}
    call.print_all(records, columns, "no rules: it receives nothing")


@rules.command("add")
def add(
    call: ChangeOptions,
    topic: TopicArgument,
    name: SubscriptionArgument,
    rule: RuleArgument,
    equal: EqualOptions,
    filter_: FilterOption = None,
    every: Annotated[bool, option("Select every message.", "", "--all")] = False,
    none: Annotated[bool, option("Select no message.")] = False,
    action: Annotated[str | None, option("Changes to the message: SET and REMOVE.", "SQL")] = None,
    exist_ok: ExistOption = False,
) -> None:
    """Add a rule to a subscription.

    --filter selects messages by a condition; --property, --subject and --correlation-id select those that
    have exactly these values. Values of --property are numbers, true, false, or text: 'amount=5',
    'name="5"'.
    """
    condition: Any = TrueFilter() if every else FalseFilter()
    same = {field: value for field, value in equal.fields().items() if value}
    if sum([filter_ is not None, every, none, bool(same)]) != 1:
        raise usage("give --filter, --all, --none, or values to match (--property, --subject, …)")
    if filter_ is not None:
        condition = SqlFilter(filter_)
    elif same:
        condition = CorrelationFilter(**same)
    made = Rule(rule, condition, None if action is None else SqlAction(action))
    with call.broker() as broker:
        command = AddRule(topic=topic, subscription=name, rule=rule_record(made))
        new = create_or_find(call, broker, command, exist_ok) is not None
    call.print(
        made, f"{f'added rule {rule}' if new else f'rule {rule} exists already'}: {describe_rule(made)}"
    )


@rules.command("delete", also="remove")
def delete(call: ChangeOptions, topic: TopicArgument, name: SubscriptionArgument, rule: RuleArgument) -> None:
    """Delete a rule from a subscription.

    A subscription without rules gets no messages.
    """
    with call.broker() as broker:
        call.run(broker, RemoveRule(topic=topic, subscription=name, rule=rule))
        rest = [one.name for one in broker.subscription(topic, name).rules]
    names = ", ".join(rest) or "none: the subscription receives nothing"
    call.print({"deleted": rule, "left": rest}, f"deleted rule {rule}; left: {names}")


@rules.command("test")
def test(
    call: ListingOptions,
    equal: EqualOptions,
    topic: Annotated[str | None, argument("Path of the topic.", complete=names_of_topics)] = None,
    name: Annotated[
        str | None,
        argument("Subscription whose rules are tested.", "[SUBSCRIPTION]", complete=names_of_subscriptions),
    ] = None,
    filter_: FilterOption = None,
    file: Annotated[Path | None, option("Messages as JSON Lines; - is standard input.", "", "-f")] = None,
) -> None:
    """Test which rules match a message, and say why.

    The rules are those of a subscription, or the condition of --filter. The message has the --property,
    --subject and --correlation-id that are given, or is read from --file. Nothing is sent.
    """
    if (filter_ is None) == (name is None):
        raise usage("give a topic and a subscription, or --filter")
    tested: Iterable[Rule]
    if filter_ is not None:
        tested = [Rule("--filter", SqlFilter(filter_))]
    else:
        assert topic is not None
        assert name is not None
        with call.broker() as broker:
            tested = broker.subscription(topic, name).rules
    judges = [judge_of(rule) for rule in tested]
    judgements = (
        dict(zip(_JUDGED, (number, judged.rule, judged.matches, judged.why), strict=True))
        for number, view in enumerate(_messages(file, Message(b"", **equal.fields())), 1)
        for judged in (judge(view) for judge in judges)
    )
    call.print_all(judgements, _SHOWN, "no rules: nothing matches")


def _messages(file: Path | None, like: Message) -> Iterator[MessageView]:
    """Yield messages as rules see them: one, or those of a file."""
    if file is None:
        yield view_of(like)
        return
    if str(file) == "-":
        yield from _lines(sys.stdin.buffer, like)
    else:
        with file.open("rb") as lines:
            yield from _lines(lines, like)


def _lines(lines: BinaryIO, like: Message) -> Iterator[MessageView]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield view_of(message_of(line, like))
            except (ValueError, InvalidMessage) as error:
                raise CommandError("bad_line", f"line {number}: {error}") from error
