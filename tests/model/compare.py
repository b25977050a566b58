"""What users can see of a broker, and what the model says they should see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazaretto.broker.broker import Broker
from lazaretto.model.clock import to_micros
from lazaretto.model.descriptions import Culprit as RealCulprit
from lazaretto.model.messages import Attempt, DeadLetter, PeekedMessage, StoredMessage

from .records import ACTIVE, DEFERRED, DELAYED, LOCKED, SCHEDULED, SYSTEM, Copy, Culprit, Grave, Past, Queue
from .reference import Model

Seen = dict[str, Any]


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / 1_000_000


def real_message(message: StoredMessage, model_id: str | None) -> Seen:
    """Return what a received or peeked message shows. An id that the broker gave is left out."""
    nack = message.negative_acknowledgement
    assert message.message_id
    return {
        "number": message.sequence_number,
        "body": message.body,
        "message_id": None if model_id is None else message.message_id,
        "session": message.session_id,
        "enqueued": _seconds(message.enqueued),
        "expires": _seconds(message.expires),
        "attempt": message.attempt,
        "delivery_count": message.delivery_count,
        "cycle": message.cycle,
        "generation": message.generation,
        "came_from": message.enqueued_sequence_number,
        "reason": message.dead_letter_reason,
        "description": message.dead_letter_error_description,
        "edited": message.edit_of is not None,
        "sender_queue": message.dead_letter_queue,
        "returned_by": None if nack is None else (nack.queue, nack.sequence_number),
    }


def model_message(queue: Queue, one: Copy) -> Seen:
    """Return what the model says that message shows."""
    grave = queue.graves[one.number] if one.dead else None
    return {
        "number": one.number,
        "body": one.draft.body,
        "message_id": one.message_id,
        "session": one.draft.session_id,
        "enqueued": one.enqueued,
        "expires": one.expires,
        "attempt": one.counts.deliveries,
        "delivery_count": one.counts.delivery_count,
        "cycle": one.counts.cycle,
        "generation": one.generation,
        "came_from": one.came_from,
        "reason": grave.reason if grave else None,
        "description": grave.description if grave else None,
        "edited": one.edited,
        "sender_queue": one.sender_queue,
        "returned_by": one.returned_by,
    }


def _real_peeked(found: Sequence[PeekedMessage], expected: Sequence[Seen]) -> list[Seen]:
    ids = {e["number"]: e["message_id"] for e in expected}
    return [
        {
            **real_message(m, ids.get(m.sequence_number, "")),
            "state": m.state,
            "locked_until": None if m.locked_until is None else _seconds(to_micros(m.locked_until)),
        }
        for m in found
    ]


def _model_peeked(queue: Queue, copies: Sequence[Copy]) -> list[Seen]:
    return [
        {**model_message(queue, c), "state": c.state, "locked_until": c.locked_until}
        for c in copies
    ]  # fmt: skip


def _real_culprit(culprit: RealCulprit | None) -> Culprit | None:
    if culprit is None:
        return None
    time = to_micros(culprit.time) // 1_000_000
    return Culprit(
        culprit.sequence_number, culprit.delivery_count, culprit.cycle, culprit.reason, time
    )  # fmt: skip


def _real_attempts(attempts: Sequence[Attempt]) -> list[tuple[Any, ...]]:
    return [(a.number, a.outcome, a.error_type) for a in attempts]


def _real_dead_letter(letter: DeadLetter) -> Seen:
    counters = letter.counters
    return {
        "reason": letter.reason,
        "description": letter.description,
        "error": letter.error_type,
        "time": to_micros(letter.dead_lettered) / 1_000_000,
        "enqueued": to_micros(letter.enqueued) / 1_000_000,
        "deliveries": counters.deliveries,
        "failures": counters.failures,
        "worker_deaths": counters.worker_deaths,
        "lock_expiries": counters.lock_expiries,
        "delivery_count": counters.delivery_count,
        "tries": counters.cycle_attempts,
        "cycle": counters.cycle,
        "moves": counters.moves,
        "generation": letter.generation,
        "resolution": letter.resolution,
        "resubmitted_as": letter.resubmitted_as,
        "waits": letter.message is not None,
        "attempts": _real_attempts(letter.attempts),
    }


def _model_dead_letter(grave: Grave) -> Seen:
    counts = grave.counts
    return {
        "reason": grave.reason,
        "description": grave.description,
        "error": grave.error,
        "time": grave.time,
        "enqueued": grave.enqueued,
        "deliveries": counts.deliveries,
        "failures": counts.failures,
        "worker_deaths": 0,
        "lock_expiries": counts.lock_expiries,
        "delivery_count": counts.delivery_count,
        "tries": counts.tries,
        "cycle": counts.cycle,
        "moves": counts.moves,
        "generation": grave.generation,
        "resolution": grave.resolution,
        "resubmitted_as": grave.resubmitted_as,
        "waits": grave.resolution is None,
        "attempts": _past(grave.past),
    }


def _past(past: Past) -> list[tuple[Any, ...]]:
    return list(past.whole())


def compare_queue(broker: Broker, queue: Queue) -> None:
    """Fail if anything that can be seen of a queue differs from the model."""
    path, seen = queue.path, broker.queue(queue.path)
    main, dead = queue.part(False), queue.part(True)
    counts = {state: sum(c.state is state for c in main) for state in
              (ACTIVE, LOCKED, DEFERRED, SCHEDULED, DELAYED)}  # fmt: skip
    real = seen.counts
    assert (seen.status, seen.expired, seen.dropped) == (queue.status, queue.expired, queue.dropped), path
    assert _real_culprit(seen.halted_by) == queue.culprit, path
    assert _real_culprit(seen.dead_letter_halted_by) == queue.dead_culprit, path
    assert (real.active, real.locked, real.deferred, real.scheduled, real.delayed) == tuple(
        counts.values()
    ), path
    assert (real.dead_letter, real.transfer_dead_letter) == (len(dead), 0), path

    delayed = [c for c in main if c.state is DELAYED]
    for subqueue, copies in ((None, main), ("dead_letter", dead), ("retry", delayed)):
        expected = _model_peeked(queue, copies)
        found = _real_peeked(broker.peek(path, 1000, subqueue=subqueue), expected)
        assert found == expected, (path, subqueue)
    for one in main:
        assert _real_attempts(broker.attempts(path, one.number)) == _past(one.past), (path, one.number)

    letters = list(broker.dead_letters(path))
    assert [letter.sequence_number for letter in letters] == [c.number for c in dead], path
    for number, grave in queue.graves.items():
        found_letter = _real_dead_letter(broker.dead_letter(path, number))
        assert found_letter == _model_dead_letter(grave), (path, number)
    assert broker.sessions(path) == queue.session_names(), path


def compare_events(broker: Broker, model: Model, after: int) -> int:
    """Fail if other events were written than the model says, of any queue; return the new position."""
    found = broker.events(after, limit=100_000)
    seen = sorted((e.kind, e.queue, e.sequence_number or 0) for e in found)
    expected = sorted((kind, queue, number or 0) for kind, queue, number in model.events)
    assert seen == expected
    model.events.clear()
    return found[-1].position if found else after


__all__ = ["SYSTEM", "compare_events", "compare_queue", "model_message", "real_message"]
