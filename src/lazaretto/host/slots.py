"""A slot: receives hand-overs from one queue, runs their handlers, and settles the results."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from lazaretto.broker.receiver import Receiver
from lazaretto.broker.settling import NEXT_SESSION
from lazaretto.engine.workers.leases import GiveBack, Handover
from lazaretto.errors import BrokerClosed, CommitUnknown, SessionHeld
from lazaretto.host.handlers import Isolation
from lazaretto.host.outcomes import RELEASED, Ended
from lazaretto.host.patience import Patience, may_pass
from lazaretto.host.runners import Runner
from lazaretto.host.settlements import Settling
from lazaretto.host.shared import BatchSize, Shared
from lazaretto.model.actors import HOST, Taker
from lazaretto.model.entities import EntityPath, PoisonSession
from lazaretto.model.messages import MOST_MESSAGES
from lazaretto.store.runtime.measures import active as measured

_log = logging.getLogger(__name__)

#: How long a slot waits for messages before it checks whether to stop, in seconds.
LOOK_UP = 0.5


class Held:
    """A hand-over in progress, as the lock renewal sees it."""

    def __init__(self, handover: Handover, seconds: float) -> None:
        self.handover = handover
        self.seconds = seconds
        self.renew_at = time.monotonic() + seconds / 2
        #: Places of the messages that were settled while others were running.
        self.settled: set[int] = set()
        #: Whether all handlers returned; whether another thread settled it, because one hangs.
        self.collected = False
        self.given_up = False


class Slot:
    """One thread's work for one handler."""

    def __init__(
        self,
        shared: Shared,
        make_runner: Callable[[], Runner],
        lock_seconds: float,
        *,
        sessions: PoisonSession | None,
    ) -> None:
        """`sessions`: how the queue treats poison messages in sessions; None without sessions."""
        self._shared = shared
        self._store = shared.store
        self._path: EntityPath = shared.handler.path
        self._make_runner = make_runner
        self._runner: Runner | None = make_runner()
        self._lock_seconds = lock_seconds
        self._sessions = sessions
        options = shared.handler.options
        self._inline = options.isolation is Isolation.INLINE
        self._idle = options.session_idle
        self._turn = options.session_turn
        self._most_bytes = options.batch_bytes
        self._size = BatchSize(options.batch_size)
        self._stopping = threading.Event()
        self._patience = Patience(shared.stats, str(self._path), self._stopping)
        whole = sessions is PoisonSession.WHOLE
        self._settling = Settling(shared, self._size, self._patience, self._stopping, whole=whole)
        #: The hand-overs held now, by lease: at most the current one and the next one.
        self.held: dict[int, Held] = {}
        #: The receiver that holds a session.
        self._receiver: Receiver | None = None
        self.error: BaseException | None = None

    def stop(self, grace: float) -> None:
        """Receive no more; running handlers get `grace` seconds."""
        self._stopping.set()
        runner = self._runner
        if runner is not None:
            runner.stop(grace)

    def close(self) -> None:
        """Close the runner."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def is_given_up(self) -> bool:
        """Whether all its messages were settled elsewhere, because a handler hangs."""
        batches = list(self.held.values())
        return bool(batches) and all(one.given_up for one in batches)

    # -- taking ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until told to stop, and wait out temporary faults."""
        work = self._work_session if self._sessions is not None else self._work_queue
        taker = Taker(str(self._path), HOST, self._shared.handler.name)
        self._store.presence.enter(self, taker)
        try:
            while not self._stopping.is_set():
                try:
                    self._give_back()
                    self._get_ready()
                    work()
                except BrokerClosed:
                    return
                except Exception as error:
                    if not may_pass(error):
                        raise
                    self._patience.rest(error)
        except BaseException as error:
            self.error = error
            with contextlib.suppress(Exception):
                _log.exception("a slot of %r ended", str(self._path))
        finally:
            self._store.presence.leave(self)
            with contextlib.suppress(Exception):
                self._give_back()
            # Locks of a slot that does not work are not renewed.
            self.held.clear()

    def _give_back(self) -> None:
        """Release messages that a fault kept from being settled, without counting an attempt."""
        for token, batch in list(self.held.items()):
            if not batch.given_up:
                handover = batch.handover
                # What is in doubt has no messages that are known.
                self._store.run(GiveBack(handover.lock, [m.key for m in handover.messages] or None))
            del self.held[token]
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def _get_ready(self) -> None:
        """Create the runner before any message is received."""
        if self._runner is None:
            self._runner = self._make_runner()
            if self._stopping.is_set():
                # It was told to stop while the runner started.
                self._runner.stop(0.0)

    def _drop_runner(self) -> None:
        """Discard the runner: a fault may have left it in an unknown state."""
        with contextlib.suppress(Exception):
            self.close()

    def _work_queue(self) -> None:
        with Receiver(self._store, self._path) as receiver:
            handover = self._ask(receiver)
            if handover is None:
                self._patience.well()
            while handover is not None:
                handover = self._work(handover, None if self._inline else receiver)

    def _work_session(self) -> None:
        rotation = self._shared.stats.rotation
        receiver = Receiver(self._store, self._path, session=NEXT_SESSION, rotation=rotation)
        # `_give_back` closes it, and tries again if that fails.
        self._receiver = receiver
        handover = self._ask(receiver)
        if handover is None:
            self._patience.well()
        end = time.monotonic() + self._turn
        while handover is not None:
            self._work(handover, None)
            if self._stopping.is_set() or time.monotonic() >= end:
                # Other sessions may be waiting. If none is, this one is delivered again at once.
                return
            try:
                handover = self._take(receiver, self._idle)
            except SessionHeld:
                # An operator must decide on its poison message; go on with other sessions.
                return

    def _ask(self, receiver: Receiver) -> Handover | None:
        with self._shared.asking():
            return self._take(receiver, LOOK_UP, sharers=lambda: self._shared.idle)

    def _take(
        self,
        receiver: Receiver,
        wait: float,
        *,
        started: bool = True,
        sharers: Callable[[], int] | None = None,
    ) -> Handover | None:
        whole = self._sessions is PoisonSession.WHOLE
        # A session that is one unit is delivered whole.
        size = min(self._size.size, self._shared.pace.size)
        limit, most_bytes = (MOST_MESSAGES, None) if whole else (size, self._most_bytes)
        try:
            handover = receiver.take(limit, wait, started=started, most_bytes=most_bytes, sharers=sharers)
        except CommitUnknown:
            if receiver.in_doubt is not None:
                # Released later, in case it was delivered.
                self._hold(receiver.in_doubt)
            raise
        if handover is not None:
            self._hold(handover)
            self._note_waits(handover)
        return handover

    def _note_waits(self, handover: Handover) -> None:
        """Note how old the messages are that come for the first time, if somebody asks."""
        measures = measured()
        if measures is not None:
            now = self._store.clock.now()
            firsts = [max(0, now - m.enqueued) / 1e6 for m in handover.messages if m.attempt == 1]
            measures.waits.note((str(self._path),), firsts)

    def _hold(self, handover: Handover) -> None:
        self.held[handover.lock.token] = Held(handover, self._lock_seconds)

    # -- working --------------------------------------------------------------------------------

    def _work(self, handover: Handover, ahead: Receiver | None) -> Handover | None:
        """Run and settle a hand-over; meanwhile receive the next one, and return it."""
        try:
            following, ended = self._run(handover, ahead)
        except BaseException:
            self._drop_runner()
            raise
        batch = self.held[handover.lock.token]
        with self._shared.lock:
            batch.collected, given_up = True, batch.given_up
        if not given_up:
            token = None if following is None else following.lock.token
            self._settling.finish(handover, ended, token, batch.settled)
        elif following is not None:
            self._settling.finish(following, [RELEASED] * len(following.messages), None)
            del self.held[following.lock.token]
            following = None
        del self.held[handover.lock.token]
        self._patience.well()
        return following

    def _run(self, handover: Handover, ahead: Receiver | None) -> tuple[Handover | None, list[Ended]]:
        """Run the handlers of a hand-over; return the next hand-over, and how each attempt ended."""
        runner, following = self._runner, None
        if runner is None:
            # Closed while the store kept the slot waiting; what is held is given back.
            raise BrokerClosed("the host is closed")
        with self._shared.gate.working(alone=handover.alone) if self._inline else contextlib.nullcontext():
            begun = time.monotonic()
            runner.start(handover)
            try:
                quick = self._shared.pace.is_quick(len(handover.messages))
                if quick and ahead is not None and not self._stopping.is_set():
                    following = self._look_ahead(ahead)
            finally:
                ended = runner.collect(partial(self._settle_some, handover))
            ran = sum(e is not RELEASED for e in ended)
            if ran:
                # In a session that stops at a failure, later messages took no time.
                self._shared.pace.note(ran, time.monotonic() - begun)
        return following, ended

    def _settle_some(self, handover: Handover, some: list[tuple[int, Ended]]) -> None:
        """Settle the finished messages of a hand-over while others of it are running."""
        if handover.outage is not None or self._sessions is not None:
            # The result of a session or a probe is known only when all of it has ended.
            return
        batch = self.held[handover.lock.token]
        with self._shared.lock:
            if batch.given_up:
                return
            batch.settled.update(place for place, _ in some)
        self._settling.finish_some([(handover.messages[place], ended) for place, ended in some])

    def _look_ahead(self, receiver: Receiver) -> Handover | None:
        try:
            return self._take(receiver, 0.0, started=False, sharers=lambda: self._shared.idle + 1)
        except Exception:
            # The fault will recur when the slot has nothing else to do; it releases the messages then.
            return None

    def give_up(self) -> None:
        """Settle the known results of a hand-over whose handler hangs.

        The messages behind it are released. Its own lock is left to expire, which counts as an attempt,
        unless the host is stopping: then it is released too.
        """
        runner = self._runner
        overdue = None if runner is None else runner.overdue()
        if overdue is None:
            return
        ended, place = overdue.ended, overdue.place
        for batch in list(self.held.values()):
            messages = batch.handover.messages
            with self._shared.lock:
                if batch.given_up or batch.collected or batch.handover.lock.token != overdue.token:
                    continue
                batch.given_up = True
            # A session that is one unit cannot complete without the message that hangs.
            outcomes = {} if self._sessions is PoisonSession.WHOLE else ended
            out = batch.settled if self._stopping.is_set() else batch.settled | {place}
            entries = [(m, outcomes.get(n, RELEASED)) for n, m in enumerate(messages) if n not in out]
            _log.warning(
                "the handler of %r does not return from message %d",
                str(self._path),
                messages[place].sequence_number,
            )
            self._settling.commit(entries, batch.handover.lock.token, None)
