"""Runs a hand-over's handlers: in a sandbox, or in the host's own process.

Each attempt has a span and a duration, with how it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from lazaretto.broker.handling.context import Effects
from lazaretto.engine.messages.settle import Settlement
from lazaretto.engine.workers.leases import Handover
from lazaretto.host.handler_calls import Caller, SandboxSetup, pack
from lazaretto.host.handlers import Handler, Isolation
from lazaretto.host.outcomes import RELEASED, Ended, ended_of, ended_with
from lazaretto.isolation import Sandbox, Verdict
from lazaretto.isolation.coroutines import WAITS, Crew, DeadlineExceeded
from lazaretto.isolation.sandbox import to_stderr
from lazaretto.model.failure import HANDLER_TIMEOUT, Failure, failure_of
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Outcome
from lazaretto.observe.traces import active
from lazaretto.store.runtime.measures import Measures
from lazaretto.store.runtime.measures import active as measured
from lazaretto.store.sql.store import Store

if TYPE_CHECKING:
    from lazaretto.observe.traces.spans import Processing, Tracing


def begin(
    tracing: Tracing, handler: Handler, message: ReceivedMessage, began: int | None = None
) -> Processing:
    """Begin the span of an attempt, as the handler's `trace_parent` says."""
    child = handler.options.trace_parent == "first_attempt" and message.attempt == 1
    return tracing.processing(handler.path, message, child=child, began=began)


def finish(processing: Processing, ended: Ended, at: int | None = None) -> Ended:
    """End the span of an attempt; return how it ended, with trace contexts in the messages it sends."""
    failure, effects = ended.settlement.failure, ended.effects
    if effects is not None and effects.sends:
        sends = [(path, processing.sends(path, messages)) for path, messages in effects.sends]
        ended = ended._replace(effects=msgspec.structs.replace(effects, sends=sends))
    processing.end(ended.settlement.outcome, None if failure is None else failure.type, at)
    return ended


class TimedHandover:
    """Notes how long the attempts of a hand-over in a sandbox took, and makes their spans, from what is told.

    So an attempt has its span even if its process dies.
    """

    def __init__(
        self, tracing: Tracing | None, measures: Measures | None, handler: Handler, handover: Handover
    ) -> None:
        self._tracing = tracing
        self._measures = measures
        self._handler = handler
        self._messages = handover.messages
        self._began = self._last = time.time_ns()
        self._ended: dict[int, Ended] = {}

    def ended(self, place: int, ended: Ended, verdict: Verdict) -> Ended:
        """Take note of one attempt, once; return how it ended."""
        if ended is RELEASED:
            return ended
        if place not in self._ended:
            self._ended[place] = self._make(place, ended, verdict)
        return self._ended[place]

    def _make(self, place: int, ended: Ended, verdict: Verdict) -> Ended:
        now = time.time_ns()
        # One that raised, or whose process died, began when the one before it had ended.
        last = self._began if self._handler.at_once else self._last
        began, end = ended.ran or (last, verdict.ended or last + round(verdict.elapsed * 1e9))
        # What a handler's process tells may be anything.
        began = min(max(began, self._began), now)
        self._last = end = min(max(end, began), now)
        if self._measures is not None:
            took(self._measures, self._handler, ended, (end - began) / 1e9)
        if self._tracing is None:
            return ended
        return finish(begin(self._tracing, self._handler, self._messages[place], began), ended, end)


def timed(store: Store, handler: Handler, handover: Handover) -> TimedHandover | None:
    """Return what notes the times of a hand-over in a sandbox; None if nobody traces or measures."""
    tracing, measures = active(store), measured()
    if tracing is None and measures is None:
        return None
    return TimedHandover(tracing, measures, handler, handover)


def took(measures: Measures, handler: Handler, ended: Ended, seconds: float) -> None:
    """Note how long one attempt took."""
    measures.handlers.note((str(handler.path), ended.settlement.outcome.value), [seconds])


#: How often the loss of handlers' output is logged, in seconds.
_SAY_EVERY = 60.0

_log = logging.getLogger(__name__)

#: Time after its deadline until a handler counts as hung, in seconds: a cancelled one needs a moment.
_OVERDUE = 0.5
#: How often finished messages are settled while others of their hand-over run, in seconds.
_TELL = 0.2


#: Receives finished attempts, by their places in the hand-over.
OnSome = Callable[[list[tuple[int, Ended]]], object]


class Overdue(NamedTuple):
    """A hand-over, by its lock token, whose message at `place` hangs; and how the others ended."""

    token: int
    ended: dict[int, Ended]
    place: int


class Runner(Protocol):
    """Runs one hand-over at a time in one thread. Other threads may call `stop` and `overdue`."""

    def start(self, handover: Handover) -> None:
        """Start the handlers of a hand-over."""
        ...

    def collect(self, on_some: OnSome) -> list[Ended]:
        """Wait for all handlers; return how each message's attempt ended, in order.

        `on_some` is called a few times a second with finished attempts while others still run.
        """
        ...

    def stop(self, grace: float) -> None:
        """Start no further handlers; running ones get `grace` seconds."""
        ...

    def overdue(self) -> Overdue | None:
        """Return the results so far, if a handler that cannot be stopped has exceeded its deadline."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class _Output:
    """Forwards handlers' output. If that fails, it logs so now and then; the handlers go on."""

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
                        "output of handlers of %r is lost: %s: %s",
                        self._path,
                        type(error).__name__,
                        error,
                    )


class ProcessRunner:
    """Runs handlers in a sandbox. `on_output` receives their output; `stopping`: see Sandbox."""

    def __init__(
        self,
        store: Store,
        handler: Handler,
        on_output: Callable[[bytes], object] | None = None,
        stopping: Callable[[], bool] | None = None,
    ) -> None:
        output = _Output(str(handler.path), on_output or to_stderr)
        self._store = store
        self._handler = handler
        self._timed: TimedHandover | None = None
        self.sandbox = Sandbox(
            SandboxSetup(handler), handler.options.limits(), on_output=output, stopping=stopping
        )

    def start(self, handover: Handover) -> None:
        self._timed = timed(self._store, self._handler, handover)
        self.sandbox.start(
            pack(handover.messages, handover.past, timed=self._timed is not None),
            stop_on_failure=handover.lock.session_id is not None,
        )

    def collect(self, on_some: OnSome) -> list[Ended]:
        verdicts = self.sandbox.collect(lambda some: on_some([(n, self._ended(n, v)) for n, v in some]))
        return [self._ended(place, verdict) for place, verdict in enumerate(verdicts)]

    def _ended(self, place: int, verdict: Verdict) -> Ended:
        ended = ended_of(verdict)
        return ended if self._timed is None else self._timed.ended(place, ended, verdict)

    def stop(self, grace: float) -> None:
        self.sandbox.stop(grace)

    def overdue(self) -> Overdue | None:
        return None

    def close(self) -> None:
        self.sandbox.close()


class InlineRunner:
    """Calls handlers in the thread that collects. A synchronous one cannot be stopped."""

    def __init__(self, store: Store, handler: Handler) -> None:
        self._store = store
        self._handler = handler
        self._call = Caller(handler)
        self._deadline = handler.options.deadline
        self._call.limit_async(self._deadline)
        self._crew = Crew[Effects | None](self._at, self._deadline) if handler.at_once else None
        self._handover: Handover | None = None
        self._ended: dict[int, Ended] = {}
        self._place = -1
        self._since: float | None = None
        self._stopped = threading.Event()
        self._stop_at: float | None = None
        self._closing = threading.Lock()
        self._is_at_work = self._is_closed = False

    def start(self, handover: Handover) -> None:
        self._handover = handover
        self._ended = {}

    def collect(self, on_some: OnSome) -> list[Ended]:
        handover, ended = self._handover, self._ended
        assert handover is not None
        with self._closing:
            self._is_at_work = True
        try:
            if self._crew is not None:
                self._run_at_once(self._crew, handover, on_some)
            else:
                self._run_in_order(handover)
        finally:
            with self._closing:
                self._is_at_work = False
                if self._is_closed:
                    self._end_loops()
        return [ended.get(place, RELEASED) for place in range(len(handover.messages))]

    def _run_in_order(self, handover: Handover) -> None:
        in_order = handover.lock.session_id is not None
        for place, message in enumerate(handover.messages):
            if self._stopped.is_set():
                break
            self._at(place)
            tracing, measures, began = active(self._store), measured(), time.perf_counter()
            if tracing is None:
                one = self._ended_of(message, handover)
            else:
                processing = begin(tracing, self._handler, message)
                with processing.current():
                    one = self._ended_of(message, handover)
                one = finish(processing, one)
            if measures is not None:
                took(measures, self._handler, one, time.perf_counter() - began)
            self._at(WAITS)
            self._ended[place] = one
            if in_order and one.settlement.failure is not None:
                break

    def _ended_of(self, message: ReceivedMessage, handover: Handover) -> Ended:
        try:
            return ended_with(self._call(message, handover.past.get(message.key)))
        except BaseException as error:
            return _failed(error)

    def _run_at_once(self, crew: Crew[Effects | None], handover: Handover, on_some: OnSome) -> None:
        """Run the handlers concurrently; within a session one by one, up to the first failure."""
        in_order = handover.lock.session_id is not None
        ended, told = self._ended, 0
        tell_at = time.monotonic() + _TELL
        failed = False
        tracing = active(self._store)
        measures = measured()
        begun: dict[int, Processing] = {}
        began: dict[int, float] = {}

        def on_end(place: int, effects: Effects | None, error: BaseException | None) -> None:
            nonlocal failed
            one = ended_with(effects) if error is None else _failed(error)
            ended[place] = finish(begun[place], one) if place in begun else one
            if measures is not None and place in began:
                took(measures, self._handler, one, time.perf_counter() - began[place])
            failed = failed or ended[place].settlement.failure is not None

        async def on_tick() -> None:
            nonlocal told, tell_at
            if time.monotonic() < tell_at:
                return
            some = list(ended.items())[told:]
            told += len(some)
            if some:
                # In another thread, so that the handlers go on.
                await asyncio.to_thread(on_some, some)
            tell_at = time.monotonic() + _TELL

        async def call(place: int, message: ReceivedMessage) -> Effects | None:
            past = handover.past.get(message.key)
            began[place] = time.perf_counter()
            if tracing is None:
                return await self._call.call_async(message, past)
            begun[place] = begin(tracing, self._handler, message)
            with begun[place].current():
                return await self._call.call_async(message, past)

        try:
            crew.run(
                [partial(call, place, message) for place, message in enumerate(handover.messages)],
                on_end,
                may_start=lambda place: not (self._stopped.is_set() or (in_order and failed)),
                on_tick=on_tick,
                stops=lambda: self._stop_at is not None and time.monotonic() >= self._stop_at,
                at_once=1 if in_order else None,
            )
        finally:
            self._at(WAITS)

    def _at(self, place: int) -> None:
        """Note whose handler is at work."""
        self._since = time.monotonic() if place >= 0 else None
        self._place = place

    def stop(self, grace: float) -> None:
        self._stop_at = time.monotonic() + grace
        self._stopped.set()

    def overdue(self) -> Overdue | None:
        since, place, handover = self._since, self._place, self._handover
        if since is None or handover is None or place < 0:
            return None
        ends = [] if self._deadline is None else [since + self._deadline + _OVERDUE]
        ends += [] if self._stop_at is None else [self._stop_at]
        if not ends or time.monotonic() < min(ends):
            return None
        return Overdue(handover.lock.token, dict(self._ended), place)

    def close(self) -> None:
        """End event loops, or have the thread do it that a handler holds up, once it goes on."""
        with self._closing:
            self._is_closed = True
            if not self._is_at_work:
                self._end_loops()

    def _end_loops(self) -> None:
        self._call.close()
        if self._crew is not None:
            self._crew.close()


def _failed(error: BaseException) -> Ended:
    """Return the end of an attempt whose handler raised. Even SystemExit must not end the host."""
    failure = failure_of(error)
    if isinstance(error, DeadlineExceeded):
        assert failure is not None
        late = Failure(HANDLER_TIMEOUT, str(error), failure.stack, failure.site)
        return Ended(Settlement(Outcome.LOCK_EXPIRED, late))
    return Ended(Settlement(Outcome.FAILED, failure))


def runner_of(
    store: Store,
    handler: Handler,
    on_output: Callable[[bytes], object] | None = None,
    stopping: Callable[[], bool] | None = None,
) -> Runner:
    """Return a handler's runner, by its isolation; `stopping`: see Sandbox."""
    if handler.options.isolation is Isolation.INLINE:
        return InlineRunner(store, handler)
    return ProcessRunner(store, handler, on_output, stopping)
