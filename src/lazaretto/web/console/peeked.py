"""Looks at the messages of a queue that stand in one way, for a moment: what is left is looked at next."""

from __future__ import annotations

import dataclasses
import time
from typing import Final

import msgspec

from lazaretto.aio import AsyncBroker
from lazaretto.errors import InvalidOption
from lazaretto.model.entities import EntityPath, MessageState
from lazaretto.model.messages import PeekedMessage
from lazaretto.serving.budget import Share
from lazaretto.web.bounded import peeked
from lazaretto.web.viewed import readings_of

#: Messages of a page.
MESSAGES: Final = 10
#: Those that are looked at before the clock is.
_CHUNK: Final = 100
#: Bytes of a body that a page has.
_LONGEST: Final = 1 << 20
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


async def peek(
    share: Share, broker: AsyncBroker, path: str, state: MessageState | None, start: int
) -> Peeked:
    """Return the messages in a state, or all, from a sequence number on; of large ones the beginning."""
    # Those that wait for a retry have an index.
    delayed = state is MessageState.DELAYED
    entity = EntityPath.parse(path, "retry") if delayed else EntityPath.parse(path)
    rows, looked_at, end = list[PeekedMessage](), 0, time.monotonic() + _BUDGET
    while True:
        before = looked_at
        async for messages, _ in peeked(share, readings_of(broker), entity, _CHUNK, start, None):
            for message in messages:
                looked_at += 1
                start = message.sequence_number + 1
                if state is None or delayed or message.state is state:
                    rows.append(msgspec.structs.replace(message, body=message.body[:_LONGEST]))
                if len(rows) == MESSAGES:
                    return Peeked(rows, looked_at, start)
        if looked_at - before < _CHUNK:
            return Peeked(rows, looked_at, None)
        if time.monotonic() >= end:
            return Peeked(rows, looked_at, start)
