"""The letters of a repair: sent back, or moved, with what it takes to bring each back as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lazaretto.engine.outcome.rerouting import check_target, move_letters
from lazaretto.engine.outcome.send_back import SentBack, send_back
from lazaretto.engine.outcome.session_holds import held_decoder, hold
from lazaretto.engine.repairs.course import Course
from lazaretto.errors import InvalidMessage
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.headers import decode_headers
from lazaretto.model.keys import dead_key, main_key, queue_of, sequence_of, subqueue_at
from lazaretto.model.messages import SentColumns
from lazaretto.model.partitions import detection_key
from lazaretto.store.records.messages import (
    FRESH,
    READY,
    SCHEDULED,
    MessageRow,
    NewMessage,
    QueueRecord,
)
from lazaretto.store.records.repairs import DeadLetterRecord, Original, RepairItem
from lazaretto.store.sql.transaction import Transaction
from lazaretto.store.sql.words import STANDING

#: What an edit makes of a letter: a message, None if it leaves it as it is, or why it refuses it.
Edited = NewMessage | str | None

#: Outcomes as they are stored; None stands for a letter that is watched.
SENT, PROCESSED, FAILED, SKIPPED, UNDONE = "sent", "processed", "failed", "skipped", "undone"

_replace = msgspec.structs.replace


class Before(SentColumns, frozen=True, array_like=True):  # type: ignore[misc]
    """A letter's row as it was, but for what sending leaves as it is.

    `same_headers`: its headers are left as they are. `held_by`: what its session was held by, if it was.
    """

    state: int
    due: int | None
    expires: int | None
    enqueued: int
    deliveries: int
    failures: int
    worker_deaths: int
    lock_expiries: int
    delivery_count: int
    cycle_attempts: int
    cycle: int
    moves: int
    deferred: int
    generation: int
    enqueued_sequence_number: int | None
    resubmitted_from: int | None
    suspect: int
    same_headers: bool
    headers: bytes | None
    session_id: str | None
    held_by: str | None


#: What it has of the row as it is there.
_STANDING = tuple(
    name for name in Before.__struct_fields__ if name in STANDING and name not in ("headers", "session_id")
)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Before).decode


def send_letters(
    course: Course, queue: QueueRecord, keys: Sequence[int], edits: Mapping[int, Edited] | None
) -> str | None:
    """Send letters back, or where the repair sends them; note what became of each.

    Return why nothing more can be sent now; None if it can.
    """
    tx, record = course.tx, course.record
    subqueue = subqueue_at(record.subqueue)

    def prepare(row: MessageRow, letter: DeadLetterRecord) -> NewMessage | None:
        assert edits is not None
        edited = edits.get(letter.key)
        if isinstance(edited, str):
            raise InvalidMessage(edited)
        return edited

    # What was taken out has its item already.
    excluded = {item.key for item in tx.repairs.items(record.repair, keys)}
    keys = [key for key in keys if key not in excluded]
    originals = _originals(tx, keys, subqueue, edits)
    prepared = None if edits is None else prepare
    if course.plan.to is None:
        result = send_back(tx, queue, subqueue, keys, prepared, course.plan.frozen_at)
    else:
        path = EntityPath(queue.path, subqueue)
        target = check_target(tx, path, EntityPath.parse(course.plan.to))
        until = course.plan.frozen_at
        result = move_letters(tx, queue, path, target, keys, prepared, until, stops_if_full=True)
    items = [_item(course, result, key) for key in result.sent]
    # The queue that these went to could not send them on: they are its dead letters.
    lost = [RepairItem(key, None, 0, None, None, FAILED) for key in result.rows if key not in result.sent]
    items += lost
    items += [RepairItem(key, None, 0, None, why, SKIPPED) for key, why in result.skipped.items()]
    if items:
        tx.repairs.add_items(record.repair, items)
    tx.repairs.add_originals(record.repair, [originals[key] for key in result.edited])
    course.change(
        sent=record.sent + len(result.rows),
        skipped=record.skipped + len(result.skipped) + len(excluded),
        failed=record.failed + len(lost),
        position=record.position + len(items) + len(excluded),
    )
    return result.full


def _item(course: Course, result: SentBack, key: int) -> RepairItem:
    row, new_key = result.rows[key], result.forwarded.get(key, result.sent[key])
    hold, session_id, held_by = result.held.get(key), None, None
    if hold is not None:
        session_id, held_by = decode_headers(row.headers).session_id, msgspec.json.encode(hold).decode()
    same = key not in result.rewritten
    before = Before(
        same_headers=same, headers=None if same else row.headers, session_id=session_id, held_by=held_by,
        **{name: getattr(row, name) for name in _STANDING},
    )  # fmt: skip
    outcome = None if course.watch is None or course.watch > 0 else SENT
    if course.watch is not None:
        course.watch -= 1
    return RepairItem(key, new_key, row.generation + 1, _encode(before), None, outcome)


def _originals(
    tx: Transaction, keys: Sequence[int], subqueue: Subqueue, edits: Mapping[int, Edited] | None
) -> dict[int, Original]:
    """Return the letters that an edit changes as they are."""
    changed = [key for key in keys if isinstance((edits or {}).get(key), NewMessage)]
    if not changed:
        return {}
    letters = tx.peek_keys([dead_key(key, subqueue) for key in changed])
    return {main_key(m.key): Original(main_key(m.key), m.message_id, m.body) for m in letters}


# -- taking back ---------------------------------------------------------------------------------


def take_back(course: Course, keys: Sequence[int]) -> int:
    """Bring letters back that nobody was handed, as they were; return how many."""
    tx, record = course.tx, course.record
    queue = course.queue
    items = {
        item.key: item
        for item in tx.repairs.items(record.repair, keys)
        if item.new_key is not None and item.outcome != UNDONE
    }
    if not items or queue is None:
        return 0
    rows = tx.rows([item.new_key for item in items.values() if item.new_key is not None])
    letters = tx.history.some_dead_letters(list(items))
    back: dict[int, MessageRow] = {}
    befores: dict[int, Before] = {}
    for key, item in items.items():
        assert item.new_key is not None
        assert item.before is not None
        row, letter, before = rows.get(item.new_key), letters.get(key), _decode(item.before)
        if row is None or letter is None or letter.resolution not in ("resubmitted", "moved"):
            continue
        if row.generation == item.generation and _was_not_handed_out(row, before):
            back[key], befores[key] = row, before
    if not back:
        return 0
    originals = tx.repairs.originals(record.repair, list(back))
    _forget_ids(tx, queue, back)
    # The highest number of a queue must stay known when its message goes.
    tx.sequences.keep_highest([row.key for row in back.values()])
    plain: dict[int, MessageRow] = {}
    edited: list[MessageRow] = []
    instead: list[tuple[MessageRow, bytes]] = []
    for key, row in back.items():
        old = _as_it_was(row, befores[key])
        place = dead_key(key, subqueue_at(record.subqueue))
        if key in originals:
            edited.append(row)
            instead.append(
                (_replace(old, key=place, message_id=originals[key].message_id), originals[key].body)
            )
        else:
            plain[place] = old
    if edited:
        tx.replace_messages(edited, instead)
    if plain:
        tx.save_rows(plain)
    tx.repairs.reopen(list(back))
    tx.repairs.set_outcomes(record.repair, {UNDONE: list(back)})
    for before in befores.values():
        if before.held_by is not None and before.session_id is not None:
            # Another letter may hold the session by now: then both do.
            hold(tx, queue, before.session_id, held_decoder.decode(before.held_by))
    course.change(sent=record.sent - len(back), undone=record.undone + len(back))
    return len(back)


def _was_not_handed_out(row: MessageRow, before: Before) -> bool:
    if row.state in (FRESH, SCHEDULED):
        return True
    # One that returned to its place in its session is receivable again, not fresh.
    return row.state == READY and before.session_id is not None and row.deliveries == before.deliveries


def _as_it_was(row: MessageRow, before: Before) -> MessageRow:
    return _replace(
        row,
        session_id=None,
        **{name: getattr(before, name) for name in _STANDING},
        headers=row.headers if before.same_headers else before.headers,
    )


def _forget_ids(tx: Transaction, source: QueueRecord, back: Mapping[int, MessageRow]) -> None:
    """Let queues that detect duplicates forget the letters that moving has put there."""
    for key, row in back.items():
        target = tx.queues.by_id(queue_of(row.key))
        if target is None or target.queue_id == source.queue_id:
            continue
        if target.options.requires_duplicate_detection:
            partition = detection_key(decode_headers(row.headers).partition_key, target.partitions)
            tx.message_ids.forget(target.queue_id, row.message_id, partition, sequence_of(key))
