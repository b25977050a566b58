"""Conversations: their table of states, their handles, and the sessions of their messages. Pure.

A conversation is one end of a dialog, as in Service Broker: each of the two services has its own, with a
state, a place in a conversation group, and messages that wait for it.
"""

from __future__ import annotations

import enum
import re
import uuid
from typing import Final, NamedTuple

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown

#: Message types that may arrive whatever the contract says. Their names are Service Broker's.
END_DIALOG: Final = "http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog"
ERROR: Final = "http://schemas.microsoft.com/SQL/ServiceBroker/Error"
DIALOG_TIMER: Final = "http://schemas.microsoft.com/SQL/ServiceBroker/DialogTimer"
SYSTEM_TYPES: Final = (END_DIALOG, ERROR, DIALOG_TIMER)

#: Codes of errors that the engine sends are negative, as in Service Broker; an application's are positive.
INVALID_CODE: Final = -9615
LIFETIME_CODE: Final = -8489
#: What the far end is told of a conversation that a poison message has ended.
POISON_CODE: Final = 500
POISON_TEXT: Final = "Unable to process message."
LONGEST_ERROR: Final = 3000

DEFAULT_PRIORITY: Final = 5


class ConversationState(enum.Enum):
    """The state of one side of a dialog, named as in Service Broker's sys.conversation_endpoints."""

    #: Begun here, nothing sent yet: the far end does not know of it.
    STARTED_OUTBOUND = "started_outbound"
    CONVERSING = "conversing"
    #: The far end has ended it: nothing can be sent, what is there can be received.
    DISCONNECTED_INBOUND = "disconnected_inbound"
    #: Ended here; the far end has not ended it yet.
    DISCONNECTED_OUTBOUND = "disconnected_outbound"
    #: The far end has ended it with an error, or its lifetime is over.
    ERROR = "error"
    #: Both ends have ended it: nothing is kept of it.
    CLOSED = "closed"


class ConversationEvent(enum.Enum):
    """An event at one end of a dialog."""

    SEND = "send"
    #: Ended here, with or without an error, while the far end is open.
    END = "end"
    #: Ended here, and there is no far end that is open.
    END_LAST = "end, far end gone"
    FAR_END = "far end ends"
    FAR_ERROR = "far end ends with an error"
    EXPIRE = "lifetime over"


_S, _E = ConversationState, ConversationEvent

#: What follows; what is not here is refused.
TRANSITIONS: Final = {
    (_S.STARTED_OUTBOUND, _E.SEND): _S.CONVERSING,
    (_S.STARTED_OUTBOUND, _E.END_LAST): _S.CLOSED,
    (_S.STARTED_OUTBOUND, _E.EXPIRE): _S.ERROR,
    (_S.CONVERSING, _E.SEND): _S.CONVERSING,
    (_S.CONVERSING, _E.END): _S.DISCONNECTED_OUTBOUND,
    (_S.CONVERSING, _E.END_LAST): _S.CLOSED,
    (_S.CONVERSING, _E.FAR_END): _S.DISCONNECTED_INBOUND,
    (_S.CONVERSING, _E.FAR_ERROR): _S.ERROR,
    (_S.CONVERSING, _E.EXPIRE): _S.ERROR,
    (_S.DISCONNECTED_INBOUND, _E.END_LAST): _S.CLOSED,
    (_S.ERROR, _E.END): _S.DISCONNECTED_OUTBOUND,
    (_S.ERROR, _E.END_LAST): _S.CLOSED,
    # It has its own error already, and goes on waiting to be ended.
    (_S.ERROR, _E.FAR_END): _S.ERROR,
    (_S.ERROR, _E.FAR_ERROR): _S.ERROR,
    (_S.DISCONNECTED_OUTBOUND, _E.FAR_END): _S.CLOSED,
    (_S.DISCONNECTED_OUTBOUND, _E.FAR_ERROR): _S.CLOSED,
}


def after(state: ConversationState, event: ConversationEvent) -> ConversationState | None:
    """Return the state that follows, None if the event cannot happen in this state."""
    return TRANSITIONS.get((state, event))


def at_time(state: ConversationState, expires: int | None, now: int) -> ConversationState:
    """Return the state that a conversation is in at a time, given when its lifetime is over."""
    if expires is None or now < expires:
        return state
    return after(state, ConversationEvent.EXPIRE) or state


def diagram() -> str:
    """Return the table of states as a Mermaid diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {_S.STARTED_OUTBOUND.value}: begin dialog"]
    lines.append(f"    [*] --> {_S.CONVERSING.value}: first message arrives")
    lines += [
        f"    {before.value} --> {'[*]' if state is _S.CLOSED else state.value}: {event.value}"
        for (before, event), state in TRANSITIONS.items()
    ]
    return "\n".join(lines)


# -- handles -------------------------------------------------------------------------------------

_HANDLE = re.compile(r"[0-9a-f]{32}-[it]\Z")
_GROUP = re.compile(r"[0-9a-f]{32}\Z")


def new_handle() -> str:
    """Return a new dialog's handle at the end that begins it."""
    return f"{uuid.uuid4().hex}-i"


def new_group() -> str:
    """Return the id of a new conversation group."""
    return uuid.uuid4().hex


def check_handle(handle: object) -> str:
    """Return a conversation's handle, else raise InvalidOption."""
    if not isinstance(handle, str) or not _HANDLE.match(handle):
        raise InvalidOption(
            "expected a conversation's handle (32 hexadecimal digits, then -i for the initiator's side, or "
            f"-t for the target's), got {shown(handle)}"
        )
    return handle


def check_group(group: object) -> str:
    """Return a conversation group's id, else raise InvalidOption."""
    if not isinstance(group, str) or not _GROUP.match(group):
        raise InvalidOption(f"expected a conversation group's id (32 hexadecimal digits), got {shown(group)}")
    return group


def dialog_of(handle: str) -> str:
    """Return the dialog that a conversation is one end of."""
    return handle[:32]


def is_initiator(handle: str) -> bool:
    """Return whether a conversation is the end that began the dialog."""
    return handle.endswith("i")


def far_end(handle: str) -> str:
    """Return the handle of the other end."""
    return f"{dialog_of(handle)}-{'t' if is_initiator(handle) else 'i'}"


def message_name(handle: str, number: int) -> str:
    """Return the id of a message: of the n-th that an end has sent."""
    return f"{handle}.{number}"


def number_of(message_id: str) -> int | None:
    """Return which of its sender's messages it is, by its id; None of a message of the system."""
    number = message_id.rpartition(".")[2]
    return int(number) if number.isdecimal() else None


# -- streams ---------------------------------------------------------------------------------------


class Stream(enum.Enum):
    """The kinds of messages that wait for a conversation, each kind in a session of its own.

    So a message that waits for its retry, or holds the conversation, holds back only what is of its kind; and
    the kinds are received in this order.
    """

    TIMER = "a"
    ERROR = "b"
    MESSAGE = "m"
    #: What was received or sent and is retained until the conversation ends: never receivable.
    RETAINED = "r"


STREAMS: Final = tuple(Stream)
#: Those that are received from, in this order.
RECEIVED_STREAMS: Final = (Stream.TIMER, Stream.ERROR, Stream.MESSAGE)


class Place(NamedTuple):
    """A place of a message in a dialog, as the session id of its stream says."""

    priority: int
    handle: str
    stream: Stream


def stream_of(priority: int, handle: str, stream: Stream) -> str:
    """Return the session that a conversation's messages of one kind stand in.

    Sorted by name they stand by priority, so that those of one priority can be looked through by themselves.
    """
    return f"{priority:x}{handle}{stream.value}"


def place_of_stream(session_id: str) -> Place:
    """Return what the session id of a stream says."""
    return Place(int(session_id[0], 16), session_id[1:35], Stream(session_id[35]))


def priority_bounds(priority: int) -> tuple[str, str]:
    """Return between which session ids the streams of a priority stand."""
    return f"{priority:x}", f"{priority + 1:x}"


def group_session(group: str) -> str:
    """Return the session of a conversation group: it has the lock and the state, and no messages."""
    return f"g{group}"
