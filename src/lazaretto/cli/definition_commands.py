"""`lazaretto dialog create` and `delete`: message types, contracts, services and priorities, one by one."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, StoreOption
from lazaretto.cli.exits import usage
from lazaretto.cli.parse import duration
from lazaretto.model.dialog_contracts import DEFAULT_FAILURES, SENDERS, DialogPoison, Validation

app = typer.Typer(
    help="Create a message type, contract, service or priority, or change it.", rich_markup_mode=None
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


class Kind(enum.Enum):
    """What may be deleted."""

    MESSAGE_TYPE = "message-type"
    CONTRACT = "contract"
    SERVICE = "service"
    PRIORITY = "priority"


def _done(call: Call, verb: str, kind: str, name: str) -> None:
    if call.json:
        output.json_object({"verb": verb, "kind": kind, "name": name})
    else:
        past = {"create": "created", "delete": "deleted"}[verb]
        output.line(output.safe(f"{past} {kind.replace('_', ' ')} {name}"))


@app.command("message-type")
def message_type(
    context: typer.Context,
    name: NameArgument,
    validation: Annotated[Validation, typer.Option(help="What a body must be.")] = Validation.NONE,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON Schema, for json_schema.", show_default=False)
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Create a message type, or change what a body must be."""
    call = Call.of(context, store, json)
    given = None if schema is None else _schema(schema)
    with call.broker(create=True) as broker:
        broker.dialogs.create_message_type(name, validation, schema=given)
    _done(call, "create", "message_type", name)


def _schema(file: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise usage(f"{file} is not a JSON object: {error}") from None


@app.command("contract")
def contract(
    context: typer.Context,
    name: NameArgument,
    messages: Annotated[
        list[str],
        typer.Argument(
            metavar="TYPE=SENDER...", help="Message types, and who sends each: initiator, target or any."
        ),
    ],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Create a contract."""
    call = Call.of(context, store, json)
    parts = [message.rpartition("=") for message in messages]
    for type_, equals, sender in parts:
        if not equals or not type_ or sender not in SENDERS:
            raise usage(f"expected TYPE=initiator, TYPE=target or TYPE=any, got {type_}{equals}{sender!r}")
    with call.broker(create=True) as broker:
        broker.dialogs.create_contract(name, {type_: sender for type_, _, sender in parts})
    _done(call, "create", "contract", name)


@app.command("service")
def service(
    context: typer.Context,
    name: NameArgument,
    queue: Annotated[str, typer.Option(help="Its queue, which is made with it.", show_default=False)],
    contract: Annotated[
        list[str] | None, typer.Option(help="A contract it can be the target of; may be given again.")
    ] = None,
    poison: Annotated[
        DialogPoison, typer.Option(help="What becomes of a conversation with a poison message.")
    ] = DialogPoison.HOLD,
    failures: Annotated[int, typer.Option(help="After how many failures.")] = DEFAULT_FAILURES,
    retry_delay: Annotated[
        Any, typer.Option(parser=duration, metavar="DURATION", help="Between failures.", show_default=False)
    ] = None,
    retention: Annotated[
        bool, typer.Option("--retention", help="Keep all until the conversation ends.")
    ] = False,
    handler: Annotated[str | None, typer.Option(help="MODULE:FUNCTION that reads the queue.")] = None,
    max_readers: Annotated[int, typer.Option(help="How many readers a host starts at most.")] = 1,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Create a service with its queue, or change its options."""
    call = Call.of(context, store, json)
    with call.broker(create=True) as broker:
        broker.dialogs.create_service(
            name,
            queue,
            contract or (),
            poison=poison,
            failures=failures,
            retry_delay=retry_delay or 0.0,
            retention=retention,
            handler=handler,
            max_readers=max_readers,
        )
    _done(call, "create", "service", name)


@app.command("priority")
def priority(
    context: typer.Context,
    name: NameArgument,
    level: Annotated[int, typer.Argument(metavar="LEVEL", help="From 1 to 10.", show_default=False)],
    contract: Annotated[str | None, typer.Option(help="Of this contract alone.")] = None,
    service: Annotated[str | None, typer.Option(help="Of conversations at this service alone.")] = None,
    far_service: Annotated[str | None, typer.Option(help="With this service alone.")] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Create a priority, or change it; it counts for conversations begun from now on."""
    call = Call.of(context, store, json)
    with call.broker(create=True) as broker:
        broker.dialogs.create_priority(
            name, level, contract=contract, service=service, far_service=far_service
        )
    _done(call, "create", "priority", name)


def delete(
    context: typer.Context,
    kind: Annotated[Kind, typer.Argument(show_default=False)],
    name: NameArgument,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a definition that nothing uses."""
    call = Call.of(context, store, json)
    stored = kind.value.replace("-", "_")
    with call.broker() as broker:
        broker.dialogs.drop(stored, name)
    _done(call, "delete", stored, name)
