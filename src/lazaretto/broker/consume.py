"""A plain consumer loop: receive a batch, call the handler, settle all in one commit."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lazaretto.broker.handling.context import Effects, HandlerContext, settlement_of, store_fault
from lazaretto.broker.handling.functions import HandlerFunction, form_of, refuse_unrun, unbound
from lazaretto.broker.receiver import Receiver
from lazaretto.broker.sender import send_operation
from lazaretto.broker.settling import settle
from lazaretto.engine.messages.locks import held_of
from lazaretto.engine.messages.settle import COMPLETE, RELEASE, Settled, Settlement, as_unit
from lazaretto.engine.unit_of_work import CommitWork
from lazaretto.engine.workers.leases import past_of
from lazaretto.errors import HandlerError, InvalidMessage, MessageLockLost, SessionHeld, SessionLockLost
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import failure_of, forget_context
from lazaretto.model.messages import Past, ReceivedMessage
from lazaretto.model.policy import Outcome
from lazaretto.observe.traces import active
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

if TYPE_CHECKING:
    from lazaretto.observe.traces.spans import Tracing


class Stop(Protocol):
    """Tells a consumer when to stop: an Event of threading or asyncio."""

    def is_set(self) -> bool: ...


#: How long a wait lasts before it is looked whether to stop, in seconds.
_LOOK_UP = 0.5
#: How long a session is worked on while others may wait, in seconds.
_TURN = 1.0
#: How long one that failed waits where no policy says when it is tried again, in seconds.
_AGAIN = 1.0


@dataclasses.dataclass(slots=True)
class ConsumeReport:
    """A consumer's counts: attempts by outcome. `locks_lost`: messages whose lock expired first.

    `deferred`, `dead_lettered`: what handlers asked their context for.
    """

    completed: int = 0
    failed: int = 0
    invalid: int = 0
    locks_lost: int = 0
    deferred: int = dataclasses.field(default=0, repr=False)
    dead_lettered: int = dataclasses.field(default=0, repr=False)


class Done(NamedTuple):
    """A message whose handler has ended: its settlement, and what takes effect in the same commit."""

    entry: Settled
    effects: Effects | None = None


class OwnLoop:
    """Runs the coroutines of a handler, one after the other, in an event loop of the consumer's own thread.

    It is made with the first coroutine.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    @property
    def works(self) -> bool:
        """Whether coroutines can be run here: not where another event loop runs in the thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return True
        return False

    def __call__(self, returned: Awaitable[object]) -> object:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(awaited(returned))

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


async def awaited(returned: Awaitable[object]) -> object:
    """Return what an awaitable of any kind gives."""
    return await returned


@dataclasses.dataclass(slots=True)
class Consumer:
    """Calls a handler for each message of a receiver until it is stopped.

    `roams`: the receiver takes one session after the other. `retries_for_ever`: no policy limits the
    attempts, as in a dead-letter subqueue without one. `whole`: each session is settled as a unit.
    """

    store: Store
    receiver: Receiver
    handler: HandlerFunction
    batch_size: int
    now: Callable[[], int]
    run_async: OwnLoop
    stop: Stop | None = None
    stop_when_idle: bool = False
    max_wait: float = 0.0
    on_batch: Callable[[ConsumeReport], object] | None = None
    roams: bool = False
    retries_for_ever: bool = False
    whole: bool = False
    report: ConsumeReport = dataclasses.field(default_factory=ConsumeReport)
    #: What failed and would come again at once, by number: held until all others were tried.
    _aside: dict[int, Settled] = dataclasses.field(default_factory=dict)
    _renew_aside_at: float = 0.0
    _takes_context: bool = False

    def __post_init__(self) -> None:
        form = form_of(self.handler)
        if form.is_async and not self.run_async.works:
            raise HandlerError(
                "an async handler cannot be consumed with where an event loop runs already: "
                "await consume of a broker of lazaretto.aio"
            )
        self.handler, self._takes_context = unbound(self.handler), form.takes_context

    def run(self) -> ConsumeReport:
        """Consume until stopped. Raises PoisonMessageError if the queue is halted."""
        try:
            self._loop()
        finally:
            self._settle([Done(entry) for entry in self._aside.values()])
            self.run_async.close()
        return self.report

    def _loop(self) -> None:
        idle_at = time.monotonic() + self.max_wait
        while not self._stops():
            rest = idle_at - time.monotonic() if self.stop_when_idle else _LOOK_UP
            wait = max(0.0, min(rest, _LOOK_UP))
            if self._work_session(wait) if self.roams else self._work(wait):
                idle_at = time.monotonic() + self.max_wait
            elif self.stop_when_idle and rest <= _LOOK_UP:
                break

    def _stops(self) -> bool:
        return self.stop is not None and self.stop.is_set()

    def _work_session(self, wait: float) -> bool:
        """Process the next session until it is empty, or its turn is over."""
        came, end = False, time.monotonic() + _TURN
        try:
            while self._work(wait):
                came, wait = True, 0.0
                if time.monotonic() >= end or self._stops():
                    break
        except (SessionHeld, SessionLockLost):
            # There are other sessions.
            came = True
        self.receiver.leave_session()
        return came

    def _work(self, wait: float) -> bool:
        """Receive once and handle the messages; return whether any was new."""
        batch = self.receiver.receive(self.batch_size, wait)
        if self._aside and time.monotonic() >= self._renew_aside_at:
            self._renew_aside()
        aside = self._aside
        if aside:
            # Those whose lock ran out come again.
            again = [m for m in batch if m.sequence_number in aside]
            aside.update((m.sequence_number, Settled(m, aside[m.sequence_number].settlement)) for m in again)
            batch = [m for m in batch if m not in again]
        if batch:
            if self.whole:
                self._handle_unit(batch)
            else:
                self._handle(batch)
            if self.on_batch is not None:
                self.on_batch(self.report)
        return bool(batch)

    def _handle(self, batch: list[ReceivedMessage]) -> None:
        results: list[Done] = []
        handled = 0
        call, renew_at = self._caller(batch), self._half_time(batch)
        try:
            for index, message in enumerate(batch):
                if time.monotonic() >= renew_at:
                    # A slow handler must not lose the locks of those that wait behind it.
                    self._settle(self._without_failed(results))
                    results = []
                    self._renew(batch[index:])
                    renew_at = self._half_time(batch[index:])
                results.append(call(message))
                handled += 1
        except BaseException:
            # Told to stop in the middle: what is done is done, the rest was never tried.
            results += [Done(Settled(message, RELEASE)) for message in batch[handled:]]
            raise
        finally:
            self._settle(self._without_failed(results))

    def _handle_unit(self, unit: list[ReceivedMessage]) -> None:
        """Handle all messages of a session up to the first failure: all are completed, or none."""
        results: list[Done] = []
        call, renew_at = self._caller(unit), self._half_time(unit)
        try:
            for message in unit:
                if time.monotonic() >= renew_at:
                    self._renew(unit)
                    renew_at = self._half_time(unit)
                results.append(call(message))
                if results[-1].entry.settlement.failure is not None:
                    break
        finally:
            self._settle(
                self._as_unit([*results, *(Done(Settled(m, RELEASE)) for m in unit[len(results) :])])
            )

    def _as_unit(self, results: Sequence[Done]) -> list[Done]:
        """Return what becomes of a session that is one unit: all its messages complete, or none does."""
        settlements = [one.entry.settlement for one in results]
        unit = []
        for one, before, after in zip(results, settlements, as_unit(settlements), strict=True):
            if before is after:
                unit.append(one)
            else:
                self._count(before, -1)
                unit.append(Done(Settled(one.entry.message, after)))
        return unit

    def _without_failed(self, results: list[Done]) -> list[Done]:
        """Remove failed messages that would otherwise be redelivered at once and forever."""
        if not (self.retries_for_ever and self.stop_when_idle):
            return results
        failed = [one.entry for one in results if one.entry.settlement.outcome is Outcome.FAILED]
        if failed and not self._aside:
            self._renew_aside_at = self._half_time([failed[0].message])
        self._aside.update((e.message.sequence_number, e) for e in failed)
        return [one for one in results if one.entry.settlement.outcome is not Outcome.FAILED]

    def _renew_aside(self) -> None:
        messages = [e.message for e in self._aside.values()]
        self._renew(messages)
        self._renew_aside_at = self._half_time(messages)

    def _caller(self, batch: Iterable[ReceivedMessage]) -> Callable[[ReceivedMessage], Done]:
        """Return what calls the handler with a message; looked up once for a batch."""
        tracing = active(self.store)
        call: Callable[[ReceivedMessage], Done] = self._done
        if self._takes_context:
            again = [message for message in batch if message.deliveries > 1]
            past = self.store.read(lambda tx: {m.key: past_of(tx, m) for m in again}) if again else {}
            call = functools.partial(self._done_with, past)
        return call if tracing is None else functools.partial(self._trace, tracing, call)

    def _trace(
        self, tracing: Tracing, call: Callable[[ReceivedMessage], Done], message: ReceivedMessage
    ) -> Done:
        processing = tracing.processing(self.receiver._path, message)
        with processing.current():
            result = call(message)
        failure = result.entry.settlement.failure
        processing.end(result.entry.settlement.outcome, None if failure is None else failure.type)
        return result

    def _done_with(self, past: Mapping[int, Past], message: ReceivedMessage) -> Done:
        return self._done(message, HandlerContext(message, past.get(message.key)))

    def _done(self, message: ReceivedMessage, context: HandlerContext | None = None) -> Done:
        call: Any = self.handler
        outer = sys.exception()
        try:
            returned = call(message) if context is None else call(message, context)
            if returned is not None and inspect.isawaitable(returned) and self.run_async.works:
                returned = self.run_async(returned)
        except InvalidMessage as error:
            forget_context(error, outer)
            settlement = Settlement(Outcome.INVALID, failure_of(error))
        except (Exception, asyncio.CancelledError) as error:
            forget_context(error, outer)
            settlement = Settlement(Outcome.FAILED, failure_of(error), self._delay)
        else:
            # Not this message's fault, but the handler's: the next one would not be handled either.
            refuse_unrun(returned, may_await=False)
            settlement = COMPLETE
            effects = None if context is None else context.effects
            if effects is not None:
                settlement = settlement_of(effects)
                self._count(settlement)
                # Sends of a handler whose message is invalid are discarded, as after any other failure.
                return Done(Settled(message, settlement), None if effects.verdict == "invalid" else effects)
        self._count(settlement)
        return Done(Settled(message, settlement))

    def _count(self, settlement: Settlement, by: int = 1) -> None:
        if settlement is COMPLETE:
            self.report.completed += by
            return
        name = settlement.outcome.value
        setattr(self.report, name, getattr(self.report, name) + by)

    @property
    def _delay(self) -> float | None:
        """How long one that failed waits, unless the policy says: it is not to be tried without a pause."""
        return _AGAIN if self.retries_for_ever and not self.stop_when_idle else None

    def _half_time(self, batch: list[ReceivedMessage]) -> float:
        lock = batch[0].lock
        assert lock is not None
        return time.monotonic() + (lock.until - self.now()) / 2_000_000

    def _renew(self, messages: list[ReceivedMessage]) -> None:
        try:
            if messages[0].lock is not None and messages[0].lock.session_id is not None:
                self.receiver.renew_session_lock()
            else:
                self.receiver.renew_lock(messages)
        except MessageLockLost:
            # Settling says which; each of the others is still worth finishing.
            return

    def _settle(self, results: list[Done]) -> None:
        """Settle messages in one commit with what their handlers asked for."""
        while results:
            try:
                self._commit(results)
                return
            except MessageLockLost:
                entries = [one.entry for one in results]
                keys = self.store.read(functools.partial(_held, entries))
                rest = [one for one in results if one.entry.message.key in keys]
                self.report.locks_lost += len(results) - len(rest)
                if len(rest) == len(results):
                    raise
                results = rest
            except Exception as error:
                if store_fault(error, self.store) is not None or not any(one.effects for one in results):
                    raise
                self._settle_apart(results, error)
                return

    def _settle_apart(self, results: list[Done], error: Exception) -> None:
        """Settle messages when what a handler asked for cannot be done: only its own attempt has failed."""
        if len(results) > 1 and not self.whole:
            for one in results:
                self._settle([one])
            return
        at = next(place for place, one in enumerate(results) if one.effects is not None)
        entry = results[at].entry
        failed = Settlement(Outcome.FAILED, failure_of(error), self._delay)
        self._count(entry.settlement, -1)
        self._count(failed)
        results[at] = Done(Settled(entry.message, failed))
        self._settle(self._as_unit(results) if self.whole else results)

    def _commit(self, results: Sequence[Done]) -> None:
        entries = [one.entry for one in results]
        effects = [one.effects for one in results if one.effects is not None]
        sends = [
            send_operation(EntityPath.parse(path), None, sent) for one in effects for path, sent in one.sends
        ]
        statements = [statement for one in effects for statement in one.statements]
        if not sends and not statements:
            settle(self.store, entries)
            return
        work = CommitWork(entries, sends)
        tracing = active(self.store)
        with nullcontext() if tracing is None else tracing.committing(entries, sends):
            if not statements:
                self.store.run(work)
                return
            exclusive = self.store.exclusive(pauses=False)
            try:
                for sql, parameters in statements:
                    exclusive.execute(sql, parameters)
            except BaseException:
                with suppress(self.store.errors):
                    exclusive.rollback()
                raise
            exclusive.commit(work)


def _held(entries: Sequence[Settled], tx: Transaction) -> set[int]:
    return held_of(tx, entries)
