"""`lazaretto rule`: list, add, delete and test the rules of a subscription."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, StoreOption
from lazaretto.cli.exits import CommandError, usage
from lazaretto.cli.json_lines import message_of
from lazaretto.cli.listings import print_listing, takes_listing_options
from lazaretto.cli.parse import properties
from lazaretto.cli.topic_commands import NameArgument, TopicArgument, describe_rule
from lazaretto.engine.messages.prepare import prepare
from lazaretto.errors import InvalidMessage
from lazaretto.filters.judge import judge_of
from lazaretto.filters.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from lazaretto.filters.view import MessageView
from lazaretto.model.headers import decode_headers
from lazaretto.model.messages import Message

app = typer.Typer(help="List, add, delete and test the rules of a subscription.", rich_markup_mode=None)

_JUDGED = ("message", "rule", "matches", "why")
RuleArgument = Annotated[str, typer.Argument(metavar="RULE", help="The rule's name.", show_default=False)]
FilterOption = Annotated[
    str | None, typer.Option("--filter", metavar="SQL", help="A condition.", show_default=False)
]
PropertyOption = Annotated[
    list[str] | None,
    typer.Option("--property", "-p", metavar="NAME=VALUE", help="A property; repeat for more."),
]
SubjectOption = Annotated[str | None, typer.Option("--subject", help="The subject.", show_default=False)]
CorrelationOption = Annotated[
    str | None, typer.Option("--correlation-id", help="The correlation id.", show_default=False)
]


@app.command("list")
@takes_listing_options
def list_(
    context: typer.Context,
    topic: TopicArgument,
    name: NameArgument,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List the rules of a subscription."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        rules = broker.subscription(topic, name).rules
    print_listing(
        context,
        call,
        rules,
        ("rule", "filter, and action"),
        lambda rule: (rule.name, describe_rule(rule)),
        "no rules: it gets nothing",
    )


@app.command("add")
def add(
    context: typer.Context,
    topic: TopicArgument,
    name: NameArgument,
    rule: RuleArgument,
    filter_: FilterOption = None,
    every: Annotated[bool, typer.Option("--all", help="Every message.")] = False,
    none: Annotated[bool, typer.Option("--none", help="No message.")] = False,
    property_: PropertyOption = None,
    subject: SubjectOption = None,
    correlation_id: CorrelationOption = None,
    action: Annotated[
        str | None,
        typer.Option("--action", metavar="SQL", help="What is changed: SET and REMOVE.", show_default=False),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Add a rule: --filter for a condition, or --property, --subject, --correlation-id for equality.

    Values of --property are numbers, true, false, or text: 'amount=5', 'name="5"'.
    """
    call = Call.of(context, store, json)
    named = {"subject": subject, "correlation_id": correlation_id, "properties": values_of(property_ or [])}
    equal: dict[str, Any] = {field: value for field, value in named.items() if value}
    ways = [filter_ is not None, every, none, bool(equal)]
    if sum(ways) != 1:
        raise usage("give one of --filter, --all, --none, or what must be equal (--property, --subject, …)")
    wanted: Any = TrueFilter() if every else FalseFilter()
    if filter_ is not None:
        wanted = SqlFilter(filter_)
    elif equal:
        wanted = CorrelationFilter(**equal)
    made = Rule(rule, wanted, None if action is None else SqlAction(action))
    with call.broker() as broker:
        broker.add_rule(topic, name, made)
    if call.json:
        output.json_object(made)
    else:
        output.line(output.safe(f"added rule {rule}: {describe_rule(made)}"))


@app.command("delete")
@app.command("remove", hidden=True)
def delete(
    context: typer.Context,
    topic: TopicArgument,
    name: NameArgument,
    rule: RuleArgument,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a rule; without rules a subscription gets nothing."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        left = broker.remove_rule(topic, name, rule).rules
    if call.json:
        output.json_object({"deleted": rule, "left": [one.name for one in left]})
    else:
        names = ", ".join(one.name for one in left) or "none: the subscription gets nothing"
        output.line(output.safe(f"deleted rule {rule}; left: {names}"))


@app.command("test")
def test(
    context: typer.Context,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="The topic's path.", show_default=False)
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="SUBSCRIPTION", help="The subscription whose rules are asked.", show_default=False
        ),
    ] = None,
    filter_: FilterOption = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Messages as lines of JSON; - is standard input."),
    ] = None,
    property_: PropertyOption = None,
    subject: SubjectOption = None,
    correlation_id: CorrelationOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Say which rules match a message, and why: those of a subscription, or --filter.

    The message is made of --property, --subject, --correlation-id, or read from --file. Nothing is sent.
    """
    call = Call.of(context, store, json)
    if (filter_ is None) == (name is None):
        raise usage("give a topic and a subscription, or --filter")
    rules: Iterable[Rule]
    if filter_ is not None:
        rules = [Rule("--filter", SqlFilter(filter_))]
    else:
        assert topic is not None
        assert name is not None
        with call.broker() as broker:
            rules = broker.subscription(topic, name).rules
    like = Message(b"", subject=subject, correlation_id=correlation_id, properties=values_of(property_ or []))
    judges = [judge_of(rule) for rule in rules]
    rows = [
        (number, found.rule, found.matches, found.why)
        for number, view in enumerate(_messages(file, like), 1)
        for found in (judge(view) for judge in judges)
    ]
    if call.json:
        output.json_array(dict(zip(_JUDGED, row, strict=True)) for row in rows)
    else:
        told = {True: "yes", False: "no", None: "error"}
        output.table(
            _JUDGED,
            [(number, rule, told[matches], why) for number, rule, matches, why in rows],
            "no rules: nothing matches",
        )


def _messages(file: Path | None, like: Message) -> Iterator[MessageView]:
    """Yield messages as rules see them: one, or those of a file."""
    if file is None:
        yield _view(like)
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
                yield _view(message_of(line, like))
            except (ValueError, InvalidMessage) as error:
                raise CommandError("bad_line", f"line {number}: {error}") from error


def _view(message: Message) -> MessageView:
    made = prepare(message)
    headers = decode_headers(made.headers)
    return MessageView(headers, made.message_id, size=len(made.body), body=lambda: made.body)


def values_of(pairs: Iterable[str]) -> dict[str, Any]:
    """Return properties given as name=value: numbers, true and false as such, all else as text."""
    return {name: _value(text) for name, text in properties(pairs).items()}


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def add_to(program: typer.Typer) -> None:
    """Add the commands to the command line."""
    program.add_typer(app, name="rule")
