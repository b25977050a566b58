"""`lazaretto dialog`: conversations and why they wait, verdicts on them, readers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from lazaretto.cli import output
from lazaretto.cli.call import (
    Call,
    CallOptions,
    Change,
    ChangeOptions,
    ListingOptions,
    YesOption,
    confirm_deletion,
    limit_option,
)
from lazaretto.cli.command import argument, option
from lazaretto.cli.completion import names_of_queues
from lazaretto.cli.definition_commands import commands, dialogs
from lazaretto.cli.exits import usage
from lazaretto.cli.output import Columns
from lazaretto.cli.parse import number
from lazaretto.commands import CleanUpConversation, EndConversation, ResumeConversation
from lazaretto.errors import ConversationNotFound
from lazaretto.model.conversations import dialog_of
from lazaretto.tools.signals import Ending

if TYPE_CHECKING:
    from lazaretto.broker.broker import Broker

__all__ = ["commands"]

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
