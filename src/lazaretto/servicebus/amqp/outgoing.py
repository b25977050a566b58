"""Transfer frames that a session sends, as the peer's window allows."""

from __future__ import annotations

import collections
from typing import NamedTuple

from lazaretto.servicebus.amqp.carrier import Carrier
from lazaretto.servicebus.amqp.frames import TRANSFER_OVERHEAD, disposition_frame, transfer_frame
from lazaretto.servicebus.amqp.link import Delivery, Link
from lazaretto.servicebus.amqp.serials import add
from lazaretto.servicebus.amqp.windows import Windows


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


class Outgoing:
    """Frames go out in the order in which they came; those that do not fit the window wait.

    `channel`: this end's.
    """

    def __init__(self, carrier: Carrier, windows: Windows, channel: int) -> None:
        self._carrier = carrier
        self._windows = windows
        self._channel = channel
        self._waiting: collections.deque[tuple[Link, bytes]] = collections.deque()

    @property
    def waits(self) -> bool:
        """Whether frames wait for the peer's window."""
        return bool(self._waiting)

    def waits_for(self, link: Link) -> bool:
        """Whether frames of a link wait for the peer's window."""
        return any(one is link for one, _ in self._waiting)

    def send(self, delivery: Delivery, handle: int, payload: bytes, state: bytes, *, settled: bool) -> None:
        """Send a message on the link of a handle, in as many frames as it needs. `state`: encoded."""
        link, number, tag = delivery.link, delivery.id, delivery.tag
        room = self._carrier.remote_max_frame_size - TRANSFER_OVERHEAD - len(tag) - len(state)
        size = len(payload)
        if size <= room:
            made = transfer_frame(self._channel, handle, number, tag, payload, settled=settled, state=state)
            self._send(link, made)
            return
        for begin in range(0, size, room):
            part, more = payload[begin : begin + room], begin + room < size
            made = transfer_frame(
                self._channel, handle, number, tag, part, settled=settled, more=more, state=state
            )
            self._send(link, made)

    def _send(self, link: Link, frame: bytes) -> None:
        """Send a frame of a link, now or when the window opens."""
        if self._waiting or not self._windows.take():
            self._waiting.append((link, frame))
        else:
            self._carrier.write(frame)

    def flush(self) -> None:
        """Send what waits, as far as the window allows."""
        while self._waiting and self._windows.take():
            self._carrier.write(self._waiting.popleft()[1])

    def drop(self, link: Link) -> None:
        """Forget what waits of a link."""
        self._waiting = collections.deque(one for one in self._waiting if one[0] is not link)

    def clear(self) -> None:
        """Forget all that waits."""
        self._waiting.clear()
