"""The states of a message and what leads from one to the next, as a table."""

from __future__ import annotations

import enum
from typing import Final

from lazaretto.model.entities import MessageState


class MessageEvent(enum.Enum):
    """An event of a message in its queue."""

    RECEIVE = "receive"
    RECEIVE_AND_DELETE = "receive_and_delete"
    COMPLETE = "complete"
    ABANDON = "abandon, release"
    ABANDON_LATER = "abandon with a delay"
    DEFER = "defer"
    RECEIVE_DEFERRED = "receive_deferred"
    DEAD_LETTER = "dead_letter, last attempt"
    LOCK_EXPIRES = "lock expires"
    WORKER_DIES = "worker dies with several"
    TIME_COMES = "its time comes"
    CANCEL = "cancel"
    EXPIRE = "time to live over"


class MessageEnd(enum.Enum):
    """The destination of a message that leaves its queue."""

    GONE = "[*]"
    DEAD_LETTER = "dead_letter"


_S, _E = MessageState, MessageEvent

#: What follows. What is not here cannot happen. What expires becomes a dead letter where the queue says so.
TRANSITIONS: Final[dict[tuple[MessageState, MessageEvent], MessageState | MessageEnd]] = {
    (_S.ACTIVE, _E.RECEIVE): _S.LOCKED,
    (_S.ACTIVE, _E.RECEIVE_AND_DELETE): MessageEnd.GONE,
    (_S.ACTIVE, _E.EXPIRE): MessageEnd.GONE,
    (_S.LOCKED, _E.COMPLETE): MessageEnd.GONE,
    (_S.LOCKED, _E.ABANDON): _S.ACTIVE,
    (_S.LOCKED, _E.LOCK_EXPIRES): _S.ACTIVE,
    (_S.LOCKED, _E.ABANDON_LATER): _S.DELAYED,
    (_S.LOCKED, _E.WORKER_DIES): _S.SUSPECT,
    (_S.LOCKED, _E.DEFER): _S.DEFERRED,
    (_S.LOCKED, _E.DEAD_LETTER): MessageEnd.DEAD_LETTER,
    (_S.DELAYED, _E.TIME_COMES): _S.ACTIVE,
    (_S.DELAYED, _E.EXPIRE): MessageEnd.GONE,
    (_S.SUSPECT, _E.RECEIVE): _S.LOCKED,
    (_S.SUSPECT, _E.EXPIRE): MessageEnd.GONE,
    (_S.DEFERRED, _E.RECEIVE_DEFERRED): _S.LOCKED,
    (_S.SCHEDULED, _E.TIME_COMES): _S.ACTIVE,
    (_S.SCHEDULED, _E.CANCEL): MessageEnd.GONE,
    (_S.SCHEDULED, _E.EXPIRE): MessageEnd.GONE,
}


def diagram() -> str:
    """Return the table of states as a Mermaid diagram."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state.value}: {verb}" for state, verb in _BEGINNINGS.items()]
    lines += [
        f"    {before.value} --> {then.value}: {event.value}" for (before, event), then in TRANSITIONS.items()
    ]
    return "\n".join(lines)


_BEGINNINGS: Final = {MessageState.ACTIVE: "send", MessageState.SCHEDULED: "schedule"}
