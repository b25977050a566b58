"""A plain consumer loop: receive a batch, call the handler, settle all in one commit."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable

from lazaretto.engine.settle import COMPLETE, Settled, Settlement
from lazaretto.errors import InvalidMessage, MessageLockLost
from lazaretto.failure import failure_of
from lazaretto.messages import ReceivedMessage
from lazaretto.policy import Outcome
from lazaretto.receiver import Receiver, settle
from lazaretto.store.contract import Store

Handler = Callable[[ReceivedMessage], object]

_RELEASE = Settlement(Outcome.RELEASED)
#: How long a wait lasts before it is looked whether to stop, in seconds.
_LOOK_UP = 0.5


@dataclasses.dataclass(slots=True)
class ConsumeReport:
    """What a consumer did: attempts by how they ended. `lost`: whose lock ran out meanwhile."""

    completed: int = 0
    failed: int = 0
    invalid: int = 0
    lost: int = 0


@dataclasses.dataclass(slots=True)
class Consumer:
    """Calls a handler for each message of a receiver until it is told to stop."""

    store: Store
    receiver: Receiver
    handler: Handler
    batch_size: int
    now: Callable[[], int]
    stop: threading.Event | None = None
    stop_when_idle: bool = False
    max_wait: float = 0.0
    on_batch: Callable[[ConsumeReport], object] | None = None
    report: ConsumeReport = dataclasses.field(default_factory=ConsumeReport)

    def run(self) -> ConsumeReport:
        """Consume until told to stop. Raises PoisonMessageError when the queue is halted."""
        while self.stop is None or not self.stop.is_set():
            wait = self.max_wait if self.stop_when_idle else _LOOK_UP
            batch = self.receiver.receive(self.batch_size, wait)
            if batch:
                self._handle(batch)
                if self.on_batch is not None:
                    self.on_batch(self.report)
            elif self.stop_when_idle:
                break
        return self.report

    def _handle(self, batch: list[ReceivedMessage]) -> None:
        done: list[Settled] = []
        renew_at = self._half_time(batch)
        try:
            for index, message in enumerate(batch):
                if time.monotonic() >= renew_at:
                    # A slow handler must not lose the locks of those that wait behind it.
                    self._settle(done)
                    done = []
                    self._renew(batch[index:])
                    renew_at = self._half_time(batch[index:])
                done.append(Settled(message, self._call(message)))
        except BaseException:
            # Told to stop in the middle: what is done is done, the rest was never tried.
            done += [Settled(message, _RELEASE) for message in batch[len(done) :]]
            raise
        finally:
            self._settle(done)

    def _call(self, message: ReceivedMessage) -> Settlement:
        try:
            self.handler(message)
        except InvalidMessage as error:
            self.report.invalid += 1
            return Settlement(Outcome.INVALID, failure_of(error))
        except Exception as error:
            self.report.failed += 1
            return Settlement(Outcome.FAILED, failure_of(error))
        self.report.completed += 1
        return COMPLETE

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
                self.report.lost += len(entries) - len(left)
                if len(left) == len(entries):
                    raise
                entries = left
