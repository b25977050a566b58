"""Messages that a session sends, until they are settled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lazaretto.servicebus.amqp.carrier import Event
from lazaretto.servicebus.amqp.link import Delivery, Link
from lazaretto.servicebus.amqp.performatives import DeliveryState
from lazaretto.servicebus.amqp.serials import add, distance


class DeliveriesUpdated(Event, gc=False):
    """The peer says what became of messages that this end sent, and that are not settled yet."""

    deliveries: list[Delivery]
    state: DeliveryState | None
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
