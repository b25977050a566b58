"""`lazaretto rule`: list, add, delete and test the rules of a subscription."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import typer

from lazaretto.cli import parse
from lazaretto.cli.call import ChangeOptions
from lazaretto.cli.command import Group, Options
from lazaretto.cli.completion import names_of_subscriptions, names_of_topics
from lazaretto.cli.entity_commands import ExistOption, SubscriptionArgument, TopicArgument, create_or_find
from lazaretto.cli.exits import CommandError, usage
from lazaretto.cli.listings import ListingOptions
from lazaretto.cli.topic_commands import describe_rule
from lazaretto.commands import AddRule, RemoveRule
from lazaretto.engine.messages.prepare import view_of
from lazaretto.errors import InvalidMessage
from lazaretto.model.filters.records import rule_record
from lazaretto.model.filters.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
    judge_of,
)
from lazaretto.model.filters.view import MessageView
from lazaretto.model.messages import Message
from lazaretto.model.records.messages import message_of, values_of

commands = Group()
rules = commands.group("rule")

_JUDGED = ("message", "rule", "matches", "why")
RuleArgument = Annotated[str, typer.Argument(metavar="RULE", help="Name of the rule.", show_default=False)]
FilterOption = Annotated[
    str | None, typer.Option("--filter", metavar="SQL", help="Condition in SQL.", show_default=False)
]


class Equal(NamedTuple):
    """What a message has, or must have."""

    subject: str | None
    correlation_id: str | None
    properties: dict[str, Any]


def _equal(properties: list[str] | None, **others: str | None) -> Equal:
    return Equal(properties=values_of(parse.properties(properties or [])), **others)


def _text(name: str, metavar: str, help_: str) -> tuple[Any, Any]:
    return Annotated[str | None, typer.Option(name, metavar=metavar, help=help_)], None


EqualOptions = Annotated[
    Equal,
    Options(
        {
            "properties": (
                Annotated[
                    list[str] | None,
                    typer.Option(
                        "--property", "-p", metavar="NAME=VALUE", help="Application property; repeatable."
                    ),
                ],
                None,
            ),
            "subject": _text("--subject", "SUBJECT", "Subject."),
            "correlation_id": _text("--correlation-id", "ID", "Correlation ID."),
        },
        lambda context, given: _equal(**given),
    ),
]


@rules.command("list")
def list_(call: ListingOptions, topic: TopicArgument, name: SubscriptionArgument) -> None:
    """List the rules of a subscription."""
    with call.broker() as broker:
        records = broker.subscription(topic, name).rules
    columns, empty = ("rule", "filter, and action"), "no rules: it receives nothing"
    call.print_all(records, columns, lambda rule: (rule.name, describe_rule(rule)), empty)


@rules.command("add")
def add(
    call: ChangeOptions,
    topic: TopicArgument,
    name: SubscriptionArgument,
    rule: RuleArgument,
    equal: EqualOptions,
    filter_: FilterOption = None,
    every: Annotated[bool, typer.Option("--all", help="Select every message.")] = False,
    none: Annotated[bool, typer.Option("--none", help="Select no message.")] = False,
    action: Annotated[
        str | None,
        typer.Option(
            "--action", metavar="SQL", help="Changes to the message: SET and REMOVE.", show_default=False
        ),
    ] = None,
    exist_ok: ExistOption = False,
) -> None:
    """Add a rule to a subscription.

    --filter selects messages by a condition; --property, --subject and --correlation-id select those that
    have exactly these values. Values of --property are numbers, true, false, or text: 'amount=5',
    'name="5"'.
    """
    condition: Any = TrueFilter() if every else FalseFilter()
    same = {field: value for field, value in equal._asdict().items() if value}
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
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]", help="Path of the topic.", show_default=False, autocompletion=names_of_topics
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[SUBSCRIPTION]",
            help="Subscription whose rules are tested.",
            show_default=False,
            autocompletion=names_of_subscriptions,
        ),
    ] = None,
    filter_: FilterOption = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Messages as JSON Lines; - is standard input."),
    ] = None,
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
        for number, view in enumerate(_messages(file, Message(b"", **equal._asdict())), 1)
        for judged in (judge(view) for judge in judges)
    )
    call.print_all(judgements, _JUDGED, _judged_row, "no rules: nothing matches")


def _judged_row(judged: dict[str, Any]) -> tuple[object, ...]:
    number, rule, matches, why = judged.values()
    return number, rule, {True: "yes", False: "no", None: "error"}[matches], why


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
