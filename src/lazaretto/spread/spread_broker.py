"""Connects to several stores and offers one queue in all of them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from typing import Final, TypeVar, Unpack

from lazaretto.broker import Broker
from lazaretto.errors import InvalidOption
from lazaretto.model.checks import GivenDuration, flag, shown, text, whole
from lazaretto.model.descriptions import MessageCounts
from lazaretto.model.entities import EntityPath
from lazaretto.model.headers import LONGEST_ID
from lazaretto.receiver import NEXT_SESSION, Mode, Receiver
from lazaretto.spread.members import Member, Members, StoreOptions, await_answer, join
from lazaretto.spread.spread_receiver import SpreadReceiver
from lazaretto.spread.spread_sender import SpreadSender
from lazaretto.store.addresses import identity_of
from lazaretto.tools.closing import Closing

T = TypeVar("T")

#: The most stores that one spread can have.
MOST_STORES: Final = 64


def connect(
    urls: Iterable[str | os.PathLike[str]],
    *,
    home: int | None = None,
    moves: bool = False,
    **options: Unpack[StoreOptions],
) -> SpreadBroker:
    """Open several stores as one: a *spread*. All processes name the same stores in the same order.

    `urls`: 1 to 64 addresses, as of `lazaretto.connect`, whose `options` apply to each. `home`: the place,
    from 0, of the store that this process sends messages without a key to and receives from first; by default
    any one. `moves`: allow another number or order of stores than before. The first time, and to move, all
    stores must be reachable and without messages; later those that are not reachable are opened when they
    are.

    Raises InvalidOption if the stores belong to another spread or come in another order, NotAllowed if
    one that is to join or to move has messages, StoreUnavailable, and what `lazaretto.connect` raises.
    """
    flag("moves", moves)
    if isinstance(urls, str | bytes | os.PathLike) or not isinstance(urls, Iterable):
        # It is not shown: it may contain a password.
        raise InvalidOption(f"expected urls to be a list of addresses, got {type(urls).__name__}")
    given = list(urls)
    if not 1 <= len(given) <= MOST_STORES or len({identity_of(url) for url in given}) < len(given):
        raise InvalidOption(f"expected 1 to {MOST_STORES} different addresses, got {len(given)}")
    place = secrets.randbelow(len(given)) if home is None else whole("home", home, 0, len(given) - 1)
    stores = [Member(os.fspath(url), options) for url in given]
    try:
        join(stores, moves=moves)
    except BaseException:
        for store in stores:
            store.close()
        raise
    return SpreadBroker(Members(stores, place))


class SpreadBroker(Closing):
    """Several stores, used as one. Threads can share it. A context manager.

    A queue that exists in all of them is one queue here. Everything of a message is in one store, that of its
    session or partition key: its order, duplicates, dead letter, history. So whatever else a broker does is
    done on each store: see `each` and `broker_of`.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        #: Where the next session of a queue is looked for first.
        self._turns: dict[str, int] = {}

    # -- messages -------------------------------------------------------------------------------

    def sender(self, path: str) -> SpreadSender:
        """Return a sender to a queue or topic, which is looked up when a message is sent."""
        return SpreadSender(self._members, path)

    def receiver(self, path: str, *, subqueue: str | None = None, mode: Mode = "peek_lock") -> SpreadReceiver:
        """Return a receiver of a queue or subqueue without sessions. `mode`: as of `Broker.receiver`."""
        return SpreadReceiver(self._members, path, subqueue, mode)

    def accept_next_session(self, path: str, max_wait: GivenDuration | None = 0.0) -> Receiver | None:
        """Lock the next session that is free and has messages, of each store in turn; return its receiver.

        Waits up to `max_wait` seconds (None: forever); then returns None. Close the receiver to release the
        session. Raises StoreUnavailable if no store can be reached, and what `Broker.receiver` does.
        """
        parsed = EntityPath.parse(path)

        def order() -> list[int]:
            return self._members.starting_at(self._turns.get(parsed.key, self._members.home))

        return await_answer(
            self._members, order, lambda place, wait: self._accept(place, parsed, wait), max_wait
        )

    def _accept(self, place: int, path: EntityPath, wait: float) -> Receiver | None:
        receiver = self._members.stores[place].broker().receiver(str(path), session=NEXT_SESSION)
        accepted = None
        try:
            accepted = receiver.accept_session(wait)
        finally:
            if accepted is None:
                receiver.close()
        if accepted is None:
            return None
        self._turns[path.key] = (place + 1) % len(self._members)
        return receiver

    # -- stores ---------------------------------------------------------------------------------

    def broker_of(self, key: str) -> Broker:
        """Return the broker of the store with the messages of a session or partition key.

        It stays open until the spread is closed: do not close it.
        """
        place = self._members.place_of(text("key", key, LONGEST_ID))
        return self._members.stores[place].broker()

    def broker_at(self, store: int) -> Broker:
        """Return the broker of the store at a place, from 0. Do not close it."""
        return self._members.stores[whole("store", store, 0, len(self._members) - 1)].broker()

    def each(self, do: Callable[[Broker], T]) -> list[T]:
        """Call a function with the broker of each store, in order; return what it returns.

        All are called, also if one raises; then the first error is raised, with a note that says where.
        """
        if not callable(do):
            raise InvalidOption(f"expected a function of a broker, got {shown(do)}")
        found: list[T] = []
        failed: Exception | None = None
        for member in self._members.stores:
            try:
                found.append(do(member.broker()))
            except Exception as error:
                error.add_note(f"in {member.name}")
                failed = failed or error
        if failed is not None:
            raise failed
        return found

    def counts(self, path: str) -> MessageCounts:
        """Return how many messages a queue has in all stores, by state. Raises EntityNotFound."""
        found = self.each(lambda broker: broker.queue(path).counts)
        names = MessageCounts.__dataclass_fields__
        return MessageCounts(**{name: sum(getattr(one, name) for one in found) for name in names})

    def close(self) -> None:
        """Close all stores. Waiting callers get BrokerClosed. Everything acknowledged is safe."""
        for member in self._members.stores:
            member.close()
