"""Runs a hand-over's handlers: in a sandbox, or in the host's own process."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from lazaretto.engine.messages.settle import Settlement
from lazaretto.engine.workers.leases import Handover
from lazaretto.host.handler_calls import Caller, DeadlineExceeded, SandboxSetup, pack
from lazaretto.host.handler_options import Isolation
from lazaretto.host.handlers import Handler
from lazaretto.host.outcomes import RELEASED, Ended, ended_of, ended_with
from lazaretto.isolation import Sandbox
from lazaretto.isolation.sandbox import to_stderr
from lazaretto.model.failure import HANDLER_TIMEOUT, Failure, failure_of
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Outcome

#: How often it is said that what handlers print is lost, in seconds.
_SAY_EVERY = 60.0

_log = logging.getLogger(__name__)

#: How long after its deadline a handler counts as one that does not come back: one that was
#: cancelled needs a moment, in seconds.
_OVERDUE = 0.5


class Runner(Protocol):
    """One hand-over at a time, by one thread; `stop` and `overdue` may be called by another."""

    def start(self, handover: Handover) -> None:
        """Start the handlers of a hand-over."""
        ...

    def collect(self) -> list[Ended]:
        """Wait for all handlers; return how each message's attempt ended, in order."""
        ...

    def stop(self, grace: float) -> None:
        """Start no further handlers; running ones get `grace` seconds."""
        ...

    def overdue(self) -> list[Ended] | None:
        """Return the results so far, if a handler that cannot be stopped has exceeded its deadline."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class _Output:
    """Passes on what handlers print. That it cannot be is no fault of theirs, and said now and then."""

    def __init__(self, path: str, on_output: Callable[[bytes], object]) -> None:
        self._path = path
        self._on_output = on_output
        self._say_at = 0.0

    def __call__(self, text: bytes) -> None:
        try:
            self._on_output(text)
        except BaseException as error:
            now = time.monotonic()
            if now >= self._say_at:
                self._say_at = now + _SAY_EVERY
                with contextlib.suppress(Exception):
                    _log.warning(
                        "what handlers of %r print is lost: %s: %s", self._path, type(error).__name__, error
                    )


class ProcessRunner:
    """Runs handlers in a sandbox. `on_output` gets what they print; `stopping`: see Sandbox."""

    def __init__(
        self,
        handler: Handler,
        on_output: Callable[[bytes], object] | None = None,
        stopping: Callable[[], bool] | None = None,
    ) -> None:
        output = _Output(str(handler.path), on_output or to_stderr)
        self.sandbox = Sandbox(
            SandboxSetup(handler), handler.options.limits(), on_output=output, stopping=stopping
        )

    def start(self, handover: Handover) -> None:
        self.sandbox.start(
            pack(handover.messages, handover.past), stop_on_failure=handover.lock.session_id is not None
        )

    def collect(self) -> list[Ended]:
        return [ended_of(verdict) for verdict in self.sandbox.collect()]

    def stop(self, grace: float) -> None:
        self.sandbox.stop(grace)

    def overdue(self) -> list[Ended] | None:
        return None

    def close(self) -> None:
        self.sandbox.close()


class InlineRunner:
    """Calls handlers in the thread that collects. A synchronous one cannot be stopped."""

    def __init__(self, handler: Handler) -> None:
        self._call = Caller(handler)
        self._deadline = handler.options.deadline
        self._call.limit_async(self._deadline)
        self._handover: Handover | None = None
        self._ended: list[Ended] = []
        self._since: float | None = None
        self._stopped = threading.Event()
        self._stop_at: float | None = None

    def start(self, handover: Handover) -> None:
        self._handover = handover
        self._ended = []

    def collect(self) -> list[Ended]:
        handover, ended = self._handover, self._ended
        assert handover is not None
        in_order = handover.lock.session_id is not None
        for message in handover.messages:
            if self._stopped.is_set():
                break
            self._since = time.monotonic()
            one = self._run(message, handover)
            self._since = None
            ended.append(one)
            if in_order and one.settlement.failure is not None:
                break
        return ended + [RELEASED] * (len(handover.messages) - len(ended))

    def _run(self, message: ReceivedMessage, handover: Handover) -> Ended:
        try:
            return ended_with(self._call(message, handover.past.get(message.key)))
        except DeadlineExceeded as error:
            failure = failure_of(error)
            assert failure is not None
            late = Failure(HANDLER_TIMEOUT, str(error), failure.stack, failure.site)
            return Ended(Settlement(Outcome.LOCK_EXPIRED, late))
        except BaseException as error:
            # Whatever a handler raises is its message's failure; SystemExit must not end the host.
            return Ended(Settlement(Outcome.FAILED, failure_of(error)))

    def stop(self, grace: float) -> None:
        self._stop_at = time.monotonic() + grace
        self._stopped.set()

    def overdue(self) -> list[Ended] | None:
        since, handover = self._since, self._handover
        if since is None or handover is None:
            return None
        ends = [] if self._deadline is None else [since + self._deadline + _OVERDUE]
        ends += [] if self._stop_at is None else [self._stop_at]
        return list(self._ended) if ends and time.monotonic() >= min(ends) else None

    def close(self) -> None:
        if self._since is None:
            self._call.close()


def runner_of(
    handler: Handler,
    on_output: Callable[[bytes], object] | None = None,
    stopping: Callable[[], bool] | None = None,
) -> Runner:
    """Return a handler's runner, by its isolation; `stopping`: see Sandbox."""
    if handler.options.isolation is Isolation.INLINE:
        return InlineRunner(handler)
    return ProcessRunner(handler, on_output, stopping)
