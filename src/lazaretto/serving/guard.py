"""The connections of a server, of all its doors: how many there are, and who must go.

A client that has not logged in is a stranger. Strangers cannot take the last quarter of the connections; the
oldest one goes first when room is needed, and none stays for longer than it may take to log in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from lazaretto.errors import ServerOverloaded, TooManyRequests
from lazaretto.model.limits import ServerLimits
from lazaretto.serving.budget import Budget, Share
from lazaretto.serving.process import OTHER_FILES, most_files

#: Addresses that are told in a minute; the others are counted together.
_MOST: Final = 100
#: Seconds that are counted together.
_SPAN: Final = 60.0
#: Addresses that are remembered; beyond them, the first ones are forgotten.
_MOST_ADDRESSES: Final = 10_000
#: Beyond so many within a minute, waiting grows no longer.
_SLOWEST: Final = 8
#: Where Linux says how much memory a container may take, and how much a process takes.
_CONTAINER: Final = Path("/sys/fs/cgroup/memory.max")
_PROCESS: Final = Path("/proc/self/statm")
#: Of what a container may take; and of the bound of the alarm, below which it is over.
_SHARE: Final = 0.8
_OVER: Final = 0.9
H = TypeVar("H")
_log = logging.getLogger("lazaretto.serving")
#: Seconds between two looks at who must go.
_LOOK: Final = 1.0
_CROWDED: Final = "connections ended to make room, before a login"
_FULL: Final = "connections refused: the server has as many as it may"
_LATE: Final = "connections ended that did not log in, or say what they want, in time"
_HEAVY: Final = "connections ended that held most of the messages that are in part or in transactions"
_REFUSED: Final = "wrong keys, tokens or passwords"


class Report(NamedTuple):
    """Happenings at an address since the last report, and how often. `address`: "" for all others."""

    what: str
    address: str
    times: int


class Reports:
    """Counts what happens until it is told. Times are on the monotonic clock."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._told: float | None = None

    def note(self, what: str, address: str) -> None:
        """Count something that happened to an address."""
        key = what, address
        if key not in self._counts and len(self._counts) >= _MOST:
            key = what, ""
        self._counts[key] += 1

    def take(self, now: float) -> list[Report]:
        """Return what there is to tell, unless something was told less than a minute ago."""
        if not self._counts or (self._told is not None and now - self._told < _SPAN):
            return []
        self._told = now
        reports = [Report(what, address, times) for (what, address), times in self._counts.items()]
        self._counts.clear()
        return reports


class Refusals:
    """When each address was refused. `step`: seconds of the first wait. Times are on the monotonic clock."""

    def __init__(self, step: float) -> None:
        self._step = step
        self._times: dict[str, deque[float]] = {}
        #: How many there were, of all addresses.
        self.count = 0

    def note(self, address: str, now: float) -> float:
        """Note that an address gave a wrong key or token; return for how long it waits for the answer."""
        self.count += 1
        times = self._times.pop(address, None) or deque(maxlen=_SLOWEST)
        times.append(now)
        while now - times[0] >= _SPAN:
            times.popleft()
        self._times[address] = times
        if len(self._times) > _MOST_ADDRESSES:
            del self._times[next(iter(self._times))]
        return self._step * len(times)


class People:
    """Counts what people have under way."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._requests: Counter[str] = Counter()
        self._searches = Budget(limits.searches)
        self._own: dict[str, Budget] = {}

    def begin(self, person: str, share: Share) -> None:
        """Count a request until it ends. Raises TooManyRequests."""
        most = self._limits.requests_per_person
        if self._requests[person] >= most:
            raise TooManyRequests(f"expected at most {most} requests of {person!r} under way, got one more")
        self._requests[person] += 1
        share.at_end(lambda: self._end(person))

    def _end(self, person: str) -> None:
        self._requests[person] -= 1
        if not self._requests[person]:
            del self._requests[person]

    async def search(self, person: str, share: Share) -> None:
        """Wait for a search of a person to have its turn until the request ends. Raises TooManyRequests."""
        own = self._own.setdefault(person, Budget(self._limits.searches_per_person))
        mine, all_ = Share(own), Share(self._searches)

        def end() -> None:
            all_.let_go()
            mine.let_go()
            if not own.held and not own.waited_for:
                self._own.pop(person, None)

        share.at_end(end)
        try:
            await mine.hold(1)
            await all_.hold(1)
        except ServerOverloaded:
            raise TooManyRequests(
                f"expected at most {self._limits.searches_per_person} searches of a person under way, and "
                f"{self._limits.searches} of all, got more: ask again when others are over"
            ) from None


def taken() -> int:
    """Return the bytes that this process has in memory; 0 where the system does not say it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_PROCESS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def allowed(most: int) -> int:
    """Return the bytes above which the alarm rings: `most`, or less in a small container."""
    with contextlib.suppress(OSError, ValueError):
        return min(most, int(int(_CONTAINER.read_text()) * _SHARE))
    return most


class MemoryAlarm:
    """Rings above some bytes, until they are clearly fewer."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.rings = False

    def look(self, size: int) -> bool:
        """Note how many bytes the process takes; return whether the alarm has begun or ended just now."""
        before = self.rings
        self.rings = size > (self.most * _OVER if before else self.most)
        return self.rings is not before


class Holdings(Generic[H]):
    """Bytes that holders have, together at most so many."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        #: Whoever has held something for the longest time stands first.
        self._held: dict[H, int] = {}

    def hold(self, holder: H, size: int) -> None:
        """Note how many bytes somebody holds from now on."""
        self.total += size - self._held.get(holder, 0)
        if size:
            self._held[holder] = size
        else:
            self._held.pop(holder, None)

    @property
    def worst(self) -> H | None:
        """The one that must go: whoever holds most, while all together hold too much. None: nobody."""
        return max(self._held, key=self._held.__getitem__) if self.total > self.most else None


class Seat:
    """The place of a connection.

    `guard`: counts it. `people`: the work that each person has under way. `address`: its client's. `end`:
    hangs up. `look`: says at a time why the connection must end; None: it may stay.
    """

    __slots__ = ("address", "end", "guard", "known", "limits", "look", "people", "since")

    def __init__(self, guard: Guard, address: str, end: Callable[[], object], now: float) -> None:
        self.guard, self.limits, self.people = guard, guard.limits, guard.people
        self.address = address
        self.end = end
        self.look: Callable[[float], str | None] | None = None
        #: Since when the client has been a stranger whom the server waits for; None: it waits for the server.
        self.since: float | None = now
        self.known = False

    def know(self) -> None:
        """Note that the client has logged in."""
        if not self.known:
            self.guard.know(self)

    def wait(self, *, for_client: bool) -> None:
        """Note who waits for whom from now on."""
        self.since = time.monotonic() if for_client else None

    async def refuse_login(self, address: str) -> None:
        """Note that a wrong key or token came from an address, and wait before its client hears of it."""
        await self.guard.refuse_login(address)

    def leave(self) -> None:
        """Note that the connection has ended."""
        self.guard.leave(self)


class Guard:
    """Counts the connections of a server, and the logins that it refused."""

    def __init__(self, limits: ServerLimits | None = None) -> None:
        self.limits = limits or ServerLimits()
        files, connections = most_files(), self.limits.connections
        #: How many there can be: each is an open file, too.
        self.most = connections if files is None else min(connections, max(1, files - OTHER_FILES))
        #: Those whose clients have not logged in, the oldest first; and all others.
        self._strangers: dict[Seat, None] = {}
        self._known: set[Seat] = set()
        self._addresses: Counter[str] = Counter()
        self.refusals = Refusals(self.limits.refusal_seconds)
        self.budget = Budget(self.limits.memory)
        self.people = People(self.limits)
        self._unstored = Holdings[Seat](self.limits.unstored)
        #: Bytes of messages on their way into the store.
        self.storing = 0
        #: What a program took before it began to serve is not the clients' fault.
        self.alarm = MemoryAlarm(allowed(taken() + self.limits.process_size))
        self._reports = Reports()
        self._watching: asyncio.Task[None] | None = None
        self._open = 0

    @property
    def strangers(self) -> int:
        """The connections of clients that have not logged in."""
        return len(self._strangers)

    @property
    def connections(self) -> int:
        """All connections."""
        return len(self._strangers) + len(self._known)

    def admit(self, address: str, end: Callable[[], object]) -> Seat | None:
        """Return a place for a stranger's connection, for which another may have to go; None: there is none.

        `end`: hangs up.
        """
        limits = self.limits
        if self._addresses[address] >= limits.connections_per_address:
            self._reports.note(_FULL, address)
            return None
        full = self.connections >= self.most or self.strangers >= limits.strangers(self.most)
        if full and not self._make_room():
            self._reports.note(_FULL, address)
            return None
        seat = Seat(self, address, end, time.monotonic())
        self._strangers[seat] = None
        self._addresses[address] += 1
        return seat

    def _make_room(self) -> bool:
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        self._end(oldest, _CROWDED)
        return True

    def _end(self, seat: Seat, why: str) -> None:
        self._reports.note(why, seat.address)
        self.leave(seat)
        seat.end()

    def know(self, seat: Seat) -> None:
        """Note that a client has logged in."""
        if seat in self._strangers:
            del self._strangers[seat]
            self._known.add(seat)
            seat.known = True

    def leave(self, seat: Seat) -> None:
        """Note that a connection has ended."""
        self._unstored.hold(seat, 0)
        if seat in self._strangers:
            del self._strangers[seat]
        elif seat in self._known:
            self._known.discard(seat)
        else:
            return
        self._addresses[seat.address] -= 1
        if not self._addresses[seat.address]:
            del self._addresses[seat.address]

    async def refuse_login(self, address: str) -> None:
        """Note that an address gave a wrong key or token, and wait before it hears of it."""
        self._reports.note(_REFUSED, address)
        # Behind a connection that the guard would end meanwhile.
        await asyncio.sleep(self.refusals.note(address, time.monotonic()))

    def hold(self, seat: Seat, size: int) -> None:
        """Note how many bytes of messages a connection holds; whoever holds most is ended above the limit."""
        self._unstored.hold(seat, size)
        while (worst := self._unstored.worst) is not None:
            self._end(worst, _HEAVY)

    @property
    def is_crowded(self) -> bool:
        """Whether so much is on its way into the store that no more should come."""
        return self.storing > self.limits.unstored

    def refuse_new_work(self) -> None:
        """Raise ServerOverloaded while the process takes too much memory."""
        if self.alarm.rings:
            raise ServerOverloaded("expected less memory to be taken by the server: ask again later")

    def exposition(self) -> bytes:
        """Return how the server stands, in Prometheus's format."""
        lines = []
        for name, kind, what, values in (
            ("server_memory_bytes", "gauge", "Bytes that the server's process has in memory.", {"": taken()}),
            ("server_memory_alarm", "gauge", "1 while the server refuses new work for want of memory.",
             {"": int(self.alarm.rings)}),
            ("server_connections", "gauge", "Connections of clients, of all doors.",
             {'{state="known"}': len(self._known), '{state="stranger"}': len(self._strangers)}),
            ("refused_logins_total", "counter", "Wrong keys, tokens and login links.",
             {"": self.refusals.count}),
        ):  # fmt: skip
            lines += [f"# HELP lazaretto_{name} {what}", f"# TYPE lazaretto_{name} {kind}"]
            lines += [f"lazaretto_{name}{labels} {value}" for labels, value in values.items()]
        return "\n".join([*lines, ""]).encode()

    def look(self, now: float) -> None:
        """End connections that must go, and tell the log what happened."""
        if self.alarm.look(taken()):
            text = "new work is refused" if self.alarm.rings else "new work is taken again"
            _log.warning(
                "%s: the server takes %d bytes of memory", text, taken(),
                extra={"event": "memory_alarm", "rings": self.alarm.rings},
            )  # fmt: skip
        longest = self.limits.opening_seconds
        for seat in [one for one in self._strangers if one.since is not None and now - one.since > longest]:
            self._end(seat, _LATE)
        for seat in [*self._strangers, *self._known]:
            why = None if seat.look is None else seat.look(now)
            if why is not None:
                self._end(seat, why)
        for what, address, times in self._reports.take(now):
            _log.warning(
                "%s: %d from %s", what, times, address or "others",
                extra={"event": "refused", "reason": what, "address": address, "times": times},
            )  # fmt: skip

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look at the connections while the context lasts; doors that share a guard each enter one."""
        self._open += 1
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._watching.cancel()
                await asyncio.gather(self._watching, return_exceptions=True)
                self._watching = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(_LOOK, self.limits.opening_seconds))
            try:
                self.look(time.monotonic())
            except Exception:
                _log.exception("connections could not be looked at")
