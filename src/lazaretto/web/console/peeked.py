"""Looks at the messages of a queue that stand in one way, for a moment: what is left is looked at next."""

from __future__ import annotations

import dataclasses
import time
from typing import Final

from lazaretto.aio import AsyncBroker
from lazaretto.errors import InvalidOption
from lazaretto.model.entities import MessageState
from lazaretto.model.messages import PeekedMessage

#: Messages of a page.
MESSAGES: Final = 10
#: Those that are read at once.
_CHUNK: Final = 100
#: Seconds after which a page tells what it has found.
_BUDGET: Final = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class Peeked:
    """Messages of a queue, in order.

    `looked_at`: how many were read for them. `following`: the number to go on from; None: none is left.
    """

    messages: list[PeekedMessage]
    looked_at: int
    following: int | None


def state_of(given: str | None) -> MessageState | None:
    """Return the state that a page asks for. Raises InvalidOption."""
    if given is None:
        return None
    try:
        return MessageState(given)
    except ValueError:
        names = ", ".join(state.value for state in MessageState)
        raise InvalidOption(f"expected state to be one of {names}") from None


async def peek(broker: AsyncBroker, path: str, state: MessageState | None, start: int) -> Peeked:
    """Return the messages in a state, or all, from a sequence number on."""
    if state in (None, MessageState.DELAYED):
        # Those that wait for a retry have an index.
        subqueue = None if state is None else "retry"
        found = await broker.peek(path, MESSAGES, start, subqueue=subqueue)
        return Peeked(found, len(found), _after(found) if len(found) == MESSAGES else None)
    found, looked_at, end = list[PeekedMessage](), 0, time.monotonic() + _BUDGET
    while True:
        some = await broker.peek(path, _CHUNK, start)
        for message in some:
            looked_at += 1
            if message.state is state:
                found.append(message)
                if len(found) == MESSAGES:
                    return Peeked(found, looked_at, _after(found))
        if len(some) < _CHUNK:
            return Peeked(found, looked_at, None)
        start = some[-1].sequence_number + 1
        if time.monotonic() >= end:
            return Peeked(found, looked_at, start)


def _after(found: list[PeekedMessage]) -> int:
    return found[-1].sequence_number + 1
