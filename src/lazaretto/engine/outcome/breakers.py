"""The breaker of a queue in the store: one host opens it in an outage, and all hosts probe.

A service host judges its own hand-overs. Clients of AMQP and HTTP settle message by message and name no
error, so the engine goes by how many different messages fail: see BreakerPolicy.clients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import msgspec

from lazaretto.engine.command import Command, Detail, OfPath
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.log import audit, note
from lazaretto.engine.outcome.dispositions import restore
from lazaretto.errors import InvalidOption
from lazaretto.model.breaker import (
    BreakerState,
    BreakerStatus,
    Passage,
    client_failed,
    clients_completed,
    failed_again,
    opened,
    passage,
    probing,
    succeeded,
)
from lazaretto.model.checks import suggestion, text
from lazaretto.model.clock import MICROSECONDS, to_datetime
from lazaretto.model.descriptions import BreakerDescription
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.failure import Failure, short_error, shorten
from lazaretto.model.keys import dead_key, in_main, lower_bound, upper_bound
from lazaretto.model.policy import COUNT_REASON, Outcome
from lazaretto.store.records.messages import DELAYED, FOR_CLIENTS, LOCKED, READY, MessageRow, QueueRecord
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


# -- clients ------------------------------------------------------------------------------------

#: What stands for the fingerprint of failures that have none.
ANY_FAILURE = "clients"
#: Outcomes that many messages have in an outage. A lost connection is no sign of one.
_FAILURES = {
    Outcome.FAILED: "most messages are abandoned by their clients",
    Outcome.LOCK_EXPIRED: "the locks of most messages expire at their clients",
}
_OPEN = (BreakerStatus.OPEN, BreakerStatus.HELD_OPEN)


def is_for_clients(queue: QueueRecord) -> bool:
    """Return whether a queue's breaker is for clients too."""
    return queue.options.breaker is not None and queue.options.breaker.clients


def passage_of_client(tx: Transaction, queue: QueueRecord, path: EntityPath, limit: int) -> Passage | None:
    """Return what a receive for a client may take; None: nothing for now, as the breaker holds all back."""
    if queue.breaker is None or path.subqueue is not Subqueue.MAIN or not tx.context.identity.serves:
        return Passage(limit)
    if not is_for_clients(queue):
        return Passage(limit)
    state = breaker_of(queue)
    way = passage(state, limit, tx.now)
    if way is None and state is not None and state.status is BreakerStatus.OPEN:
        tx.look_again(lower_bound(queue.queue_id), state.probe_at)
    return way


def note_probe(tx: Transaction, queue: QueueRecord, key: int) -> None:
    """Note that a message was handed to a client as a probe."""
    state, policy = breaker_of(queue), queue.options.breaker
    if state is not None and policy is not None and state.status is BreakerStatus.OPEN:
        save_breaker(tx, queue, probing(policy, state, key, tx.now))


def note_completed_by_client(tx: Transaction, queue: QueueRecord, keys: Sequence[int]) -> None:
    """Report messages to the breaker that clients of this process have completed."""
    policy = queue.options.breaker
    if policy is None or not policy.clients or not keys or not in_main(keys[0]):
        return
    if not tx.context.identity.serves:
        return
    if queue.breaker is None:
        tx.context.identity.window(queue.queue_id, policy).note_completed(keys, tx.now / MICROSECONDS)
        return
    current = tx.queues.by_id(queue.queue_id)
    state = None if current is None else breaker_of(current)
    if current is None or state is None:
        return
    after = clients_completed(state, keys, tx.now)
    if after is state:
        return
    save_breaker(tx, current, after)
    if after is None:
        seconds = round((tx.now - state.since) / MICROSECONDS, 3)
        note(tx, "breaker_closed", current, fingerprint=state.fingerprint, seconds=seconds)
    elif after.status is not state.status:
        note(tx, "breaker_ramping", current, fingerprint=state.fingerprint, error=state.error)


def is_in_outage(
    tx: Transaction, queue: QueueRecord, row: MessageRow, outcome: Outcome, failure: Failure | None
) -> bool:
    """Report a failed attempt to the breaker; return whether it belongs to an outage, and costs nothing."""
    policy = queue.options.breaker
    if policy is None or not policy.clients or outcome not in _FAILURES or not in_main(row.key):
        return False
    if row.locked_by is None or FOR_CLIENTS not in row.locked_by:
        return False
    # It may have changed within this commit.
    current = tx.queues.by_id(queue.queue_id)
    if current is None:
        return False
    state = breaker_of(current)
    if state is None:
        window = tx.context.identity.window(queue.queue_id, policy)
        if window.note([(row.key, ANY_FAILURE)], tx.now / MICROSECONDS) is None:
            return False
        text = _FAILURES[outcome] if failure is None else short_error(failure.type, failure.message)
        since = tx.now - round(policy.window * MICROSECONDS)
        _open(tx, current, opened(policy, ANY_FAILURE, shorten(text, 200), tx.now), since)
        window.take_charges(ANY_FAILURE)
        return True
    if state.status in _OPEN:
        return True
    after = client_failed(policy, state, row.key, tx.now)
    if after.status is state.status:
        if after is not state:
            save_breaker(tx, current, after)
        return False
    _open(tx, current, after, state.ramping)
    return True


def _open(tx: Transaction, queue: QueueRecord, state: BreakerState, since: int) -> None:
    """Open the breaker, and undo what was charged since a time."""
    # First, as a commit that is planned ends here.
    save_breaker(tx, queue, state)
    charges: dict[int, int] = {}
    for lane in queue.lanes:
        charges |= tx.history.refundable(lower_bound(lane), upper_bound(lane), since)
    letters = tx.history.some_dead_letters(list(charges))
    counted = {
        key: count
        for key, count in charges.items()
        if (letter := letters.get(key)) is None or letter.resolution or letter.reason == COUNT_REASON
    }
    if counted:
        tx.history.refund(list(counted), since)
    refunded = refund(tx, queue, counted)
    note(
        tx, "breaker_opened", queue,
        fingerprint=state.fingerprint, error=state.error, given_back=refunded,
    )  # fmt: skip
