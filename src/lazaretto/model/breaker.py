"""The breaker's decisions between poison and outage: pure functions, and a window of latest outcomes.

A few messages that fail while their neighbours succeed are poison. Many different messages that fail
in one way while few succeed are an outage: then nothing is handed out but a probe now and then.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from lazaretto.model.clock import MICROSECONDS
from lazaretto.model.options import Duration, duration, flag, fraction, integer, option, option_set

_replace = msgspec.structs.replace

#: The limit of a ramp at which the breaker is closed: some thirty messages were processed by then.
FULL = 32
#: How many probes of one outage are remembered, of which any may end it.
_PROBES = 32
#: How many failures of one kind are remembered to be given back.
_MOST_REMEMBERED = 100_000


class BreakerStatus(enum.Enum):
    """Whether service hosts are handed messages, and clients if the breaker is for them too."""

    #: Everything is handed out.
    CLOSED = "closed"
    #: An outage: only probes are handed out.
    OPEN = "open"
    #: The outage seems over: more and more is handed out.
    RAMPING = "ramping"
    #: An operator keeps it open: nothing is handed out.
    HELD_OPEN = "held_open"
    #: An operator keeps it closed: every failure counts.
    HELD_CLOSED = "held_closed"


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a queue's failures are an outage, and how its end is noticed.

    Options:
        messages: Different messages that must fail alike, among twice as many, to open the breaker.
        share: Share of those messages that must fail alike.
        window: Period in which failures belong to one outage.
        probe_interval: Time to the first probe; each further probe waits half as long again.
        longest_probe_interval: Longest time between two probes.
        clients: It is for clients of AMQP and HTTP too. They name no error, so any failures are alike:
            messages that are abandoned, or whose lock expires.
    """

    messages: int = option(10, integer(2, 10_000))
    share: float = option(0.8, fraction(0.01))
    window: Duration = option(60.0, duration(0.001))
    probe_interval: Duration = option(1.0, duration(0.001))
    longest_probe_interval: Duration = option(5.0, duration(0.001))
    clients: bool = option(False, flag())


class BreakerState(msgspec.Struct, frozen=True):
    """A breaker that is not closed. Times in microseconds.

    `fingerprint` and `error` tell the failure; `interval` is the pause to the next probe, at
    `probe_at`; `probed`: the key of the latest probe; `limit`: messages of one hand-over in a ramp.
    Of clients, whose messages are settled one by one: `probes`, the keys of the latest, and in a ramp
    `ramping`, its begin, and `failing`, the keys of messages that failed in it.
    """

    status: BreakerStatus
    since: int
    fingerprint: str | None = None
    error: str | None = None
    interval: int = 0
    probe_at: int = 0
    probed: int = 0
    limit: int = 1
    probes: tuple[int, ...] = ()
    ramping: int = 0
    failing: tuple[int, ...] = ()


class Passage(NamedTuple):
    """A way through a breaker: for how many messages, behind which key, and whether their result decides."""

    limit: int
    after: int = 0
    decides: bool = False


def passage(state: BreakerState | None, limit: int, now: int) -> Passage | None:
    """Return how many of `limit` messages may be handed out; None: none are, for now."""
    if state is None or state.status is BreakerStatus.HELD_CLOSED:
        return Passage(limit)
    if state.status is BreakerStatus.HELD_OPEN:
        return None
    if state.status is BreakerStatus.OPEN and now < state.probe_at:
        return None
    # Probes rotate through the queue, so that messages that always fail do not decide alone.
    return Passage(min(limit, state.limit), state.probed, decides=True)


def opened(policy: BreakerPolicy, fingerprint: str, error: str, now: int) -> BreakerState:
    """Return the state of a breaker that has found an outage."""
    interval = round(policy.probe_interval * MICROSECONDS)
    return BreakerState(BreakerStatus.OPEN, now, fingerprint, error, interval, now + interval)


def probing(policy: BreakerPolicy, state: BreakerState, key: int, now: int) -> BreakerState:
    """Return the state after a probe was handed out, up to `key`: the next one waits longer."""
    if state.status is not BreakerStatus.OPEN:
        return _replace(state, probed=key)
    interval = min(state.interval * 3 // 2, round(policy.longest_probe_interval * MICROSECONDS))
    probes = (*state.probes, key)[-_PROBES:]
    return _replace(state, interval=interval, probe_at=now + interval, probed=key, probes=probes)


def succeeded(state: BreakerState) -> BreakerState | None:
    """Return the state after a hand-over whose messages were processed; None is closed."""
    limit = state.limit * 2
    if state.status is BreakerStatus.OPEN:
        return _replace(state, status=BreakerStatus.RAMPING, limit=2)
    return None if limit >= FULL else _replace(state, limit=limit)


def failed_again(policy: BreakerPolicy, state: BreakerState, now: int) -> BreakerState:
    """Return the state after the failure came back: open, as at the first time."""
    if state.status is BreakerStatus.OPEN:
        return state
    interval = round(policy.probe_interval * MICROSECONDS)
    return _replace(
        state, status=BreakerStatus.OPEN, interval=interval, probe_at=now + interval, limit=1,
        probes=(), ramping=0, failing=(),
    )  # fmt: skip


def clients_completed(state: BreakerState, keys: Collection[int], now: int) -> BreakerState | None:
    """Return the state after clients completed messages; None is closed.

    What they had before the outage tells nothing of its end: only a probe does.
    """
    if state.status is BreakerStatus.OPEN:
        if not any(key in state.probes for key in keys):
            return state
        return _replace(state, status=BreakerStatus.RAMPING, limit=2, ramping=now)
    if state.status is not BreakerStatus.RAMPING:
        return state
    limit = state.limit + len(keys)
    return None if limit >= FULL else _replace(state, limit=limit)


def client_failed(policy: BreakerPolicy, state: BreakerState, key: int, now: int) -> BreakerState:
    """Return the state after a client's message failed: open again if more fail than are completed.

    One message that fails again and again is poison, also in a ramp.
    """
    if state.status is not BreakerStatus.RAMPING or key in state.failing:
        return state
    failing = (*state.failing, key)
    if len(failing) >= state.limit:
        return failed_again(policy, state, now)
    return _replace(state, failing=failing)


class BreakerWindow:
    """The latest outcomes that one host saw on a queue. Not for several threads at once."""

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        #: The latest different messages: their key, and how each ended last (None: processed).
        self._latest: OrderedDict[int, str | None] = OrderedDict()
        #: What each message was charged for, by fingerprint: how often, and when first.
        self._charges: dict[str, dict[int, tuple[int, float]]] = {}
        self._failing = 0

    def note(self, outcomes: Sequence[tuple[int, str | None]], now: float) -> str | None:
        """Add outcomes in their order; return the fingerprint of an outage, if this is one.

        `now`: seconds on any clock that does not jump.
        """
        if all(fingerprint is None for _, fingerprint in outcomes):
            self.note_completed([key for key, _ in outcomes], now)
            return None
        latest, most, reason = self._latest, 2 * self.policy.messages, None
        self._forget(now)
        for key, fingerprint in outcomes:
            if key in latest:
                self._failing -= latest.pop(key) is not None
            latest[key] = fingerprint
            if fingerprint is not None:
                self._failing += 1
                charges = self._charges.setdefault(fingerprint, {})
                if len(charges) < _MOST_REMEMBERED:
                    count, first = charges.get(key, (0, now))
                    charges[key] = (count + 1, first)
            if len(latest) > most:
                self._failing -= latest.popitem(last=False)[1] is not None
            if reason is None and fingerprint is not None and self._failing >= self.policy.messages:
                # Looked for at each failure: an outage may be over again at the end of a batch.
                reason = self._outage()
        return reason

    def note_completed(self, keys: Sequence[int], now: float) -> None:
        """Add messages that have all succeeded, as `note` does, of which the latest are remembered."""
        latest, most = self._latest, 2 * self.policy.messages
        if self._charges:
            self._forget(now)
        for key in keys[-most:]:
            self._failing -= latest.pop(key, None) is not None
            latest[key] = None
            if len(latest) > most:
                self._failing -= latest.popitem(last=False)[1] is not None

    def _outage(self) -> str | None:
        counts: dict[str, int] = {}
        for key, fingerprint in self._latest.items():
            if fingerprint is not None and key in self._charges.get(fingerprint, ()):
                counts[fingerprint] = counts.get(fingerprint, 0) + 1
        for fingerprint, count in counts.items():
            if count >= self.policy.messages and count >= self.policy.share * len(self._latest):
                return fingerprint
        return None

    def _forget(self, now: float) -> None:
        """Forget charges that are too old to be part of an outage that begins now."""
        oldest = now - self.policy.window
        for fingerprint, charges in list(self._charges.items()):
            # The first charged stand first.
            for key in [key for key, (_, first) in _leading(charges, oldest)]:
                del charges[key]
            if not charges:
                del self._charges[fingerprint]

    def take_charges(self, fingerprint: str) -> dict[int, int]:
        """Return how often each message was charged for a failure, and forget all outcomes."""
        charges = {key: count for key, (count, _) in self._charges.get(fingerprint, {}).items()}
        self._latest.clear()
        self._charges.clear()
        self._failing = 0
        return charges


def _leading(charges: dict[int, tuple[int, float]], oldest: float) -> Iterable[tuple[int, tuple[int, float]]]:
    for item in charges.items():
        if item[1][1] >= oldest:
            return
        yield item
