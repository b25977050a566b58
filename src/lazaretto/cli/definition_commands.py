"""`lazaretto dialog`: what services may say, from a file or one by one."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from lazaretto.broker.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import Call, CallOptions, ChangeOptions, KeyOptions, ListingOptions, keyed
from lazaretto.cli.call import Change as Changing
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.completion import names_of_queues
from lazaretto.cli.exits import usage
from lazaretto.cli.parse import duration, number
from lazaretto.commands import ApplyDefinitions, DropDefinition
from lazaretto.dialogs.declaration import as_declaration, parse_declaration, read_tables
from lazaretto.engine.dialogs.definitions import Change
from lazaretto.model.dialog_contracts import DEFAULT_FAILURES, SENDERS, DialogPoison, Validation

commands = Group()
dialogs = commands.group("dialog")
creation = dialogs.group("create", "Create or change one definition.")

NameArgument = Annotated[str, argument("Name of the definition.")]


def _done(call: Call, verb: str, kind: str, name: str) -> None:
    call.print({"verb": verb, "kind": kind, "name": name}, f"{verb}d {kind.replace('_', ' ')} {name}")


def _define(call: Changing, broker: Broker, table: str, name: str, /, **options: Any) -> None:
    """Create or change a definition; options that are None are left out."""
    fields = {option: value for option, value in options.items() if value is not None}
    call.run(broker, ApplyDefinitions(definitions={table: {name: fields}}))


def _only(name: str, metavar: str, help_: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help_)


@dialogs.command("apply")
def apply(
    call: ListingOptions,
    keys: KeyOptions,
    file: Annotated[Path, argument("TOML file of definitions.")],
    compare: Annotated[bool, option("Change nothing; print what would change.")] = False,
    delete_others: Annotated[bool, option("Delete definitions that the file does not name.")] = False,
) -> None:
    """Apply a file of definitions to the store.

    The file has message types, contracts, services and priorities.
    """
    tables = read_tables(file)
    with call.broker(create=not compare) as broker:
        if compare:
            changes = broker.dialogs.apply(parse_declaration(tables), drop_others=delete_others, compare=True)
        else:
            command = ApplyDefinitions(definitions=tables, drop_others=delete_others)
            changes = [Change(**change) for change in keyed(call, keys).run(broker, command)]
    state = "to do" if compare else "done"
    call.print_all(
        changes,
        {
            "state": lambda change: state,
            "what": lambda change: _VERBS.get(change.verb, change.verb),
            "kind": "kind",
            "name": "name",
        },
        "the store is up to date",
    )


#: What a change is called by the command that does it.
_VERBS = {"drop": "delete"}


@dialogs.command("definitions")
def definitions(call: CallOptions) -> None:
    """Show all definitions of the store.

    They are message types, contracts, services and priorities.
    """
    with call.broker() as broker:
        tables = as_declaration(broker.dialogs.definitions())

    def table() -> None:
        rows = [
            (kind, name, ", ".join(f"{option}={value}" for option, value in options.items()))
            for kind, entries in tables.items()
            for name, options in entries.items()
        ]
        output.table(("kind", "name", "options"), rows, "no definitions")

    call.print(tables, table)


@creation.command("message-type")
def message_type(
    call: ChangeOptions,
    name: NameArgument,
    validation: Annotated[Validation, option("Validation of bodies.")] = Validation.NONE,
    schema: Annotated[Path | None, option("JSON Schema, for json_schema.")] = None,
) -> None:
    """Create a message type, or change what a body must be."""
    schema_text = None if schema is None else _schema(schema)
    with call.broker(create=True) as broker:
        _define(call, broker, "message_types", name, validation=validation.value, schema=schema_text)
    _done(call, "create", "message_type", name)


def _schema(file: Path) -> dict[str, Any]:
    try:
        text = file.read_bytes().removeprefix(codecs.BOM_UTF8)
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise usage(f"{file} is not a JSON object: {error}") from None
    except RecursionError:
        raise usage(f"{file} is nested too deep") from None


@creation.command("contract")
def contract(
    call: ChangeOptions,
    name: NameArgument,
    messages: Annotated[
        list[str], argument("Message types and their sender: initiator, target or any.", "TYPE=SENDER...")
    ],
) -> None:
    """Create a contract."""
    parts = [message.rpartition("=") for message in messages]
    for type_, equals, sender in parts:
        if not equals or not type_ or sender not in SENDERS:
            raise usage(f"expected TYPE=initiator, TYPE=target or TYPE=any, got {type_}{equals}{sender!r}")
    with call.broker(create=True) as broker:
        _define(call, broker, "contracts", name, **{type_: sender for type_, _, sender in parts})
    _done(call, "create", "contract", name)


@creation.command("service")
def service(
    call: ChangeOptions,
    name: NameArgument,
    queue: Annotated[str, option("Queue of the service; created with it.", complete=names_of_queues)],
    contract: Annotated[
        list[str] | None, option("Contract that it can be the target of; repeatable.")
    ] = None,
    poison: Annotated[
        DialogPoison, option("What happens to a conversation with a poison message.")
    ] = DialogPoison.HOLD,
    failures: Annotated[
        int, option("Number of failures that make a message poison.", "NUMBER", parser=number(1))
    ] = DEFAULT_FAILURES,
    retry_delay: Annotated[Any, option("Delay after each failure.", "DURATION", parser=duration)] = None,
    retention: Annotated[bool, option("Keep processed messages until the conversation ends.")] = False,
    handler: Annotated[str | None, option("Function that reads the queue.", "MODULE:FUNCTION")] = None,
    max_readers: Annotated[
        int, option("Maximum number of readers of a host.", "NUMBER", parser=number(1))
    ] = 1,
) -> None:
    """Create a service with its queue, or change its options."""
    with call.broker(create=True) as broker:
        _define(
            call,
            broker,
            "services",
            name,
            queue=queue,
            contracts=contract or (),
            poison=poison.value,
            failures=failures,
            retry_delay=retry_delay or 0.0,
            retention=retention,
            handler=handler,
            max_readers=max_readers,
        )
    _done(call, "create", "service", name)


@creation.command("priority")
def priority(
    call: ChangeOptions,
    name: NameArgument,
    level: Annotated[int, argument("Level, from 1 to 10.", parser=number(1, 10))],
    contract: Annotated[str | None, option("Only conversations under this contract.")] = None,
    service: Annotated[str | None, option("Only conversations at this service.")] = None,
    far_service: Annotated[
        str | None, option("Only conversations with this service on the other side.", "SERVICE")
    ] = None,
) -> None:
    """Create or change a priority.

    It applies to conversations that begin from now on.
    """
    with call.broker(create=True) as broker:
        others = {"contract": contract, "service": service, "far_service": far_service}
        _define(call, broker, "priorities", name, level=level, **others)
    _done(call, "create", "priority", name)


@dialogs.command("delete", also="drop")
def delete(
    call: ChangeOptions,
    kind: Annotated[
        Literal["message-type", "contract", "service", "priority"], argument("Kind of the definition.")
    ],
    name: NameArgument,
) -> None:
    """Delete a definition that nothing uses."""
    stored = kind.replace("-", "_")
    with call.broker() as broker:
        call.run(broker, DropDefinition(kind=stored, name=name))
    _done(call, "delete", stored, name)
