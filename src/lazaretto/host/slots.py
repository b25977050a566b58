"""A slot: takes hand-overs of one queue, has them run, and settles what came of them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence

from lazaretto.breaker import BreakerStatus, BreakerWindow
from lazaretto.engine.breakers import NoteProbe, OpenBreaker
from lazaretto.engine.leases import Handover
from lazaretto.engine.settle import RELEASE, Settled, Settlement, held_of
from lazaretto.engine.work import Finished, FinishHandover
from lazaretto.entities import EntityPath, PoisonSession
from lazaretto.errors import (
    BrokerClosed,
    CommitUnknown,
    EntityError,
    LazarettoError,
    MessageLockLost,
    SessionHeld,
    SessionLockLost,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
)
from lazaretto.failure import Failure, failure_of
from lazaretto.host.batches import BatchSize
from lazaretto.host.gate import Gate
from lazaretto.host.handlers import Handler
from lazaretto.host.options import Isolation
from lazaretto.host.outcomes import COMPLETED, RELEASED, Ended
from lazaretto.host.runners import Runner
from lazaretto.host.tally import PoisonMessage, Tally
from lazaretto.messages import ReceivedMessage
from lazaretto.policy import Disposition, Final, Outcome
from lazaretto.receiver import MOST_MESSAGES, NEXT_SESSION, Receiver
from lazaretto.store.contract import Store

_log = logging.getLogger(__name__)

#: How long a slot waits for messages before it looks whether to stop, in seconds.
LOOK_UP = 0.5
#: How long it leaves a store alone that is busy, full or halted, in seconds.
_REST = 0.5


@dataclasses.dataclass(slots=True)
class Shared:
    """What the slots of one handler have in common."""

    handler: Handler
    store: Store
    tally: Tally
    gate: Gate
    window: BreakerWindow | None
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class Held:
    """A hand-over that is worked on, for whoever prolongs its locks."""

    def __init__(self, handover: Handover, seconds: float) -> None:
        self.handover = handover
        self.seconds = seconds
        self.renew_at = time.monotonic() + seconds / 2
        #: Whether somebody else has settled it, because its handler does not come back.
        self.given_up = False


class Slot:
    """One thread's work for one handler."""

    def __init__(
        self, shared: Shared, runner: Runner, lock_seconds: float, *, sessions: PoisonSession | None
    ) -> None:
        """`sessions`: how the queue treats poison in sessions; None if it has none."""
        self._shared = shared
        self._store = shared.store
        self._path: EntityPath = shared.handler.path
        self.runner = runner
        self._lock_seconds = lock_seconds
        self._sessions = sessions
        options = shared.handler.options
        self._inline = options.isolation is Isolation.INLINE
        self._idle = options.session_idle
        self._size = BatchSize(options.batch_size)
        self._stopping = threading.Event()
        #: What is held now, by lease: at most the hand-over at work and the one behind it.
        self.held: dict[int, Held] = {}
        self.error: BaseException | None = None

    def stop(self) -> None:
        """Take no more."""
        self._stopping.set()

    def is_given_up(self) -> bool:
        """Whether all that it holds is settled already, because its handler does not come back."""
        held = list(self.held.values())
        return bool(held) and all(one.given_up for one in held)

    # -- taking ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until told to stop."""
        try:
            while not self._stopping.is_set():
                self._surviving(self._work_session if self._sessions is not None else self._work_queue)
        except BrokerClosed:
            return
        except BaseException as error:
            self.error = error
            _log.exception("a slot of %r ended", str(self._path))

    def _surviving(self, work: Callable[[], None]) -> None:
        """Run, and go on after what another time may be well: a halted queue, a busy store."""
        try:
            work()
        except BrokerClosed:
            raise
        except (EntityError, StoreBusy, StoreFull, StoreUnavailable, SessionLockLost) as error:
            self._shared.tally.waiting(str(error))
            self._stopping.wait(_REST)

    def _work_queue(self) -> None:
        with Receiver(self._store, self._path) as receiver:
            handover = self._take(receiver, LOOK_UP)
            while handover is not None:
                handover = self._work(handover, None if self._inline else receiver)

    def _work_session(self) -> None:
        with Receiver(
            self._store, self._path, session=NEXT_SESSION, rotation=self._shared.tally.rotation
        ) as receiver:
            handover = self._take(receiver, LOOK_UP)
            while handover is not None:
                self._work(handover, None)
                try:
                    handover = None if self._stopping.is_set() else self._take(receiver, self._idle)
                except SessionHeld:
                    # Its poison message is for an operator now; there are other sessions.
                    return

    def _take(self, receiver: Receiver, wait: float, *, started: bool = True) -> Handover | None:
        whole = self._sessions is PoisonSession.WHOLE
        handover = receiver.take(MOST_MESSAGES if whole else self._size.size, wait, started=started)
        if handover is not None:
            self._shared.tally.waiting(None)
            self.held[handover.lock.token] = Held(handover, self._lock_seconds)
        return handover

    # -- working --------------------------------------------------------------------------------

    def _work(self, handover: Handover, ahead: Receiver | None) -> Handover | None:
        """Have a hand-over run and settle it; meanwhile take the next one, and return that."""
        following = None
        with self._shared.gate.working(alone=handover.alone) if self._inline else contextlib.nullcontext():
            self.runner.start(handover)
            try:
                if ahead is not None and not self._stopping.is_set():
                    following = self._look_ahead(ahead)
            finally:
                ended = self.runner.collect()
        held = self.held.pop(handover.lock.token)
        with self._shared.lock:
            given_up = held.given_up
        if not given_up:
            self.finish(handover, ended, None if following is None else following.lock.token)
        elif following is not None:
            self.finish(following, [RELEASED] * len(following.messages), None)
            following = None
        return following

    def _look_ahead(self, receiver: Receiver) -> Handover | None:
        try:
            return self._take(receiver, 0.0, started=False)
        except LazarettoError:
            # It will be met again, when there is nothing else to do.
            return None

    def give_up(self) -> None:
        """Settle what is known of a hand-over whose handler does not come back.

        The messages behind it are given back. Its own lock is left to run out, which charges it as
        expired, unless all is being stopped: then it is given back too.
        """
        ended = self.runner.overdue()
        if ended is None:
            return
        for held in list(self.held.values()):
            messages = held.handover.messages
            with self._shared.lock:
                if held.given_up or len(messages) <= len(ended):
                    continue
                held.given_up = True
            rest = [RELEASED] * (len(messages) - len(ended))
            entries = list(zip(messages, [*ended, *rest], strict=True))
            if not self._stopping.is_set():
                del entries[len(ended)]
            _log.warning(
                "the handler of %r does not come back from message %d",
                str(self._path),
                messages[len(ended)].sequence_number,
            )
            self._commit(entries, held.handover.lock.token, None)

    # -- settling -------------------------------------------------------------------------------

    def finish(self, handover: Handover, ended: Sequence[Ended], following: int | None) -> None:
        """Settle a hand-over in one commit, which also starts on the following one."""
        ended = self._as_unit(handover, ended)
        settled = self._judge(handover, ended) or ended
        self._commit(list(zip(handover.messages, settled, strict=True)), handover.lock.token, following)
        if handover.outage is not None:
            self._note_probe(handover.outage, ended)

    def _as_unit(self, handover: Handover, ended: Sequence[Ended]) -> Sequence[Ended]:
        """A session that is one unit completes as one: what was done before a failure is not kept."""
        if self._sessions is not PoisonSession.WHOLE or all(e.settlement.failure is None for e in ended):
            return ended
        return [e if e.settlement.failure is not None else RELEASED for e in ended]

    def _commit(
        self, entries: list[tuple[ReceivedMessage, Ended]], token: int, following: int | None
    ) -> None:
        try:
            self._store_all(entries, token, following)
            self._size.committed(len(entries))
        except (BrokerClosed, SessionLockLost) as error:
            self._shared.tally.lost(len(entries))
            if isinstance(error, BrokerClosed):
                raise
        except MessageLockLost:
            held = self._store.read(lambda tx: held_of(tx, [Settled(m, e.settlement) for m, e in entries]))
            left = [(m, e) for m, e in entries if m.key in held]
            self._shared.tally.lost(len(entries) - len(left))
            if len(left) < len(entries):
                self._commit(left, token, following)
        except (LazarettoError, self._store.errors) as error:
            self._one_by_one(entries, token, following, error)

    def _one_by_one(
        self,
        entries: list[tuple[ReceivedMessage, Ended]],
        token: int,
        following: int | None,
        error: Exception,
    ) -> None:
        """Commit each message by itself, so that only the one that cannot be is charged."""
        if len(entries) > 1:
            self._size.rolled_back()
            for entry in entries[:-1]:
                self._commit([entry], token, None)
            self._commit(entries[-1:], token, following)
            return
        ((message, ended),) = entries
        if ended.effects is None:
            # It asked for nothing that could fail: the store itself cannot do it now.
            raise error
        failed = Ended(Settlement(Outcome.FAILED, failure_of(error)))
        self._commit([(message, failed)], token, following)

    def _store_all(
        self, entries: Sequence[tuple[ReceivedMessage, Ended]], token: int, following: int | None
    ) -> None:
        asked = [e.effects for _, e in entries if e.effects is not None]
        sends = [(EntityPath.parse(path), sent) for effects in asked for path, sent in effects.sends]
        settled = [Settled(message, e.settlement) for message, e in entries]
        prints = {m.key: print_ for m, e in entries if e is not COMPLETED and (print_ := e.fingerprint)}
        work = FinishHandover(settled, sends, prints, token, following)
        statements = [statement for effects in asked for statement in effects.statements]
        finished = self._with_sql(work, statements) if statements else self._patiently(work)
        if finished.outage is not None:
            self._forget(finished.outage)
            entries = [(m, _uncharged(e, finished.outage)) for m, e in entries]
        self._report(entries, finished.finals)

    def _patiently(self, work: FinishHandover) -> Finished:
        """Run it, again and again while the store is busy, full or away: what is done must not be lost.

        Where nobody knows whether it was committed, doing it again finds the locks gone if it was.
        """
        while True:
            try:
                return self._store.run(work)
            except (StoreBusy, StoreFull, StoreUnavailable, CommitUnknown) as error:
                self._shared.tally.waiting(str(error))
                if self._stopping.wait(_REST):
                    return self._store.run(work)

    def _with_sql(self, work: FinishHandover, statements: Sequence[tuple[str, object]]) -> Finished:
        exclusive = self._store.exclusive()
        try:
            for sql, parameters in statements:
                exclusive.execute(sql, parameters)
        except BaseException:
            exclusive.rollback()
            raise
        return exclusive.commit(work)

    # -- breaker and report ---------------------------------------------------------------------

    def _judge(self, handover: Handover, ended: Sequence[Ended]) -> list[Ended] | None:
        """Tell the breaker; return other ends, uncharged, for what an outage did to these messages."""
        if handover.outage is not None:
            return [_uncharged(e, handover.outage) for e in ended]
        window = self._shared.window
        if window is None:
            return None
        prints = [
            (m.key, None if e is COMPLETED else e.fingerprint)
            for m, e in zip(handover.messages, ended, strict=True)
            if e.settlement is not RELEASE
        ]
        with self._shared.lock:
            found = window.note(prints, time.monotonic())
            if found is None:
                return None
            charges = window.take_charges(found)
        for key, fingerprint in prints:
            # Not charged yet.
            if fingerprint == found:
                charges[key] -= 1
        failure = next(e.settlement.failure for e in ended if e.fingerprint == found)
        return self._open(found, failure, {k: n for k, n in charges.items() if n}, ended)

    def _open(
        self, fingerprint: str, failure: Failure | None, charges: dict[int, int], ended: Sequence[Ended]
    ) -> list[Ended] | None:
        assert failure is not None
        error = f"{failure.type}: {failure.message}" if failure.message else failure.type
        self._store.run(OpenBreaker(self._path, fingerprint, error, charges))
        queue = self._store.read(lambda tx: tx.queue(self._path.key))
        if queue is None or queue.breaker is None or BreakerStatus.HELD_CLOSED.value in queue.breaker:
            return None
        _log.error("%r: an outage, not poison: %s", str(self._path), error)
        return [_uncharged(e, fingerprint) for e in ended]

    def _forget(self, fingerprint: str) -> None:
        """Forget failures that were not charged: another hand-over has found their outage."""
        if self._shared.window is not None:
            with self._shared.lock:
                self._shared.window.take_charges(fingerprint)

    def _note_probe(self, fingerprint: str, ended: Sequence[Ended]) -> None:
        down = sum(e.fingerprint == fingerprint for e in ended)
        well = sum(e.settlement is not RELEASE and e.settlement.failure is None for e in ended)
        if down or well:
            self._store.run(NoteProbe(self._path, well > down))

    def _report(
        self, entries: Sequence[tuple[ReceivedMessage, Ended]], finals: Sequence[tuple[int, Final]]
    ) -> None:
        tally = self._shared.tally
        tally.count([e.settlement.outcome for _, e in entries], len(finals))
        if not finals:
            return
        by_key = {m.key: (m, e) for m, e in entries}
        for key, verdict in finals:
            message, ended = by_key[key]
            poison = PoisonMessage(
                str(self._path),
                message,
                verdict.reason,
                verdict.description,
                Disposition(verdict.disposition),
                ended.settlement.failure,
            )
            for hook in self._shared.handler.options.on_poison:
                try:
                    hook(poison)
                except Exception:
                    _log.exception("a hook for poison messages of %r failed", str(self._path))


def _uncharged(ended: Ended, fingerprint: str) -> Ended:
    return RELEASED if ended.fingerprint == fingerprint else ended
