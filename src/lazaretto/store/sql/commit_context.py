"""Common ground of a transaction's parts: the commit's time, its queries, and what follows it."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lazaretto.model.breaker import BreakerPolicy, BreakerWindow
from lazaretto.model.fingerprint import Fingerprint
from lazaretto.model.keys import lower_bound, upper_bound
from lazaretto.model.rates import ALL_QUEUES, EVER, KINDS, MINUTE, SPANS
from lazaretto.store.records.messages import FOR_CLIENTS, FRESH, Notice
from lazaretto.store.sql.rows import Cursor, Memory
from lazaretto.store.sql.statements import Dialect, Statement, Statements

#: How many notices of one commit are kept: a log of more helps nobody.
_MOST_NOTICES = 1_000


class Tally(NamedTuple):
    """How many dead letters of a fingerprint came in a commit, and how many were resolved."""

    came: int = 0
    #: When the first and the last were set aside; those without a fingerprint were so before this commit.
    first: int = 0
    last: int = 0
    resolved: int = 0
    print_: Fingerprint | None = None
    #: How many came in each hour since 1970.
    hours: Mapping[int, int] = {}


@dataclasses.dataclass(slots=True)
class Identity:
    """The committer. `holder`: the name in locks, which tells those that a worker takes for clients."""

    worker: str
    holder: str
    #: What it saw of the latest messages of its clients, by queue. A commit that is undone is done again, and
    #: the same message counts once.
    windows: dict[int, BreakerWindow] = dataclasses.field(default_factory=dict)
    #: When to look again whether there is something to receive, by place.
    again: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def serves(self) -> bool:
        """Whether it holds messages for clients of a server."""
        return self.holder != self.worker

    def window(self, queue_id: int, policy: BreakerPolicy) -> BreakerWindow:
        """Return what it saw of its clients' latest messages in a queue, by the policy of its breaker."""
        window = self.windows.get(queue_id)
        # Asked with each message: the options of a queue are mostly the same object.
        if window is None or (window.policy is not policy and window.policy != policy):
            window = self.windows[queue_id] = BreakerWindow(policy)
        return window

    def hold_for_clients(self) -> None:
        """Take locks for clients of a server from now on."""
        self.holder = f"{self.worker}{FOR_CLIENTS}"


class CommitContext(Statements):
    """One connection's commits, one after the other."""

    def __init__(
        self,
        execute: Callable[..., Cursor],
        dialect: Dialect,
        memory: Memory,
        identity: Identity,
        *,
        reads: bool = False,
    ) -> None:
        super().__init__(execute, dialect)
        self.memory = memory
        self.identity = identity
        self.worker = identity.worker
        #: Whether it only reads.
        self.reads = reads
        #: Whether claims lock fresh messages by ranges: no worker is left that knows of none.
        self.claims_ranges = True
        self.now = 0
        #: Where there may be something to receive, and for how many receivers.
        self.woken: dict[int, int] = {}
        #: When the first of what this commit has written comes due, locks aside.
        self.comes_due: int | None = None
        #: How far this commit has moved on into the fresh messages, by queue.
        self.cursors: dict[int, int] = {}
        #: What is logged once this commit is done.
        self.notices: list[Notice] = []
        #: Dead letters that this commit has counted and not written, by place and fingerprint.
        self.counted: dict[tuple[int, int], Tally] = {}
        #: What this commit and earlier ones have counted, and whether this one writes what earlier ones have.
        self.rates = RateLog()
        self.adds_rates = False
        #: Whether this commit makes the process known as a worker.
        self.registers = False

    def begin(self, now: int) -> None:
        """Start on a new commit."""
        self.now = now
        self.registers = False
        self.comes_due = None
        if self.woken:
            self.woken = {}
        if self.cursors:
            self.cursors = {}
        if self.notices:
            self.notices = []
        if self.counted:
            self.counted = {}
        rates = self.rates
        if len(rates.entries) != rates.kept:
            # A commit that was undone.
            del rates.entries[rates.kept :]
        if not rates.began <= now < rates.until:
            rates.turn(now)
        self.adds_rates = False

    def undone(self) -> None:
        """Forget remembered values that came from undone work."""
        self.memory.forget()

    def wake(self, key: int, messages: int = 1) -> None:
        """See Transaction."""
        place = key >> 42
        self.woken[place] = self.woken.get(place, 0) + messages

    def note_due(self, due: int) -> None:
        """Note when something comes due that a commit writes."""
        if self.comes_due is None or due < self.comes_due:
            self.comes_due = due

    def tell(self, notice: Notice) -> None:
        """See Transaction."""
        if len(self.notices) < _MOST_NOTICES:
            self.notices.append(notice)

    def by_now(self) -> dict[str, int]:
        """Return the moment that timers are compared with, as the parameters of queries."""
        return {"now": self.now}

    def first_fresh(self, queue_id: int) -> int | None:
        """Return the key behind which a queue's fresh messages start, if it is known."""
        return self.cursors.get(queue_id) or self.memory.cursors.get(queue_id)

    def fresh_start(self, queue_id: int) -> int | None:
        """Return the same, behind what claims lock by ranges."""
        start = self.first_fresh(queue_id)
        # Mostly it was asked, and nothing is.
        if self.memory.claimed is not False and self.any_claimed():
            place = {"first": start or lower_bound(queue_id), "last": upper_bound(queue_id)}
            (last,) = self.run("last_claimed", place).fetchone()
            start = start if last is None else last
        return start

    def any_claimed(self) -> bool:
        """Return whether claims may lock messages by ranges."""
        memory = self.memory
        if memory.claimed is None:
            memory.claimed = bool(self.run("any_claimed").fetchone()[0])
        return memory.claimed

    def write_claimed(self, statement: Statement, values: Mapping[str, Any] | Sequence[Any]) -> None:
        if self.reads or not self.any_claimed():
            return
        named = statement.by_name(values)
        if "first" not in named:
            self.run("write_claimed_of", {"keys": self._keys_in(statement, values)})
        else:
            self.run("write_claimed_between", {"first": named["first"], "last": named["last"]})

    def lock_range(self, first: int, last: int, token: int, until: int | None) -> None:
        """Lock the fresh messages between two keys."""
        values = {"first": first, "last": last, "state": FRESH, "token": token, "until": until}
        self.run("lock_range", {**values, "now": self.now, "worker": self.identity.holder})


class Part:
    """Operations on the tables of one subject within one commit."""

    def __init__(self, context: CommitContext) -> None:
        self._context = context


#: How long counts are collected before a commit writes them, in seconds.
_RATES_EVERY = 1.0
#: How many counts are kept one by one, before they are summed.
_MOST_COUNTS = 10_000


class RateLog:
    """Counts of committed operations that no commit has written. Whoever may write uses it.

    A commit only appends to a list, because it is part of every send; the rest is done once a second.
    """

    def __init__(self) -> None:
        #: What was counted in the minute that began at a time, with queue and kind in one number, and how
        #: much of it is committed.
        self.entries: list[tuple[int, int]] = []
        self.kept = 0
        self.began = self.until = 0
        #: Whether the next commit writes all.
        self.due = False
        self._sums: dict[int, Counter[tuple[int, int]]] = {}
        self._written = time.monotonic()

    def turn(self, now: int) -> None:
        """Start on another minute; what is not committed is gone."""
        self._fold()
        self.began = now - now % MINUTE
        self.until = self.began + MINUTE

    def keep(self) -> None:
        """Keep what a commit has counted."""
        self.kept = len(self.entries)
        if self.kept > _MOST_COUNTS:
            self._fold()

    def add(self, other: RateLog) -> None:
        """Add what another log's commit has counted."""
        del self.entries[self.kept :]
        self.turn(other.began)
        self.entries += other.entries
        self.keep()

    def _fold(self) -> None:
        if self.kept:
            # The same count comes again and again.
            self._sums.setdefault(self.began // MINUTE, Counter()).update(self.entries[: self.kept])
        self.entries.clear()
        self.kept = 0

    @property
    def any(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.kept or self._sums)

    def left(self) -> bool:
        """Have the next commit write, if it is time; return whether none has since that was said."""
        if not self.any:
            return False
        if not self.due:
            self.due = time.monotonic() >= self._written + _RATES_EVERY
            return False
        return True

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Give the rows to add, in one order in all processes: queue, span, start and counts."""
        rows: dict[tuple[int, int, int], list[int]] = {}
        latest = Counter(self.entries[: self.kept])
        for minute, sums in (*self._sums.items(), (self.began // MINUTE, latest)):
            for (key, amount), times in sums.items():
                for span in (*SPANS.values(), EVER):
                    start = minute - minute % span if span else 0
                    for queue in (key >> 3, ALL_QUEUES):
                        rows.setdefault((queue, span, start), [0] * KINDS)[key & 7] += amount * times
        return ((*start, *counts) for start, counts in sorted(rows.items()))

    def written(self) -> None:
        """Forget what a commit has written, which is all that was kept before it."""
        self._sums = {}
        del self.entries[: self.kept]
        self.kept = 0
        self._written = time.monotonic()
        self.due = False
