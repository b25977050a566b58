"""The stores of a spread: opened when they are needed, left alone for a while when they cannot be reached."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypedDict, TypeVar

from lazaretto.broker import Broker, connect, store_of
from lazaretto.engine.entities.spreads import JoinSpread, SpreadMark, spread_mark
from lazaretto.errors import BrokerClosed, InvalidOption, StoreUnavailable
from lazaretto.model.checks import GivenDuration, seconds
from lazaretto.model.clock import MICROSECONDS, Clock
from lazaretto.model.partitions import LOOK_EVERY, Keyed, partition_key_of, partition_of
from lazaretto.store.addresses import without_password

T = TypeVar("T")

#: How long a store that could not be reached is left alone by who need not have it, in seconds, and at least
#: how many times as long as it took to find that out: so most of the time goes to the others.
_REST: Final = 5.0
_REST_TIMES: Final = 4
#: How often who waits looks at all stores, in seconds.
_LOOK_EVERY: Final = LOOK_EVERY / MICROSECONDS


class StoreOptions(TypedDict, total=False):
    """Options of `lazaretto.connect`, for type checkers and editors."""

    clock: Clock | None
    create: bool
    adopt: bool
    timeout: GivenDuration
    durable_attempts: bool
    create_spans: bool


class Member:
    """One store of a spread, at a place of it. Threads can share it."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        self._url = url
        self._options = options
        self._broker: Broker | None = None
        self._opening = threading.Lock()
        self._closed = False
        self._resting_until = self._failed_at = 0.0
        #: Whether somebody is finding out if it is back.
        self._tried = False
        self.mark: SpreadMark | None = None

    @property
    def name(self) -> str:
        """Its address, as it may be shown."""
        return without_password(self._url)

    @property
    def rests(self) -> bool:
        """Whether it could not be reached a moment ago, or another thread is finding out if it is back."""
        return self._tried or time.monotonic() < self._resting_until

    def broker(self) -> Broker:
        """Return the broker of the store. Raises StoreUnavailable, and what `connect` does."""
        asked = time.monotonic()
        with self._opening:
            if self._closed:
                raise BrokerClosed("this spread is closed")
            if self._broker is None:
                if self._failed_at > asked:
                    # Who has waited for the attempt of another thread does not make one of its own.
                    raise StoreUnavailable(f"{self.name} cannot be reached; try again")
                with self.watched():
                    opened = connect(self._url, **self._options)
                    try:
                        self._check(opened)
                    except BaseException:
                        opened.close()
                        raise
                    self._broker = opened
            return self._broker

    def _check(self, opened: Broker) -> None:
        found = store_of(opened).read(spread_mark)
        if self.mark is not None and found != self.mark:
            raise misplaced(self, self.mark, found)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Leave the store alone for a while if what is done in this block finds that it cannot be reached."""
        self._tried = self._resting_until > 0.0
        begun = time.monotonic()
        try:
            yield
        except StoreUnavailable:
            self._failed_at = time.monotonic()
            self._resting_until = self._failed_at + max(_REST, _REST_TIMES * (self._failed_at - begun))
            raise
        else:
            self._resting_until = 0.0
        finally:
            self._tried = False

    def close(self) -> None:
        with self._opening:
            self._closed = True
            opened, self._broker = self._broker, None
        if opened is not None:
            opened.close()


class Members:
    """All stores of a spread, in order, and which of them this process is at home in."""

    def __init__(self, stores: Sequence[Member], home: int) -> None:
        self.stores = stores
        self.home = home

    def __len__(self) -> int:
        return len(self.stores)

    def place_of(self, key: str) -> int:
        """Return in which store the messages of a session or partition key are."""
        return partition_of(key, len(self.stores))

    def place_for(self, message: Keyed, *, detects: bool) -> int | None:
        """Return the store that a message must go to; None: any. `detects`: duplicates are detected."""
        key = partition_key_of(message, detects=detects)
        return None if key is None else self.place_of(key)

    def from_home(self) -> list[int]:
        """Return all places, the home first, those that could not be reached a moment ago last."""
        return sorted(self.starting_at(self.home), key=lambda place: self.stores[place].rests)

    def starting_at(self, place: int) -> list[int]:
        """Return all places in turn, from one on."""
        count = len(self.stores)
        return [(place + step) % count for step in range(count)]


def first_answer(members: Members, order: Sequence[int], ask: Callable[[int], T | None]) -> T | None:
    """Return what the first of some stores answers that has an answer; None if none has one.

    Those that could not be reached a moment ago are asked only if no other one can be. Raises
    StoreUnavailable if none can.
    """
    failed: StoreUnavailable | None = None
    reached = False
    for place in sorted(order, key=lambda place: members.stores[place].rests):
        if reached and members.stores[place].rests:
            break
        try:
            with members.stores[place].watched():
                found = ask(place)
        except StoreUnavailable as error:
            failed = failed or error
            continue
        if found:
            return found
        reached = True
    if failed is not None and not reached:
        raise failed
    return None


def await_answer(
    members: Members,
    order: Callable[[], Sequence[int]],
    ask: Callable[[int, float], T | None],
    max_wait: GivenDuration | None,
) -> T | None:
    """Return what a store answers within `max_wait` seconds (None: forever); None if none has an answer.

    `order`: of the stores, asked for before each look at all of them. `ask`: with a place, and the seconds to
    wait there. Between two looks it waits at home. Raises StoreUnavailable if none can be reached.
    """
    wait = None if max_wait is None else seconds("max_wait", max_wait)
    end = None if wait is None else time.monotonic() + wait
    while True:
        found = first_answer(members, order(), lambda place: ask(place, 0.0))
        left = _LOOK_EVERY if end is None else min(_LOOK_EVERY, end - time.monotonic())
        if found or left <= 0:
            return found
        # The others are looked at again soon, also if this one is lost meanwhile.
        with contextlib.suppress(StoreUnavailable):
            found = first_answer(members, members.from_home()[:1], functools.partial(_asked, ask, left))
            if found:
                return found


def _asked(ask: Callable[[int, float], T | None], wait: float, place: int) -> T | None:
    return ask(place, wait)


def join(stores: Sequence[Member], *, moves: bool) -> None:
    """Mark all stores as those of one spread, or check that they are.

    `moves`: mark them anew if they belong to others or come in another order. Raises InvalidOption if they do
    without it, NotAllowed if one that is to be marked has messages, and StoreUnavailable if one cannot be
    reached and there are none with marks to go by.
    """
    found: dict[Member, SpreadMark | None] = {}
    missing: StoreUnavailable | None = None
    for store in stores:
        try:
            found[store] = store_of(store.broker()).read(spread_mark)
        except StoreUnavailable as error:
            missing = error
    spread = next((mark.spread for mark in found.values() if mark is not None), None)
    wrong = [
        (store, wanted, found[store])
        for store, wanted in _marks(stores, spread or "")
        if found.get(store) not in (None, wanted)
    ]
    if wrong and not moves:
        raise misplaced(*wrong[0])
    if missing is not None and (wrong or spread is None):
        raise missing
    if wrong or spread is None:
        spread = uuid.uuid4().hex
        # All are asked before one is marked, so that what is refused changes nothing.
        for store, wanted in _marks(stores, spread):
            store_of(store.broker()).read(JoinSpread(wanted, found[store]).kept)
        # Another process may have marked the first store meanwhile: then its spread is this one.
        spread = _join(stores[0], SpreadMark(spread, 0, len(stores)), found).spread
    for store, wanted in _marks(stores, spread):
        mark = _join(store, wanted, found) if store in found else wanted
        if mark != wanted:
            raise misplaced(store, wanted, mark)
        store.mark = wanted


def _marks(stores: Sequence[Member], spread: str) -> list[tuple[Member, SpreadMark]]:
    return [(store, SpreadMark(spread, place, len(stores))) for place, store in enumerate(stores)]


def _join(store: Member, wanted: SpreadMark, found: dict[Member, SpreadMark | None]) -> SpreadMark:
    return store_of(store.broker()).run(JoinSpread(wanted, found[store]))


def misplaced(store: Member, wanted: SpreadMark, found: SpreadMark | None) -> InvalidOption:
    """Return the error of a store that is not where it was when the spread was made."""
    given = f"store {wanted.place + 1} of {wanted.stores}"
    if found is None:
        return InvalidOption(f"expected {store.name} to be {given} of this spread, got one that is in none")
    if found.spread != wanted.spread:
        return InvalidOption(
            f"expected {store.name} to be {given} of this spread, got one of another spread: name the stores "
            "of one; if a move was interrupted, finish it: call connect again with moves=True"
        )
    return InvalidOption(
        f"expected {store.name} to be store {found.place + 1} of {found.stores}, as when the spread was "
        f"made, got {given}: name the same stores in the same order, or empty them and set moves=True"
    )
