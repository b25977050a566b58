"""Settles hand-overs: attributes failures, and recognises outages."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeVar

import msgspec

from lazaretto.broker.handling.context import store_fault
from lazaretto.engine.messages.locks import held_of
from lazaretto.engine.messages.send import Send
from lazaretto.engine.messages.settle import RELEASE, Settled, Settlement, as_unit
from lazaretto.engine.outcome.breakers import GiveBack, NoteProbe, OpenBreaker
from lazaretto.engine.outcome.verdicts import allowed, foretell
from lazaretto.engine.unit_of_work import Finished, FinishHandover
from lazaretto.engine.workers.leases import Handover
from lazaretto.errors import (
    BrokerClosed,
    MessageLockLost,
    SessionLockLost,
    StoreBusy,
    StoreUnavailable,
    TransactionError,
)
from lazaretto.host.handler_stats import PoisonMessage, verdict_of
from lazaretto.host.outcomes import COMPLETED, RELEASED, Ended
from lazaretto.host.patience import Patience, may_pass
from lazaretto.host.shared import BatchSize, Shared
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import Failure, failure_of
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Final, Outcome, PoisonVerdict
from lazaretto.observe.traces import active
from lazaretto.store.runtime.measures import active as measured
from lazaretto.store.sql.transaction import Transaction

_log = logging.getLogger(__name__)

#: Consecutive failures of a hand-over's SQL, on a store that otherwise works, before each message is
#: committed by itself; then, for one message's SQL, before the message counts as failed.
_MOST_BROKEN, _MOST_BROKEN_ALONE = 3, 10

_DONE = Outcome.COMPLETED
#: Outcomes to which the poison policy applies.
_FAILING = (Outcome.FAILED, Outcome.LOCK_EXPIRED, Outcome.LOST, Outcome.INVALID)
#: Retry delay of a failed message where no policy sets one, in seconds.
_AGAIN = 1.0

T = TypeVar("T")

Entries = list[tuple[ReceivedMessage, Ended]]


class Settling:
    """Settles the hand-overs of one slot, each in one commit, and waits out temporary faults.

    `whole`: a hand-over is a session that is one unit. `stopping`: set when faults are no longer waited out.
    """

    def __init__(
        self, shared: Shared, size: BatchSize, patience: Patience, stopping: threading.Event, *, whole: bool
    ) -> None:
        self._shared = shared
        self._store = shared.store
        self._path: EntityPath = shared.handler.path
        self._size = size
        self._patience = patience
        self._stopping = stopping
        self._whole = whole
        #: Consecutive failures of the SQL that messages requested.
        self._broken = 0

    def finish(
        self,
        handover: Handover,
        ended: Sequence[Ended],
        following: int | None,
        settled: Container[int] = (),
    ) -> None:
        """Settle a hand-over in one commit, which also starts on the following one.

        `settled`: the places of messages that are already settled.
        """
        ended = self._as_unit(handover, ended)
        pairs = enumerate(zip(handover.messages, ended, strict=True))
        rest = [pair for place, pair in pairs if place not in settled]
        self.commit(self._judged(rest, handover.outage), handover.lock.token, following)
        if handover.outage is not None:
            self._note_probe(handover.outage, ended)

    def finish_some(self, entries: Entries) -> None:
        """Settle messages of a hand-over while others of it are running."""
        self.commit(self._judged(entries, None), None, None)

    def _judged(self, entries: Entries, outage: str | None) -> Entries:
        """Return how attempts end, taking an outage into account."""
        if self._shared.retries_for_ever:
            entries = [(m, _later(e)) for m, e in entries]
        return self._judge(entries, outage) or entries

    def _as_unit(self, handover: Handover, ended: Sequence[Ended]) -> Sequence[Ended]:
        """A session that is one unit completes as one: if any message fails, none is completed."""
        if not self._whole:
            return ended
        unit = as_unit(e.settlement for e in ended)
        return [e if one is e.settlement else RELEASED for e, one in zip(ended, unit, strict=True)]

    def commit(self, entries: Entries, token: int | None, following: int | None) -> None:
        """Settle messages of a hand-over without further checks; mark the next one as started."""
        entries = self._ask(entries)
        try:
            finished = self._store_all(entries, token, following)
        except (BrokerClosed, SessionLockLost) as error:
            self._shared.stats.lost(len(entries))
            if isinstance(error, BrokerClosed):
                raise
        except MessageLockLost:
            keys = self._persist(
                lambda: self._store.read(
                    lambda tx: held_of(tx, [Settled(m, e.settlement) for m, e in entries])
                )
            )
            rest = [(m, e) for m, e in entries if m.key in keys]
            self._shared.stats.lost(len(entries) - len(rest))
            if len(rest) < len(entries):
                self.commit(rest, token, following)
        except Exception as error:
            if store_fault(error, self._store) is not None:
                raise
            self._one_by_one(entries, token, following, error)
        else:
            self._size.committed(len(entries))
            if finished.outage is not None:
                self._give_back(finished.outage, entries)
                entries = [(m, _uncharged(e, finished.outage)) for m, e in entries]
            self._report(entries, finished.finals)
            if self._shared.retries_for_ever:
                tried = [(m.key, e.settlement.failure is not None) for m, e in entries if e is not RELEASED]
                self._shared.stats.tried_for_ever(tried)

    def _ask(self, entries: Entries) -> Entries:
        """Call the `on_poison` functions for each message whose last attempt failed; apply the results."""
        hooks = self._shared.handler.options.on_poison
        failing = [(m, e) for m, e in entries if e.settlement.outcome in _FAILING and not e.told]
        if not hooks or not failing:
            return entries
        finals = self._persist(lambda: self._store.read(lambda tx: _foretold(tx, failing)))
        return [(m, self._decided(m, e, finals.get(m.key))) for m, e in entries]

    def _decided(self, message: ReceivedMessage, ended: Ended, final: Final | None) -> Ended:
        if final is None:
            return ended
        verdict = self._tell(message, ended.settlement, final)
        if verdict is not None and not allowed(verdict, message.key):
            _log.error("%r: a dead letter cannot be moved again; the policy applies", str(self._path))
        settlement = msgspec.structs.replace(ended.settlement, poison=verdict)
        return ended._replace(settlement=settlement, told=True)

    def _tell(self, message: ReceivedMessage, settlement: Settlement, final: Final) -> PoisonVerdict | None:
        """Call the `on_poison` functions for a poison message; return the first decision."""
        path, verdict = str(self._path), None
        poison = PoisonMessage(
            path, message, final.reason, final.description, final.disposition, settlement.failure
        )
        for hook in self._shared.handler.options.on_poison:
            try:
                decision = verdict_of(hook(poison))
            except BaseException:
                # Even SystemExit from a hook must not end the slot.
                _log.exception("a hook for poison messages of %r failed: the policy decides", path)
            else:
                verdict = decision if verdict is None else verdict
        return verdict

    def _one_by_one(
        self,
        entries: Entries,
        token: int | None,
        following: int | None,
        error: Exception,
    ) -> None:
        """Commit each message by itself, so that an attempt counts only for the one that fails.

        A session that is one unit stays whole: the attempt counts for its first message with effects.
        """
        if len(entries) > 1 and self._whole:
            culprit = next((message.key for message, ended in entries if ended.effects is not None), None)
            if culprit is None:
                raise error
            charged = Ended(Settlement(Outcome.FAILED, failure_of(error)))
            unit = [(message, charged if message.key == culprit else RELEASED) for message, _ in entries]
            self.commit(unit, token, following)
            return
        if len(entries) > 1:
            self._size.rolled_back()
            for entry in entries[:-1]:
                self.commit([entry], token, None)
            self.commit(entries[-1:], token, following)
            return
        ((message, ended),) = entries
        if ended.effects is None:
            # It requested no effects that could fail.
            raise error
        failed = Ended(Settlement(Outcome.FAILED, failure_of(error)))
        self.commit([(message, failed)], token, following)

    def _store_all(self, entries: Entries, token: int | None, following: int | None) -> Finished:
        asked = [e.effects for _, e in entries if e.effects is not None]
        sends = [(EntityPath.parse(path), sent) for effects in asked for path, sent in effects.sends]
        settled = [Settled(message, e.settlement) for message, e in entries]
        prints = {m.key: print_ for m, e in entries if e is not COMPLETED and (print_ := e.fingerprint)}
        work = FinishHandover(settled, sends, prints, token, following)
        statements = [statement for effects in asked for statement in effects.statements]
        tracing = active(self._store)
        if tracing is None or not settled:
            return self._commit(work, statements, len(entries))
        with tracing.committing(settled, [Send(path, sent) for path, sent in sends]):
            return self._commit(work, statements, len(entries))

    def _commit(self, work: FinishHandover, statements: Sequence[tuple[str, object]], count: int) -> Finished:
        if not statements:
            return self._persist(lambda: self._store.run(work))
        self._broken = 0
        most = _MOST_BROKEN if count > 1 else _MOST_BROKEN_ALONE
        return self._persist(lambda: self._with_sql(work, statements, most))

    def _persist(self, attempt: Callable[[], T]) -> T:
        """Repeat an operation that must not be lost, while the store has a temporary fault.

        Once the slot is told to stop, it tries one last time. If a commit's result is unknown, a repetition
        finds the locks gone if the commit succeeded.
        """
        while True:
            last = self._stopping.is_set()
            try:
                return attempt()
            except Exception as error:
                fault = store_fault(error, self._store)
                if fault is None:
                    raise
                if last or not may_pass(fault):
                    raise fault from error
                self._patience.rest(fault)

    def _with_sql(
        self, work: FinishHandover, statements: Sequence[tuple[str, object]], most_broken: int
    ) -> Finished:
        exclusive = self._store.exclusive(pauses=False)
        try:
            for sql, parameters in statements:
                exclusive.execute(sql, parameters)
        except BaseException as error:
            with contextlib.suppress(self._store.errors):
                exclusive.rollback()
            # The store worked a moment ago: a repetition will tell whether the fault is permanent.
            if isinstance(store_fault(error, self._store), StoreBusy | StoreUnavailable):
                self._broken += 1
                if self._broken >= most_broken:
                    text = f"the store failed at its SQL {most_broken} times in a row: {error}"
                    raise TransactionError(text) from error
            raise
        return exclusive.commit(work)

    # -- breaker and report ---------------------------------------------------------------------

    def _judge(self, entries: Entries, outage: str | None) -> Entries | None:
        """Report to the breaker; return uncounted outcomes for messages that failed in an outage."""
        if outage is not None:
            self._give_back(outage, [])
            return [(m, _uncharged(e, outage)) for m, e in entries]
        window = self._shared.window
        if window is None:
            return None
        prints = [
            (m.key, None if e is COMPLETED else e.fingerprint)
            for m, e in entries
            if e.settlement is not RELEASE
        ]
        with self._shared.lock:
            reason = window.note(prints, time.monotonic())
            if reason is None:
                return None
            charges = _counted(window.take_charges(reason), entries, reason)
        failure = next(e.settlement.failure for _, e in entries if e.fingerprint == reason)
        return self._open(reason, failure, charges, entries)

    def _open(
        self, fingerprint: str, failure: Failure | None, charges: dict[int, int], entries: Entries
    ) -> Entries | None:
        assert failure is not None
        error = f"{failure.type}: {failure.message}" if failure.message else failure.type
        self._persist(lambda: self._store.run(OpenBreaker(self._path, fingerprint, error, charges)))
        queue = self._persist(lambda: self._store.read(lambda tx: tx.queues.by_path(self._path.key)))
        if queue is None or queue.breaker is None or BreakerStatus.HELD_CLOSED.value in queue.breaker:
            return None
        return [(m, _uncharged(e, fingerprint)) for m, e in entries]

    def _give_back(self, fingerprint: str, entries: Entries) -> None:
        """Undo what was counted for an outage that another hand-over has found; `entries` were not."""
        if self._shared.window is None:
            return
        with self._shared.lock:
            charges = _counted(self._shared.window.take_charges(fingerprint), entries, fingerprint)
        if charges:
            self._persist(lambda: self._store.run(GiveBack(self._path, charges)))

    def _note_probe(self, fingerprint: str, ended: Sequence[Ended]) -> None:
        down = sum(e.fingerprint == fingerprint for e in ended)
        well = sum(e.settlement is not RELEASE and e.settlement.failure is None for e in ended)
        if down or well:
            self._persist(lambda: self._store.run(NoteProbe(self._path, well > down)))

    def _report(
        self, entries: Sequence[tuple[ReceivedMessage, Ended]], finals: Sequence[tuple[int, Final]]
    ) -> None:
        stats = self._shared.stats
        stats.count([e.settlement.outcome for _, e in entries], len(finals))
        measures = measured()
        if measures is not None:
            now = self._store.clock.now()
            ages = [max(0, now - m.enqueued) / 1e6 for m, e in entries if e.settlement.outcome is _DONE]
            measures.ages.note((str(self._path),), ages)
        if not finals:
            return
        by_key = {m.key: (m, e) for m, e in entries}
        for key, verdict in finals:
            message, ended = by_key[key]
            if not ended.told:
                # The limit was lowered after the check.
                self._tell(message, ended.settlement, verdict)


def _foretold(tx: Transaction, entries: Sequence[tuple[ReceivedMessage, Ended]]) -> dict[int, Final]:
    """Return the final verdicts that the policy would give, by message key."""
    asked = ((m.key, foretell(tx, m.key, e.settlement.outcome, e.settlement.failure)) for m, e in entries)
    return {key: final for key, final in asked if final is not None}


def _counted(charges: Mapping[int, int], entries: Entries, fingerprint: str) -> dict[int, int]:
    """Return what was charged for a failure before these entries, which are not counted yet."""
    new = {m.key for m, e in entries if e is not COMPLETED and e.fingerprint == fingerprint}
    return {key: rest for key, count in charges.items() if (rest := count - (key in new))}


def _later(ended: Ended) -> Ended:
    """Delay the retry of a failed message that no policy limits."""
    if ended.settlement.failure is None:
        return ended
    return ended._replace(settlement=msgspec.structs.replace(ended.settlement, delay=_AGAIN))


def _uncharged(ended: Ended, fingerprint: str) -> Ended:
    return RELEASED if ended.fingerprint == fingerprint else ended
