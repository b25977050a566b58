"""Transfer frames that a session sends, as the peer's window allows."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any, NamedTuple

from lazaretto.servicebus.amqp.carrier import Carrier, Event
from lazaretto.servicebus.amqp.frames import TRANSFER_OVERHEAD, disposition_frame, transfer_frame
from lazaretto.servicebus.amqp.link import Delivery, Link
from lazaretto.servicebus.amqp.performatives import DeliveryState
from lazaretto.servicebus.amqp.windows import Windows, add, distance


class DeliveriesUpdated(Event, gc=False):
    """The peer says what became of messages that this end sent, and that are not settled yet."""

    deliveries: list[Delivery]
    state: DeliveryState | None
    settled: bool


class Disposed(NamedTuple):
    """The outcome of messages. `receiver`: this end has received them; `state`: encoded."""

    first: int
    last: int
    state: bytes
    receiver: bool
    settled: bool


class Deliveries:
    """Deliveries that one session sends: numbered in their order, and kept until settled."""

    def __init__(self) -> None:
        self._next = 0
        #: What is not settled, by number.
        self.unsettled: dict[int, Delivery] = {}

    def add(self, link: Link, tag: bytes, context: Any, *, settled: bool) -> Delivery:
        """Number a message that is sent now. `settled`: it needs no answer."""
        number = self._next
        delivery = Delivery(link, number, tag, context)
        self._next = add(number, 1)
        if not settled:
            self.unsettled[number] = delivery
            link.unsettled += 1
        return delivery

    def settle(self, deliveries: Iterable[Delivery]) -> list[int]:
        """Forget what is settled, and return the numbers of what was not settled before."""
        ids = []
        for delivery in deliveries:
            if self.unsettled.pop(delivery.id, None) is not None:
                delivery.link.unsettled -= 1
                ids.append(delivery.id)
        return ids

    def of(self, first: int, last: int) -> list[Delivery]:
        """Return what is not settled of the numbers from `first` to `last`."""
        count = distance(first, last) + 1
        if count <= 0:
            return []
        if count > len(self.unsettled):
            return [one for id_, one in self.unsettled.items() if 0 <= distance(first, id_) < count]
        ids = range(first, last + 1) if first <= last else (add(first, at) for at in range(count))
        return [one for one in map(self.unsettled.get, ids) if one is not None]

    def drop(self, link: Link) -> None:
        """Forget what was sent on a link."""
        self.unsettled = {id_: one for id_, one in self.unsettled.items() if one.link is not link}

    def clear(self) -> None:
        """Forget all."""
        self.unsettled.clear()


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
