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

#: The period in seconds over which the rate is measured.
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
    disposition = DISPOSITIONS.get(returned) if isinstance(returned, str) else None
    if disposition is None:
        raise HandlerError(
            f"expected an on_poison function to return None, {', '.join(DISPOSITIONS)} or {RETRY}, "
            f"got {shown(returned)}"
        )
    return disposition


@dataclasses.dataclass(frozen=True, slots=True)
class HandlerReport:
    """A handler's state and counts. `rate`: messages recently completed per second.

    `retried`: failed attempts that are retried. `dead`: failed messages that are not retried. Both include
    `timed_out` (deadline exceeded), `died` (process died) and `invalid` (can never succeed). `released`:
    released without counting an attempt. `lost`: settled too late, after the lock was lost. `failing`: dead
    letters that failed last time and are retried forever, because no policy limits them. `waiting`: why the
    handler receives nothing, if something is wrong.
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
    """Counters of one handler, shared by threads."""

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
        #: Where the search for the next session starts, so that all slots go round together.
        self.rotation: dict[str, str | None] = {}

    def count(self, outcomes: Iterable[Outcome], finals: int) -> None:
        """Add settled attempts, and how many of them were final."""
        with self._lock:
            self._counts.update(outcomes)
            self._final += finals

    def tried_for_ever(self, ended: Iterable[tuple[int, bool]]) -> None:
        """Note, by key, which messages without an attempt limit have failed, and which have not."""
        with self._lock:
            for key, failed in ended:
                (self._failing.add if failed else self._failing.discard)(key)

    def lost(self, messages: int) -> None:
        """Count messages that were settled too late."""
        with self._lock:
            self._lost += messages

    def waiting(self, why: str | None) -> bool:
        """Note why nothing is received, or None once it is; return whether that changed."""
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
