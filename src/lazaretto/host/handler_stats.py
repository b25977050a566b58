"""Counts the work of a handler's slots."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable

from lazaretto.errors import HandlerError
from lazaretto.model.checks import shown
from lazaretto.model.failure import Failure
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import DISPOSITIONS, RETRY, Disposition, Outcome, PoisonVerdict

#: Over how many seconds the rate is taken.
_SPAN = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class PoisonMessage:
    """A message whose last attempt has failed, as passed to `on_poison` functions (like IErrorHandler).

    `disposition`: the policy's choice. The function can return another `Disposition` or its name, or
    "retry" for new attempts.
    """

    queue: str
    message: ReceivedMessage
    reason: str
    description: str
    disposition: Disposition
    failure: Failure | None


def verdict_of(returned: object) -> PoisonVerdict | None:
    """Return the verdict of an `on_poison` function, or None. Raises HandlerError."""
    if returned is None or isinstance(returned, Disposition):
        return returned
    if returned == RETRY:
        return "retry"
    found = DISPOSITIONS.get(returned) if isinstance(returned, str) else None
    if found is None:
        raise HandlerError(
            f"expected an on_poison function to return None, {', '.join(DISPOSITIONS)} or {RETRY}, "
            f"got {shown(returned)}"
        )
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class HandlerReport:
    """A handler's state and counts. `rate`: messages recently completed per second.

    `retried`: attempts that failed and are tried again; `dead`: messages that were not. `timed_out`,
    `died` and `invalid` are those among both whose deadline was over, whose process died, that can
    never succeed. `released`: given back uncharged. `lost`: settled too late, their lock was gone.
    `failing`: dead letters that failed the last time, and are tried for ever, as nothing else is said of
    them. `waiting`: why nothing is taken, if something is wrong.
    """

    queue: str
    handler: str
    completed: int
    retried: int
    dead: int
    invalid: int
    timed_out: int
    died: int
    deferred: int
    released: int
    lost: int
    failing: int
    rate: float
    waiting: str | None


class HandlerStats:
    """Counts; threads share it."""

    def __init__(self, queue: str, handler: str) -> None:
        self._queue = queue
        self._handler = handler
        self._lock = threading.Lock()
        self._counts: Counter[Outcome] = Counter()
        self._final = 0
        self._lost = 0
        self._failing: set[int] = set()
        self._waiting: str | None = None
        self._points: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        #: Where the next session is looked for, so that the slots go round together.
        self.rotation: dict[str, str] = {}

    def count(self, outcomes: Iterable[Outcome], finals: int) -> None:
        """Add attempts that were settled, so many of them for good."""
        with self._lock:
            self._counts.update(outcomes)
            self._final += finals

    def tried_for_ever(self, ended: Iterable[tuple[int, bool]]) -> None:
        """Note which messages, by key, have failed that nothing ends the attempts on, and which have not."""
        with self._lock:
            for key, failed in ended:
                (self._failing.add if failed else self._failing.discard)(key)

    def lost(self, messages: int) -> None:
        """Count messages that were settled too late."""
        with self._lock:
            self._lost += messages

    def waiting(self, why: str | None) -> bool:
        """Note why nothing is taken, None when something is again; return whether that is news."""
        with self._lock:
            news = why != self._waiting
            self._waiting = why
        return news

    def report(self) -> HandlerReport:
        """Return the handler's report."""
        with self._lock:
            counts = self._counts
            failures = sum(counts[o] for o in (Outcome.FAILED, Outcome.LOCK_EXPIRED, Outcome.LOST))
            completed = counts[Outcome.COMPLETED]
            return HandlerReport(
                queue=self._queue,
                handler=self._handler,
                completed=completed,
                retried=failures + counts[Outcome.INVALID] - self._final,
                dead=self._final + counts[Outcome.DEAD_LETTERED],
                invalid=counts[Outcome.INVALID],
                timed_out=counts[Outcome.LOCK_EXPIRED],
                died=counts[Outcome.LOST],
                deferred=counts[Outcome.DEFERRED],
                released=counts[Outcome.RELEASED],
                lost=self._lost,
                failing=len(self._failing),
                rate=self._rate(completed),
                waiting=self._waiting,
            )

    def _rate(self, completed: int) -> float:
        now = time.monotonic()
        self._points.append((now, completed))
        while len(self._points) > 2 and self._points[1][0] < now - _SPAN:
            self._points.popleft()
        since, before = self._points[0]
        return (completed - before) / (now - since) if now > since else 0.0
