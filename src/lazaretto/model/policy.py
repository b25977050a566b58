"""Verdicts on messages that failed: the poison policy, as pure functions.

Nothing here reads a clock, a store or a random number.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Literal, NamedTuple, Protocol

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import GivenDuration, member, seconds, whole
from lazaretto.model.failure import WORKER_CRASHED
from lazaretto.model.options import (
    Converted,
    Duration,
    choice,
    duration,
    fraction,
    integer,
    option,
    option_set,
    optional,
    special,
)

#: A retry count that is never reached.
UNLIMITED = 2_147_483_647


class Disposition(enum.Enum):
    """The fate of a message whose attempts are used up (WCF's ReceiveErrorHandling)."""

    MOVE = "move"
    FAULT = "fault"
    DROP = "drop"
    REJECT = "reject"


DISPOSITIONS = {d.value: d for d in Disposition}

#: A disposition as it may be given.
GivenDisposition = Disposition | Literal["move", "fault", "drop", "reject"]

#: The reason of a message whose attempts are used up, as Service Bus names it.
COUNT_REASON = "MaxDeliveryCountExceeded"
#: What may be decided on a poison message besides the dispositions: its attempts start again.
RETRY = "retry"
PoisonVerdict = Disposition | Literal["retry"]


_STORED_LOCK_EXPIRED = "expired"


class Outcome(enum.Enum):
    """The end of an attempt."""

    COMPLETED = "completed"
    FAILED = "failed"
    INVALID = "invalid"
    LOST = "lost"
    LOCK_EXPIRED = "lock_expired"
    DEFERRED = "deferred"
    RELEASED = "released"
    DEAD_LETTERED = "dead_lettered"

    # Each message's is hashed: by identity, as they are compared, and not by name.
    __hash__ = object.__hash__

    @property
    def stored(self) -> str:
        """The name in a store: workers of earlier versions, which may share the store, know it."""
        return _STORED_LOCK_EXPIRED if self is Outcome.LOCK_EXPIRED else self.value

    @classmethod
    def _missing_(cls, value: object) -> Outcome | None:
        return cls.LOCK_EXPIRED if value == _STORED_LOCK_EXPIRED else None


class Growth(enum.Enum):
    """Growth of the delay between retry cycles from one cycle to the next."""

    CONSTANT = "constant"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


_GROWTHS = {g.value: g for g in Growth}
GivenGrowth = Growth | Literal["constant", "linear", "exponential"]


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The delay before each retry cycle.

    Options:
        initial: Delay before the first retry cycle.
        growth: How the delay grows from cycle to cycle; linear: cycle number x initial,
            exponential: doubled each time.
        maximum: Longest delay before a retry cycle.
        jitter: Share of the delay that is random, so that messages that failed together do not
            return together.
    """

    initial: Duration = option(10.0, duration())
    growth: Converted[Growth, GivenGrowth] = option(Growth.EXPONENTIAL, choice(_GROWTHS))
    maximum: Duration = option(86_400.0, duration())
    jitter: float = option(0.0, fraction())

    def delay(self, cycle: int, draw: float) -> float:
        """Return the seconds to wait before retry cycle `cycle` (from 1); `draw` is from 0 to 1."""
        grown = {
            Growth.CONSTANT: self.initial,
            Growth.LINEAR: self.initial * cycle,
            Growth.EXPONENTIAL: self.initial * 2.0 ** min(cycle - 1, 64),
        }[self.growth]
        return min(grown, self.maximum) * (1.0 - self.jitter * draw)


def _delay(name: str, value: object) -> float | Backoff:
    return value if isinstance(value, Backoff) else seconds(name, value)


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoisonPolicy:
    """When a message counts as poison, and what happens to it then.

    A message is tried `receive_retry_count` + 1 times, then waits in `;retry` and is tried as often
    again, `max_retry_cycles` times. The default is `service_bus()`.

    Options:
        receive_retry_count: Retries per cycle.
        max_retry_cycles: Number of delayed retry cycles.
        retry_cycle_delay: Delay before each retry cycle.
        on_poison: What happens to a message when its attempts are used up.
        on_invalid: What happens to a message that can never succeed.
        max_worker_deaths: Number of worker crashes that make a message poison, whatever attempts
            remain. Without it, a crash is a failed attempt.
        disable_after_rollbacks: Number of consecutive rolled-back receives that disable the queue.
    """

    receive_retry_count: int = option(9, integer(0, UNLIMITED))
    max_retry_cycles: int = option(0, integer(0, UNLIMITED))
    retry_cycle_delay: Converted[float | Backoff, GivenDuration | Backoff] = option(
        1800.0, special(_delay, "a duration; `Backoff`")
    )
    on_poison: Converted[Disposition, GivenDisposition] = option(Disposition.MOVE, choice(DISPOSITIONS))
    on_invalid: Converted[Disposition, GivenDisposition] = option(Disposition.MOVE, choice(DISPOSITIONS))
    max_worker_deaths: int | None = option(
        4, optional(integer(1, UNLIMITED)), page="service-host.md#crash-attribution"
    )
    disable_after_rollbacks: int | None = option(None, optional(integer(1, UNLIMITED)))

    @classmethod
    def service_bus(cls, max_delivery_count: int = 10) -> PoisonPolicy:
        """Azure Service Bus: that many attempts, then move to the dead-letter queue."""
        whole("max_delivery_count", max_delivery_count, 1, UNLIMITED)
        return cls(receive_retry_count=max_delivery_count - 1)

    @classmethod
    def wcf(cls, on_poison: GivenDisposition = Disposition.FAULT) -> PoisonPolicy:
        """Queued WCF over MSMQ 4: 5 retries, 2 cycles 30 minutes apart, then fault: 18 attempts."""
        return cls(receive_retry_count=5, max_retry_cycles=2, retry_cycle_delay=1800.0, on_poison=on_poison)

    @classmethod
    def wcf_msmq3(cls, on_poison: GivenDisposition = Disposition.FAULT) -> PoisonPolicy:
        """Queued WCF over MSMQ 3: 5 retries, no cycles, then fault or drop.

        MSMQ 3 had no subqueues and no negative acknowledgements, so move and reject are refused.
        """
        disposition = member("on_poison", on_poison, DISPOSITIONS)
        if disposition in (Disposition.MOVE, Disposition.REJECT):
            raise InvalidOption(f"expected on_poison to be fault or drop on MSMQ 3, got {disposition.value}")
        return cls(receive_retry_count=5, on_poison=disposition, on_invalid=disposition)

    @classmethod
    def service_broker(cls) -> PoisonPolicy:
        """SQL Server Service Broker: nothing counts per message; 5 rollbacks switch the queue off."""
        return cls(receive_retry_count=UNLIMITED, max_worker_deaths=None, disable_after_rollbacks=5)

    @classmethod
    def nservicebus(cls) -> PoisonPolicy:
        """NServiceBus: 5 immediate retries, 3 delayed ones 10, 20, 30 s later, then move."""
        return cls(
            receive_retry_count=5,
            max_retry_cycles=3,
            retry_cycle_delay=Backoff(initial=10.0, growth=Growth.LINEAR),
        )

    @property
    def total_attempts(self) -> int:
        """(R + 1)(C + 1): how often a message is tried that always fails."""
        return (self.receive_retry_count + 1) * (self.max_retry_cycles + 1)

    def shown_attempt(self, counters: Counted) -> str:
        """Return which attempt at a message was the last one that was charged, in words."""
        number = counters.cycle * (self.receive_retry_count + 1) + counters.cycle_attempts
        if self.receive_retry_count >= UNLIMITED or self.max_retry_cycles >= UNLIMITED:
            return f"attempt {number}"
        return f"attempt {number} of {self.total_attempts}"

    def for_dead_letters(self) -> PoisonPolicy:
        """Return this policy as it applies to reading a dead-letter subqueue: R alone, no cycles.

        Raises InvalidOption for `move`: there is nowhere further to move to (as in WCF).
        """
        for name in ("on_poison", "on_invalid"):
            if getattr(self, name) is Disposition.MOVE:
                raise InvalidOption(
                    f"expected {name} of a dead-letter policy to be fault, drop or reject, got move: "
                    "a dead letter cannot be moved to a further dead-letter subqueue"
                )
        return dataclasses.replace(self, max_retry_cycles=0)


class Counters(NamedTuple):
    """Counts of a message's attempts.

    `deliveries`, `failures`, `worker_deaths` and `lock_expiries` count over its whole life.
    `delivery_count` (Service Bus's), `cycle_attempts` and `cycle` start again when a dead letter
    is resubmitted. `moves` counts moves between the queue and its subqueues (MSMQ's MoveCount).
    """

    deliveries: int = 0
    failures: int = 0
    worker_deaths: int = 0
    lock_expiries: int = 0
    delivery_count: int = 0
    cycle_attempts: int = 0
    cycle: int = 0
    moves: int = 0


class Counted(Protocol):
    """A holder of the counts of a message's attempts: its counters, or its row."""

    @property
    def failures(self) -> int: ...
    @property
    def worker_deaths(self) -> int: ...
    @property
    def lock_expiries(self) -> int: ...
    @property
    def delivery_count(self) -> int: ...
    @property
    def cycle_attempts(self) -> int: ...
    @property
    def cycle(self) -> int: ...


# Which lifetime counter an outcome adds to, and whether it adds to the delivery count. Deferring
# adds to the delivery count in Service Bus; a release, an explicit dead-lettering and invalid
# content do not.
_CHARGES: dict[Outcome, tuple[str | None, bool]] = {
    Outcome.COMPLETED: (None, False),
    Outcome.FAILED: ("failures", True),
    Outcome.INVALID: ("failures", False),
    Outcome.LOST: ("worker_deaths", True),
    Outcome.LOCK_EXPIRED: ("lock_expiries", True),
    Outcome.DEFERRED: (None, True),
    Outcome.RELEASED: (None, False),
    Outcome.DEAD_LETTERED: (None, False),
}


def charges(before: Counted, outcome: Outcome) -> dict[str, int]:
    """Return the counters that an attempt that ended with `outcome` changes, as they are after it."""
    name, counted = _CHARGES[outcome]
    changes: dict[str, int] = {name: getattr(before, name) + 1} if name else {}
    if counted:
        changes["delivery_count"] = before.delivery_count + 1
        changes["cycle_attempts"] = before.cycle_attempts + 1
    return changes


def charge(counters: Counters, outcome: Outcome) -> Counters:
    """Return the counters after an attempt that ended with `outcome`."""
    return counters._replace(**charges(counters, outcome))


class Retry(NamedTuple):
    """The verdict: try again, at once (`delay` 0) or after `delay` seconds in a new retry cycle."""

    delay: float = 0.0
    new_cycle: bool = False


class Final(NamedTuple):
    """The verdict: no further attempt; `disposition` says what to do, `reason` is its code."""

    disposition: Disposition
    reason: str
    description: str


Verdict = Retry | Final


def decide(
    policy: PoisonPolicy,
    counters: Counted,
    outcome: Outcome,
    draw: float = 0.0,
    reason: str | None = None,
) -> Verdict:
    """Return the verdict on a message whose latest attempt ended with `outcome`.

    `counters` include that attempt; `draw`, from 0 to 1, is the random share for jitter; `reason`
    is a final verdict's instead of Service Bus's MaxDeliveryCountExceeded.
    """
    if outcome is Outcome.INVALID:
        return Final(policy.on_invalid, "InvalidMessage", "The message can never be processed.")
    deaths = policy.max_worker_deaths
    if deaths is not None and counters.worker_deaths >= deaths:
        workers = "1 worker" if counters.worker_deaths == 1 else f"{counters.worker_deaths} workers"
        return Final(policy.on_poison, WORKER_CRASHED, f"{workers} died while holding the message.")
    if counters.cycle_attempts <= policy.receive_retry_count and counters.cycle <= policy.max_retry_cycles:
        return Retry()
    if counters.cycle < policy.max_retry_cycles:
        delay = policy.retry_cycle_delay
        wait = delay.delay(counters.cycle + 1, draw) if isinstance(delay, Backoff) else delay
        return Retry(wait, new_cycle=True)
    return Final(
        policy.on_poison,
        reason or COUNT_REASON,
        f"Message could not be consumed after {counters.delivery_count} delivery attempts.",
    )
