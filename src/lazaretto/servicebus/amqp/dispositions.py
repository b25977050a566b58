"""Outcomes of messages that a session reports, in as few frames as it can."""

from __future__ import annotations

from typing import NamedTuple

from lazaretto.servicebus.amqp.carrier import Carrier
from lazaretto.servicebus.amqp.frames import disposition_frame
from lazaretto.servicebus.amqp.serials import add


class Disposed(NamedTuple):
    """The outcome of messages. `receiver`: this end has received them; `state`: encoded."""

    first: int
    last: int
    state: bytes
    receiver: bool
    settled: bool


class Dispositions:
    """The dispositions of one session. `channel`: this end's."""

    def __init__(self, carrier: Carrier, channel: int) -> None:
        self._carrier = carrier
        self._channel = channel
        #: The last that was said, and its frame.
        self._last: tuple[bytes, Disposed | None] = (b"", None)

    def say(self, said: Disposed) -> None:
        """Say what became of messages, in one frame with those just before if that became of them too."""
        frame, before = self._last
        if before is not None and before[2:] == said[2:] and add(before.last, 1) == said.first:
            joined = said._replace(first=before.first)
            made = self._frame(joined)
            if self._carrier.amend(frame, made):
                self._last = made, joined
                return
        made = self._frame(said)
        self._carrier.write(made)
        self._last = made, said

    def _frame(self, said: Disposed) -> bytes:
        first, last, state, receiver, settled = said
        return disposition_frame(self._channel, first, last, state, receiver=receiver, settled=settled)
