"""What becomes of a message that failed: the poison policy and its verdict, as pure functions.

Nothing here reads a clock, a store or a random number.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Literal, NamedTuple

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import member, option_set, seconds, whole
from lazaretto.model.failure import WORKER_CRASHED

#: A retry count that is never reached.
UNLIMITED = 2_147_483_647


class Disposition(enum.Enum):
    """What is done with a message whose attempts are used up (WCF's ReceiveErrorHandling)."""

    MOVE = "move"
    FAULT = "fault"
    DROP = "drop"
    REJECT = "reject"


DISPOSITIONS = {d.value: d for d in Disposition}

#: What may be decided on a poison message besides the dispositions: its attempts start again.
RETRY = "retry"
PoisonVerdict = Disposition | Literal["retry"]


class Outcome(enum.Enum):
    """How an attempt ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    INVALID = "invalid"
    LOST = "lost"
    EXPIRED = "expired"
    DEFERRED = "deferred"
    RELEASED = "released"
    DEAD_LETTERED = "dead_lettered"

    # Each message's is hashed: by identity, as they are compared, and not by name.
    __hash__ = object.__hash__


class Growth(enum.Enum):
    """How the delay between retry cycles grows from one cycle to the next."""

    CONSTANT = "constant"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


_GROWTHS = {g.value: g for g in Growth}


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The delay before each retry cycle.

    `initial` seconds before the first; `growth` constant, linear (n x initial) or exponential
    (doubling); at most `maximum` seconds; `jitter` from 0 to 1 is the share of the delay that is
    drawn at random, so that messages that failed together do not return together.
    """

    initial: float
    growth: Growth = Growth.EXPONENTIAL
    maximum: float = 86_400.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "initial", seconds("initial", self.initial))
        set_(self, "growth", member("growth", self.growth, _GROWTHS))
        set_(self, "maximum", seconds("maximum", self.maximum))
        set_(self, "jitter", seconds("jitter", self.jitter, 0.0, 1.0))

    def delay(self, cycle: int, draw: float) -> float:
        """Return the seconds to wait before retry cycle `cycle` (from 1); `draw` is from 0 to 1."""
        grown = {
            Growth.CONSTANT: self.initial,
            Growth.LINEAR: self.initial * cycle,
            Growth.EXPONENTIAL: self.initial * 2.0 ** min(cycle - 1, 64),
        }[self.growth]
        return min(grown, self.maximum) * (1.0 - self.jitter * draw)


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoisonPolicy:
    """When a message counts as poison, and what is done with it then.

    `receive_retry_count` R: retries within a cycle, so R + 1 attempts. `max_retry_cycles` C: how
    often the message then waits `retry_cycle_delay` (seconds, or a Backoff) in `;retry` and is
    tried again: (R + 1)(C + 1) attempts in all. Then `on_poison` (a Disposition or its name).
    `on_invalid`: the same for messages that can never succeed, at once. `max_worker_deaths`: that
    many deaths of a worker by the message are enough, whatever attempts remain (None: they count as
    failed attempts only).
    `disable_after_rollbacks`: that many consecutive rolled-back receives switch the queue off
    (Service Broker's automatic detection; None is off). The default is `service_bus()`.
    """

    receive_retry_count: int = 9
    max_retry_cycles: int = 0
    retry_cycle_delay: float | Backoff = 1800.0
    on_poison: Disposition = Disposition.MOVE
    on_invalid: Disposition = Disposition.MOVE
    max_worker_deaths: int | None = 4
    disable_after_rollbacks: int | None = None

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        whole("receive_retry_count", self.receive_retry_count, 0, UNLIMITED)
        whole("max_retry_cycles", self.max_retry_cycles, 0, UNLIMITED)
        if not isinstance(self.retry_cycle_delay, Backoff):
            set_(self, "retry_cycle_delay", seconds("retry_cycle_delay", self.retry_cycle_delay))
        set_(self, "on_poison", member("on_poison", self.on_poison, DISPOSITIONS))
        set_(self, "on_invalid", member("on_invalid", self.on_invalid, DISPOSITIONS))
        if self.max_worker_deaths is not None:
            whole("max_worker_deaths", self.max_worker_deaths, 1, UNLIMITED)
        if self.disable_after_rollbacks is not None:
            whole("disable_after_rollbacks", self.disable_after_rollbacks, 1, UNLIMITED)

    @classmethod
    def service_bus(cls, max_delivery_count: int = 10) -> PoisonPolicy:
        """Azure Service Bus: that many attempts, then move to the dead-letter queue."""
        whole("max_delivery_count", max_delivery_count, 1, UNLIMITED)
        return cls(receive_retry_count=max_delivery_count - 1)

    @classmethod
    def wcf(cls, on_poison: Disposition = Disposition.FAULT) -> PoisonPolicy:
        """Queued WCF over MSMQ 4: 5 retries, 2 cycles 30 minutes apart, then fault: 18 attempts."""
        return cls(receive_retry_count=5, max_retry_cycles=2, retry_cycle_delay=1800.0, on_poison=on_poison)

    @classmethod
    def wcf_msmq3(cls, on_poison: Disposition = Disposition.FAULT) -> PoisonPolicy:
        """Queued WCF over MSMQ 3: 5 retries, no cycles, then fault or drop.

        MSMQ 3 had no subqueues and no negative acknowledgements, so move and reject are refused.
        """
        wanted = member("on_poison", on_poison, DISPOSITIONS)
        if wanted in (Disposition.MOVE, Disposition.REJECT):
            raise InvalidOption(f"expected on_poison to be fault or drop on MSMQ 3, got {wanted.value}")
        return cls(receive_retry_count=5, on_poison=wanted, on_invalid=wanted)

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
    """What is known of a message's attempts.

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


# Which lifetime counter an outcome adds to, and whether it adds to the delivery count. Deferring
# adds to the delivery count in Service Bus; a release, an explicit dead-lettering and invalid
# content do not.
_CHARGES: dict[Outcome, tuple[str | None, bool]] = {
    Outcome.COMPLETED: (None, False),
    Outcome.FAILED: ("failures", True),
    Outcome.INVALID: ("failures", False),
    Outcome.LOST: ("worker_deaths", True),
    Outcome.EXPIRED: ("lock_expiries", True),
    Outcome.DEFERRED: (None, True),
    Outcome.RELEASED: (None, False),
    Outcome.DEAD_LETTERED: (None, False),
}


def charge(counters: Counters, outcome: Outcome) -> Counters:
    """Return the counters after an attempt that ended with `outcome`."""
    name, counted = _CHARGES[outcome]
    changes: dict[str, int] = {name: getattr(counters, name) + 1} if name else {}
    if counted:
        changes["delivery_count"] = counters.delivery_count + 1
        changes["cycle_attempts"] = counters.cycle_attempts + 1
    return counters._replace(**changes) if changes else counters


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
    counters: Counters,
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
        return Final(
            policy.on_poison, WORKER_CRASHED, f"{counters.worker_deaths} workers died holding the message."
        )
    if counters.cycle_attempts <= policy.receive_retry_count and counters.cycle <= policy.max_retry_cycles:
        return Retry()
    if counters.cycle < policy.max_retry_cycles:
        delay = policy.retry_cycle_delay
        wait = delay.delay(counters.cycle + 1, draw) if isinstance(delay, Backoff) else delay
        return Retry(wait, new_cycle=True)
    return Final(
        policy.on_poison,
        reason or "MaxDeliveryCountExceeded",
        f"Message could not be consumed after {counters.delivery_count} delivery attempts.",
    )


__all__ = [
    "DISPOSITIONS",
    "RETRY",
    "UNLIMITED",
    "Backoff",
    "Counters",
    "Disposition",
    "Final",
    "Growth",
    "Outcome",
    "PoisonPolicy",
    "PoisonVerdict",
    "Retry",
    "Verdict",
    "charge",
    "decide",
]
