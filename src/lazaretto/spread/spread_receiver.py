"""Receives from a queue that is spread over several stores, and settles each message where it is."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

from lazaretto.engine.messages.settle import COMPLETE, Settlement
from lazaretto.errors import BrokerClosed, InvalidOption, LazarettoError
from lazaretto.model.checks import GivenDuration, shown, whole
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import MOST_MESSAGES, Lock, ReceivedMessage
from lazaretto.model.partitions import Placed, Rounds
from lazaretto.receiver import Mode, Receiver, check_mode
from lazaretto.settling import Messages, MessageVerbs, settlements
from lazaretto.spread.members import Members, await_answer
from lazaretto.spread.spread_sender import numbers_by_store
from lazaretto.tools.closing import Closing

_MICROS: Final = 1_000_000

_ByNumber = Callable[[Receiver, list[int]], list[ReceivedMessage]]


class PlacedLock(Lock, frozen=True, kw_only=True):
    """A lock, and the place of the store that it is in."""

    store: int


class SpreadReceiver(MessageVerbs, Closing):
    """Receives from the store at home first, and from all others. Threads can share it. A context manager.

    A message elsewhere that has waited longer comes first. Each verb settles the messages of one store in
    one commit. For queues with sessions, see `SpreadBroker.accept_next_session`; for one session, receive
    through `SpreadBroker.broker_of`.
    """

    def __init__(
        self, members: Members, path: str, subqueue: str | None = None, mode: Mode = "peek_lock"
    ) -> None:
        parsed = EntityPath.parse(path, subqueue)
        check_mode(mode)
        self._members = members
        self._path = str(parsed)
        self._mode: Mode = mode
        self._receivers: dict[int, Receiver] = {}
        self._choosing = threading.Lock()
        self._rounds = Rounds(members.home, len(members))
        self._closed = False

    # -- receiving ------------------------------------------------------------------------------

    def receive(self, max_messages: int = 1, max_wait: GivenDuration | None = 0.0) -> list[ReceivedMessage]:
        """Return up to `max_messages` of one store, in order, locked for this receiver.

        Waits up to `max_wait` seconds (None: forever) for the first message; then returns an empty list. A
        message in a store that is not the home may be found a quarter of a second later than it came. Stores
        that cannot be reached are left out; to find that out may take longer than `max_wait`. Raises
        StoreUnavailable if none can, and what `Receiver.receive` does.
        """
        whole("max_messages", max_messages, 1, MOST_MESSAGES)
        found = await_answer(
            self._members, self._order, lambda place, wait: self._try(place, max_messages, wait), max_wait
        )
        return found or []

    def _order(self) -> list[int]:
        """Return the stores in the order to look at them."""
        with self._choosing:
            now = time.monotonic_ns() // 1000
            if self._rounds.needs_look(now):
                # Only a receive tells what waits in a store: each is tried, the home first.
                self._rounds.note_look([0] * len(self._members), now)
            order = self._rounds.order()
        return order + [place for place in self._members.from_home() if place not in order]

    def _try(self, place: int, max_messages: int, wait: float) -> list[ReceivedMessage]:
        """Return messages of one store."""
        found: list[ReceivedMessage] = []
        try:
            found = self._receiver(place).receive(max_messages, wait)
        finally:
            with self._choosing:
                last = max((message.enqueued for message in found), default=None)
                self._rounds.note_taken(place, last, any_taken=True)
        return [_placed(message, place) for message in found]

    def _receiver(self, place: int) -> Receiver:
        self._refuse_closed()
        broker = self._members.stores[place].broker()
        with self._choosing:
            if place not in self._receivers:
                self._receivers[place] = broker.receiver(self._path, mode=self._mode)
            return self._receivers[place]

    def place_of(self, message: ReceivedMessage) -> Placed:
        """Return where a message that this receiver holds is, for `receive_deferred`."""
        (one,) = settlements(message, COMPLETE)
        return Placed(self._store_of(one.message), message.sequence_number)

    def receive_deferred(self, places: Placed | Iterable[Placed]) -> list[ReceivedMessage]:
        """Return deferred messages, locked: all, or none and MessageNotFound."""
        return self._receive_placed(places, Receiver.receive_deferred)

    def receive_by_number(self, places: Placed | Iterable[Placed]) -> list[ReceivedMessage]:
        """Return active messages by their places, locked: all, or none. See `Receiver.receive_by_number`."""
        return self._receive_placed(places, Receiver.receive_by_number)

    def _receive_placed(self, places: Placed | Iterable[Placed], receive: _ByNumber) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        try:
            for store, numbers in numbers_by_store(places, len(self._members)).items():
                found += [_placed(message, store) for message in receive(self._receiver(store), numbers)]
        except BaseException:
            # Nobody is told of those that are locked. If a server is gone, their locks expire.
            with contextlib.suppress(LazarettoError):
                self.release(found)
            raise
        return found

    # -- settling -------------------------------------------------------------------------------

    def renew_lock(self, messages: Messages) -> datetime:
        """Renew the locks for their queue's lock duration from now; return the earliest new expiry time."""
        untils = [self._receiver(store).renew_lock(some) for store, some in self._by_store(messages).items()]
        if not untils:
            raise InvalidOption("expected at least one message, got none")
        return min(untils)

    def _settle(self, messages: Messages, settlement: Settlement) -> None:
        for store, some in self._by_store(messages).items():
            self._receiver(store)._settle(some, settlement)

    def _by_store(self, messages: Messages) -> dict[int, list[ReceivedMessage]]:
        self._refuse_closed()
        found: dict[int, list[ReceivedMessage]] = {}
        for one in settlements(messages, COMPLETE):
            found.setdefault(self._store_of(one.message), []).append(one.message)
        return found

    def _store_of(self, message: ReceivedMessage) -> int:
        if message.lock is None:
            # Whichever store is asked says that there is nothing to settle.
            return self._members.home
        if not isinstance(message.lock, PlacedLock) or message.lock.store >= len(self._members):
            raise InvalidOption(f"expected messages that a spread's receiver holds, got {shown(message)}")
        return message.lock.store

    def close(self) -> None:
        """Stop receiving. The locks on messages expire."""
        self._closed = True
        with self._choosing:
            receivers, self._receivers = list(self._receivers.values()), {}
        for receiver in receivers:
            receiver.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BrokerClosed("this receiver is closed")


def _placed(message: ReceivedMessage, store: int) -> ReceivedMessage:
    """Note in a message's lock which store it is in."""
    lock = message.lock
    if lock is not None:
        message.lock = PlacedLock(lock.path, lock.token, lock.until, lock.session_id, store=store)
    return message
