"""The breaker of a queue in the store: one host opens it in an outage, and all hosts probe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec

from lazaretto.engine.command import Command, Detail, OfPath
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.log import audit, note
from lazaretto.engine.outcome.dispositions import restore
from lazaretto.errors import InvalidOption
from lazaretto.model.breaker import BreakerState, BreakerStatus, failed_again, opened, succeeded
from lazaretto.model.checks import suggestion, text
from lazaretto.model.clock import to_datetime
from lazaretto.model.descriptions import BreakerDescription
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import shorten
from lazaretto.model.keys import dead_key, lower_bound
from lazaretto.store.records.messages import DELAYED, LOCKED, READY, QueueRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

_decoder = msgspec.json.Decoder(BreakerState)

#: What an operator may set a breaker to.
BREAKER_VERBS = {
    "auto": None,
    "open": BreakerStatus.HELD_OPEN,
    "close": BreakerStatus.HELD_CLOSED,
}


def breaker_of(queue: QueueRecord) -> BreakerState | None:
    """Return a queue's breaker; None if it is closed."""
    return None if queue.breaker is None else _decoder.decode(queue.breaker)


def describe_breaker(queue: QueueRecord) -> BreakerDescription:
    """Return the state of a queue's breaker."""
    state = breaker_of(queue)
    if state is None:
        return BreakerDescription(BreakerStatus.CLOSED)
    probe_at = to_datetime(state.probe_at) if state.status is BreakerStatus.OPEN else None
    return BreakerDescription(
        state.status, to_datetime(state.since), state.fingerprint, state.error, probe_at
    )


def save_breaker(tx: Transaction, queue: QueueRecord, state: BreakerState | None) -> None:
    """Store the state of a queue's breaker."""
    encoded = None if state is None else msgspec.json.encode(state).decode()
    current = tx.queues.by_id(queue.queue_id)
    if current is not None and current.breaker != encoded:
        tx.queues.save(dataclasses.replace(current, breaker=encoded))
        tx.wake(lower_bound(queue.queue_id))


@dataclasses.dataclass(slots=True)
class OpenBreaker(Operation[int]):
    """Open the breaker because of an outage, and undo the attempts counted for it.

    `charges`: the number of attempts counted for each message, by key. Messages that were dead-lettered
    because of the outage return to their places. Returns the number of messages whose attempts were undone.
    """

    path: EntityPath
    fingerprint: str
    error: str
    charges: Mapping[int, int]

    def run(self, tx: Transaction) -> int:
        queue = tx.queues.by_path(self.path.key)
        if queue is None or queue.options.breaker is None:
            return 0
        state = breaker_of(queue)
        if state is not None and state.status is BreakerStatus.HELD_CLOSED:
            return 0
        refunded = refund(tx, queue, self.charges)
        if state is None:
            text = shorten(self.error, 200)
            save_breaker(tx, queue, opened(queue.options.breaker, self.fingerprint, text, tx.now))
            note(tx, "breaker_opened", queue, fingerprint=self.fingerprint, error=text, given_back=refunded)
        return refunded


@dataclasses.dataclass(slots=True)
class GiveBack(Operation[int]):
    """Undo the attempts that a host counted for an outage before it heard that another one had found it.

    `charges`, and what is returned: as in OpenBreaker.
    """

    path: EntityPath
    charges: Mapping[int, int]

    def run(self, tx: Transaction) -> int:
        queue = tx.queues.by_path(self.path.key)
        return 0 if queue is None else refund(tx, queue, self.charges)


def refund(tx: Transaction, queue: QueueRecord, charges: Mapping[int, int]) -> int:
    """Undo so many attempts at each message, given by key; return of how many messages."""
    return sum(_give_back(tx, queue, key, count) for key, count in charges.items())


def _give_back(tx: Transaction, queue: QueueRecord, key: int, count: int) -> bool:
    row = tx.row(key)
    if row is None:
        record, dead = tx.history.dead_letter(key), tx.row(dead_key(key))
        if record is None or record.resolution is not None or dead is None or dead.state == LOCKED:
            return False
        row = restore(tx, queue, dead, record)
    back = msgspec.structs.replace(
        row,
        failures=max(0, row.failures - count),
        delivery_count=max(0, row.delivery_count - count),
        # In a later cycle, the attempts of earlier cycles are undone too.
        cycle_attempts=max(0, row.cycle_attempts - count),
        cycle=row.cycle if row.cycle_attempts >= count else 0,
    )
    if row.state == LOCKED:
        # It is locked again: its receiver continues, and is not notified.
        tx.save_counters(back)
        return True
    if row.state == DELAYED:
        back = msgspec.structs.replace(back, state=READY, due=back.expires)
    tx.save_row(back)
    return True


@dataclasses.dataclass(slots=True)
class NoteProbe(Operation[BreakerStatus]):
    """Report a hand-over's result to a breaker that is not closed; return the breaker's state.

    `well`: all messages were processed, or failed only in other ways.
    """

    path: EntityPath
    well: bool

    durable = False

    def run(self, tx: Transaction) -> BreakerStatus:
        queue = tx.queues.by_path(self.path.key)
        state = None if queue is None else breaker_of(queue)
        if queue is None or state is None:
            return BreakerStatus.CLOSED
        if state.status not in (BreakerStatus.OPEN, BreakerStatus.RAMPING):
            return state.status
        policy = queue.options.breaker
        after = succeeded(state) if self.well or policy is None else failed_again(policy, state, tx.now)
        save_breaker(tx, queue, after)
        if after is None:
            seconds = round((tx.now - state.since) / 1_000_000, 3)
            note(tx, "breaker_closed", queue, fingerprint=state.fingerprint, seconds=seconds)
            return BreakerStatus.CLOSED
        if after.status is not state.status:
            kind = "breaker_ramping" if after.status is BreakerStatus.RAMPING else "breaker_opened"
            note(tx, kind, queue, fingerprint=state.fingerprint, error=state.error)
        return after.status


class SetBreaker(OfPath[BreakerDescription], frozen=True, kw_only=True):
    """Keep a breaker open or closed, or let it decide by itself.

    `verb`: "open" (hosts get nothing), "close" (every failure counts), or "auto", which closes it and lets it
    decide by itself again.
    """

    action = "breaker"
    touched = ("{path}", "breaker")
    verb: str

    def run(self, tx: Transaction, actor: str) -> BreakerDescription:
        path, verb = EntityPath.parse(self.path), text("verb", self.verb, 64)
        if verb not in BREAKER_VERBS:
            raise InvalidOption(f"unknown verb {verb!r} for a breaker{suggestion(verb, BREAKER_VERBS)}")
        queue = require_queue(tx, path)
        status = BREAKER_VERBS[verb]
        breaker = breaker_of(queue)
        forced = {status: verb for verb, status in BREAKER_VERBS.items()}
        before = forced.get(None if breaker is None else breaker.status, "auto")
        save_breaker(tx, queue, None if status is None else BreakerState(status, tx.now))
        note(tx, "breaker_set", queue, verb=verb)
        audit(tx, actor, self.action, queue.path, verb=verb, before=before)
        tx.wake(lower_bound(queue.queue_id))
        return describe_breaker(require_queue(tx, path))

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        before = detail.get("before")
        return None if before in (None, detail["verb"]) else cls(path=path, verb=before)
