"""`lazaretto dialog`: what services may say, conversations and why they wait, verdicts on them, readers."""

from __future__ import annotations

import codecs
import time
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import typer

from lazaretto.broker.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import (
    Call,
    CallOptions,
    Change,
    ChangeOptions,
    KeyOptions,
    ListingOptions,
    YesOption,
    confirm_deletion,
    keyed,
    limit_option,
)
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.completion import names_of_queues
from lazaretto.cli.exits import usage
from lazaretto.cli.output import Columns
from lazaretto.cli.parse import duration, number
from lazaretto.commands import (
    ApplyDefinitions,
    CleanUpConversation,
    DropDefinition,
    EndConversation,
    ResumeConversation,
)
from lazaretto.dialogs.declaration import as_declaration, parse_declaration, read_tables
from lazaretto.engine.dialogs.definitions import Change as DefinitionChange
from lazaretto.errors import ConversationNotFound
from lazaretto.model.conversations import dialog_of
from lazaretto.model.dialog_contracts import DEFAULT_FAILURES, SENDERS, DialogPoison, Validation
from lazaretto.tools.signals import Ending

commands = Group()
dialogs = commands.group("dialog")
creation = dialogs.group("create", "Create or change one definition.")

NameArgument = Annotated[str, argument("Name of the definition.")]


def _defined(call: Call, verb: str, kind: str, name: str) -> None:
    call.print({"verb": verb, "kind": kind, "name": name}, f"{verb}d {kind.replace('_', ' ')} {name}")


def _define(call: Change, broker: Broker, table: str, name: str, /, **options: Any) -> None:
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
            changes = [DefinitionChange(**change) for change in keyed(call, keys).run(broker, command)]
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
    _defined(call, "create", "message_type", name)


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
    _defined(call, "create", "contract", name)


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
    _defined(call, "create", "service", name)


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
    _defined(call, "create", "priority", name)


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
    _defined(call, "delete", stored, name)


DialogArgument = Annotated[str, argument("ID of the dialog, its beginning, or the handle of a conversation.")]
HandleArgument = Annotated[str, argument("Handle of the conversation: ID-i or ID-t.")]
_COLUMNS: Columns = {
    "conversation": "conversation",
    "service": "service",
    "far service": "far_service",
    "state": "state",
    "messages": lambda conversation: sum(conversation.messages.values()),
    "waits": "waits",
}
_TIMELINE: Columns = {
    "time": "time", "end": "end", "what": "kind", "number": "number", "message type": "message_type",
    "text": "text",
}  # fmt: skip
#: How often `run` looks whether there is still work, in seconds.
_LOOK = 0.5


StateName = Literal[
    "started_outbound", "conversing", "disconnected_inbound", "disconnected_outbound", "error"
]
_STATES = ", ".join(get_args(StateName))


@dialogs.command("list")
def list_(
    call: ListingOptions,
    queue: Annotated[str | None, option("Only of this service's queue.", complete=names_of_queues)] = None,
    state: Annotated[StateName | None, option(f"Only in this state: {_STATES}.", "STATE")] = None,
    group: Annotated[str | None, option("Only of this conversation group.")] = None,
    held: Annotated[bool, option("Only conversations that a poison message holds.")] = False,
    limit: Annotated[int, limit_option("Maximum number of rows.")] = 1_000,
) -> None:
    """List conversations: their states, and why they wait."""
    with call.broker() as broker:
        conversations = broker.dialogs.conversations(
            queue=queue, state=state, group=group, held=held, limit=limit
        )
        empty = "no conversations held" if held else "no conversations"
        call.print_all(conversations, _COLUMNS, empty, spare=("far service",))


@dialogs.command("show")
def show(call: CallOptions, dialog: DialogArgument) -> None:
    """Show both ends of a dialog, and why they wait."""
    with call.broker() as broker:
        ends = broker.dialogs.dialog(dialog)

    def print_ends() -> None:
        output.line(f"dialog {ends[0].dialog} under contract {ends[0].contract}")
        for end in ends:
            output.line(f"{'initiator' if end.initiator else 'target'} {end.service}")
            output.fields(_facts(end), "  ")

    call.print(ends, print_ends)


def _facts(end: Any) -> list[tuple[str, object]]:
    return [
        ("conversation", end.conversation),
        ("queue", end.queue),
        ("state", end.state),
        ("waits", end.waits),
        ("error", None if end.error is None else f"{end.error[0]}: {end.error[1]}"),
        ("sent", end.sent),
        *((f"messages {name}", number) for name, number in sorted(end.messages.items())),
        ("group", end.group),
        ("locked by", end.locked_by),
        ("locked until", end.locked_until),
        ("priority", end.priority),
        ("begun", end.created),
        ("lifetime ends", end.expires),
    ]


@dialogs.command("timeline")
def timeline(call: ListingOptions, dialog: DialogArgument) -> None:
    """Show what happened in a dialog, in order.

    It covers both ends, and what waits there now.
    """
    with call.broker() as broker:
        entries = broker.dialogs.timeline(dialog)
    call.print_all(entries, _TIMELINE, "nothing happened", spare=("number", "end"))


@dialogs.command("end")
def end(
    call: ChangeOptions,
    conversation: HandleArgument,
    code: Annotated[int | None, option("End it with this error code.", "NUMBER", parser=number(1))] = None,
    text: Annotated[str | None, option("Text of the error.")] = None,
) -> None:
    """End a conversation at this end.

    The other end is notified. Unread messages are dropped.
    """
    if (code is None) is not (text is None):
        raise usage("an error needs both --code and --text")
    error = None if code is None or text is None else (code, text)
    with call.broker() as broker:
        call.run(broker, EndConversation(handle=conversation, error=error))
    _done(call, conversation, "ended")


@dialogs.command("cleanup")
def cleanup(
    call: ChangeOptions,
    conversation: HandleArgument,
    both: Annotated[bool, option("Also delete the other side.")] = False,
    yes: YesOption = False,
) -> None:
    """Delete one end of a dialog and its pending messages.

    The other end is not notified. It asks first, unless --yes is given.
    """
    confirm_deletion(f"conversation {conversation}", yes)
    with call.broker() as broker:
        if not both:
            call.run(broker, CleanUpConversation(handle=conversation), 0)
        else:
            _clean_up_both(call, broker, conversation)
    _done(call, dialog_of(conversation) if both else conversation, "cleaned up")


def _clean_up_both(call: Change, broker: Broker, conversation: str) -> None:
    # Both ends are tried, each under its own key: a repeated command finds neither of them.
    ends = broker.dialogs.dialog(conversation) if len(conversation) < 32 else []
    dialog, ended = dialog_of(ends[0].conversation if ends else conversation), False
    missing: ConversationNotFound | None = None
    for part, handle in enumerate((f"{dialog}-i", f"{dialog}-t")):
        try:
            call.run(broker, CleanUpConversation(handle=handle), part)
            ended = True
        except ConversationNotFound as error:
            missing = error
    if missing is not None and not ended:
        raise missing


@dialogs.command("resume")
def resume(
    call: ChangeOptions,
    conversation: HandleArgument,
    verdict: Annotated[
        Literal["retry", "move", "drop", "reject", "end"],
        option("What happens to the poison message that holds it."),
    ],
) -> None:
    """Resume a conversation held by a poison message, or end it."""
    with call.broker() as broker:
        call.run(broker, ResumeConversation(handle=conversation, verdict=verdict))
    _done(call, conversation, f"resumed: {verdict}")


@dialogs.command("run")
def run(
    call: CallOptions,
    services: Annotated[
        list[str] | None, argument("Services to read for.  [default: all]", "[SERVICE]...")
    ] = None,
    stop_when_idle: Annotated[bool, option("Exit when no reader has anything to receive.")] = False,
) -> None:
    """Run readers of services, as many as the load needs.

    The services name a handler. Readers run until SIGTERM or Control-C.
    """
    ending = Ending()
    with call.broker() as broker, ending.on_signals():
        with broker.dialogs.activate(*(services or ())) as monitors:
            output.notice(f"reading for {', '.join(m.status().service for m in monitors)}")
            while not ending.asked:
                time.sleep(_LOOK)
                if stop_when_idle and not any(monitor.has_work() for monitor in monitors):
                    break
        if call.json:
            output.json_array(monitor.status()._asdict() for monitor in monitors)


def _done(call: Call, conversation: str, what: str) -> None:
    call.print({"conversation": conversation, "result": what}, f"{what} {conversation}")
