"""`lazaretto redaction`: the fields of messages that people may not read."""

from __future__ import annotations

from typing import Annotated

import typer

from lazaretto.cli.call import PatternOption
from lazaretto.cli.command import Group
from lazaretto.cli.derived import add_change
from lazaretto.cli.listings import ListingOptions
from lazaretto.commands import RemoveRedaction, SetRedaction
from lazaretto.model.redaction import Form, RedactionRule

commands = Group()
redaction = commands.group("redaction")

FieldArgument = Annotated[
    str,
    typer.Argument(
        metavar="FIELD",
        help="Field: body.card.number, body..password, user.name, error, body.",
        show_default=False,
    ),
]


@redaction.command("list")
def list_rules(call: ListingOptions) -> None:
    """List the fields that are redacted."""

    def row(rule: RedactionRule) -> tuple[object, ...]:
        return rule.queue, rule.field, rule.form.value

    with call.broker() as broker:
        call.print_all(broker.redaction(), ("queue", "field", "form"), row, "nothing is redacted")


add_change(
    redaction,
    "set",
    SetRedaction,
    "{field} is redacted on {queue}: {form}",
    text="Redact a field for who may not read secrets.\n\n"
    "It holds over HTTP, in the console, and for what a queue keeps of completed messages. Receivers and "
    "handlers get messages as they were sent; the command line shows them so, too.",
    parameters={
        "field": (FieldArgument, ...),
        "queue": (PatternOption, "*"),
        "form": (
            Annotated[
                Form, typer.Option("--form", help="What is shown: nothing, a mark, or a hash of the value.")
            ],
            Form.MASK,
        ),
    },
)
add_change(
    redaction,
    "remove",
    RemoveRedaction,
    "{field} is not redacted on {queue} any more",
    text="Redact a field no longer.",
    asks="Redact {field} no longer?",
    parameters={"field": (FieldArgument, ...), "queue": (PatternOption, "*")},
)
