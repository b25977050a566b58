"""A plain consumer loop: receive a batch, call the handler, settle all in one commit."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lazaretto.engine.messages.settle import COMPLETE, RELEASE, Settled, Settlement, as_unit
from lazaretto.errors import InvalidMessage, MessageLockLost, SessionHeld, SessionLockLost
from lazaretto.model.failure import failure_of
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Outcome
from lazaretto.receiver import Receiver
from lazaretto.settling import settle
from lazaretto.store.contract.store_contract import Store
from lazaretto.traces import active

if TYPE_CHECKING:
    from lazaretto.traces.spans import Tracing

Handler = Callable[[ReceivedMessage], object]

#: How long a wait lasts before it is looked whether to stop, in seconds.
_LOOK_UP = 0.5
#: How long a session is worked on while others may wait, in seconds.
_TURN = 1.0
#: How long one that failed waits where no policy says when it is tried again, in seconds.
_AGAIN = 1.0


@dataclasses.dataclass(slots=True)
class ConsumeReport:
    """A consumer's counts: attempts by outcome. `locks_lost`: messages whose lock expired first."""

    completed: int = 0
    failed: int = 0
    invalid: int = 0
    locks_lost: int = 0


@dataclasses.dataclass(slots=True)
class Consumer:
    """Calls a handler for each message of a receiver until it is stopped.

    `roams`: the receiver takes one session after the other. `retries_for_ever`: no policy limits the
    attempts, as in a dead-letter subqueue without one. `whole`: each session is settled as a unit.
    """

    store: Store
    receiver: Receiver
    handler: Handler
    batch_size: int
    now: Callable[[], int]
    stop: threading.Event | None = None
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

    def run(self) -> ConsumeReport:
        """Consume until stopped. Raises PoisonMessageError if the queue is halted."""
        try:
            while self.stop is None or not self.stop.is_set():
                wait = self.max_wait if self.stop_when_idle else _LOOK_UP
                came = self._work_session(wait) if self.roams else self._work(wait)
                if not came and self.stop_when_idle:
                    break
        finally:
            self._settle(list(self._aside.values()))
        return self.report

    def _work_session(self, wait: float) -> bool:
        """Process the next session until it is empty, or its turn is over."""
        came, end = False, time.monotonic() + _TURN
        try:
            while self._work(wait):
                came, wait = True, 0.0
                if time.monotonic() >= end or (self.stop is not None and self.stop.is_set()):
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
        done: list[Settled] = []
        call, renew_at = self._caller(), self._half_time(batch)
        try:
            for index, message in enumerate(batch):
                if time.monotonic() >= renew_at:
                    # A slow handler must not lose the locks of those that wait behind it.
                    self._settle(self._without_failed(done))
                    done = []
                    self._renew(batch[index:])
                    renew_at = self._half_time(batch[index:])
                done.append(Settled(message, call(message)))
        except BaseException:
            # Told to stop in the middle: what is done is done, the rest was never tried.
            done += [Settled(message, RELEASE) for message in batch[len(done) :]]
            raise
        finally:
            self._settle(self._without_failed(done))

    def _handle_unit(self, unit: list[ReceivedMessage]) -> None:
        """Handle all messages of a session up to the first failure: all are completed, or none."""
        found: list[Settlement] = []
        call, renew_at = self._caller(), self._half_time(unit)
        try:
            for message in unit:
                if time.monotonic() >= renew_at:
                    self._renew(unit)
                    renew_at = self._half_time(unit)
                found.append(call(message))
                if found[-1].failure is not None:
                    break
        finally:
            settlements = as_unit([*found, *[RELEASE] * (len(unit) - len(found))])
            undone = sum(one is COMPLETE for one in found) - sum(one is COMPLETE for one in settlements)
            self.report.completed -= undone
            self._settle([Settled(message, one) for message, one in zip(unit, settlements, strict=True)])

    def _without_failed(self, done: list[Settled]) -> list[Settled]:
        """Remove failed messages that would otherwise be redelivered at once and forever."""
        if not (self.retries_for_ever and self.stop_when_idle):
            return done
        failed = [e for e in done if e.settlement.outcome is Outcome.FAILED]
        if failed and not self._aside:
            self._renew_aside_at = self._half_time([failed[0].message])
        self._aside.update((e.message.sequence_number, e) for e in failed)
        return [e for e in done if e.settlement.outcome is not Outcome.FAILED]

    def _renew_aside(self) -> None:
        messages = [e.message for e in self._aside.values()]
        self._renew(messages)
        self._renew_aside_at = self._half_time(messages)

    def _caller(self) -> Callable[[ReceivedMessage], Settlement]:
        """Return what calls the handler with a message; looked up once for a batch."""
        tracing = active(self.store)
        return self._outcome if tracing is None else functools.partial(self._trace, tracing)

    def _trace(self, tracing: Tracing, message: ReceivedMessage) -> Settlement:
        processing = tracing.processing(self.receiver._path, message)
        with processing.current():
            settlement = self._outcome(message)
        failure = settlement.failure
        processing.end(settlement.outcome, None if failure is None else failure.type)
        return settlement

    def _outcome(self, message: ReceivedMessage) -> Settlement:
        try:
            self.handler(message)
        except InvalidMessage as error:
            self.report.invalid += 1
            return Settlement(Outcome.INVALID, failure_of(error))
        except Exception as error:
            self.report.failed += 1
            return Settlement(Outcome.FAILED, failure_of(error), self._delay)
        self.report.completed += 1
        return COMPLETE

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

    def _settle(self, entries: list[Settled]) -> None:
        while entries:
            try:
                settle(self.store, entries)
                return
            except MessageLockLost as error:
                lost = set(error.sequence_numbers)
                left = [e for e in entries if e.message.sequence_number not in lost]
                self.report.locks_lost += len(entries) - len(left)
                if len(left) == len(entries):
                    raise
                entries = left
