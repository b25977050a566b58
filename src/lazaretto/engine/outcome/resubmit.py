"""Resubmits dead letters to their queue, unchanged or edited."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lazaretto.engine.entities.status import refuse_sending
from lazaretto.engine.log import audit, note_all
from lazaretto.engine.messages.prepare import check_size, prepare
from lazaretto.engine.outcome.dead_letter_operations import (
    Skipped,
    find_obstacle,
    holder,
    letter_of,
    messages_of,
    name_numbers,
)
from lazaretto.engine.queue_hooks import hooks_of
from lazaretto.engine.routing.deliver import pass_on, release_sessions
from lazaretto.engine.routing.forwards import forwards
from lazaretto.errors import InvalidMessage, LazarettoError, NotAllowed
from lazaretto.model.entities import EntityPath
from lazaretto.model.headers import decode_headers, encode_headers
from lazaretto.model.keys import (
    dead_key,
    lower_bound,
    main_key,
    sequence_of,
)
from lazaretto.model.messages import DeadLetter, Message
from lazaretto.store.contract.records import (
    FRESH,
    READY,
    SCHEDULED,
    DeadLetterRecord,
    MessageRow,
    NewMessage,
    QueueRecord,
)
from lazaretto.store.contract.transaction_contract import Operation, Transaction

#: Returns the message to send instead of a dead letter, or None to send it back as it is.
Edit = Callable[[DeadLetter], Message | None]


@dataclasses.dataclass(frozen=True, slots=True)
class ResubmitReport:
    """Resubmitted dead letters by old and new sequence number; and those skipped, and why."""

    resubmitted: dict[int, int]
    skipped: list[Skipped]


@dataclasses.dataclass(slots=True)
class Resubmit(Operation[ResubmitReport]):
    """Resubmit dead letters to the queue they came from, in one commit.

    A message keeps its id and begins a new generation: its cycle counters restart, its lifetime totals
    continue. An edited message gets a new id. A dead letter that cannot be resubmitted stays where it is.
    """

    path: EntityPath
    sequence_numbers: Sequence[int]
    actor: str
    detail: dict[str, Any]
    edit: Edit | None = None

    def run(self, tx: Transaction) -> ResubmitReport:
        queue = holder(tx, self.path)
        refuse_sending(queue)
        keys = [lower_bound(queue.queue_id) + number for number in dict.fromkeys(self.sequence_numbers)]
        rows = tx.rows([dead_key(key, self.path.subqueue) for key in keys])
        records = tx.history.some_dead_letters(keys)
        held = tx.sessions.held_by(keys) if queue.options.requires_session else {}
        skipped: list[Skipped] = []
        sent: dict[int, int] = {}
        plain: dict[int, MessageRow] = {}
        for key in keys:
            row, record = rows.get(dead_key(key, self.path.subqueue)), records.get(key)
            why = find_obstacle(row, record)
            if why is None:
                assert row is not None
                assert record is not None
                try:
                    edited = self._edited(tx, queue, row, record)
                    live = self._live(tx, queue, row, edited)
                    in_place = live.session_id is not None and live.session_id == held.get(key)
                    if in_place and live.state == SCHEDULED:
                        raise NotAllowed("it cannot be scheduled, because its session waits for it")
                    sent[key] = key if in_place else tx.sequences.take_key(queue.queue_id)
                except LazarettoError as error:
                    why = str(error)
            if why is not None:
                skipped.append(Skipped(sequence_of(key), why))
                continue
            assert row is not None
            if in_place:
                live = _back_in_place(live, row)
            if edited is None:
                plain[sent[key]] = live
            else:
                _replace(tx, row, msgspec.structs.replace(live, key=sent[key], body_id=None), edited.body)
        if plain:
            tx.save_rows(plain)
        report = ResubmitReport({sequence_of(old): sequence_of(new) for old, new in sent.items()}, skipped)
        if sent:
            tx.history.send_dead_letters(sent, "resubmitted")
            release_sessions(tx, list(sent))
            events = [
                (sequence_of(old), {"new_sequence_number": sequence_of(new), "edited": new not in plain})
                for old, new in sent.items()
            ]
            note_all(tx, "resubmitted", [(queue, *event) for event in events])
            for new_key in sent.values() if forwards(queue) else ():
                forwarded = tx.row(new_key)
                if forwarded is not None and forwarded.state != SCHEDULED:
                    pass_on(tx, queue, forwarded)
            audit(tx, self.actor, "resubmit", queue.path, **name_numbers(report.resubmitted), **self.detail)
        return report

    def _edited(
        self, tx: Transaction, queue: QueueRecord, row: MessageRow, record: DeadLetterRecord
    ) -> NewMessage | None:
        """Return the edited message, or None to resubmit the dead letter unchanged."""
        if self.edit is None:
            return None
        try:
            edited = self.edit(letter_of(queue, record, messages_of(tx, [record]).get(record.key)))
        except LazarettoError:
            raise
        except Exception as error:
            raise InvalidMessage(f"the edit failed: {type(error).__name__}: {error}") from error
        if edited is None:
            return None
        new = prepare(edited)
        check_size(new, queue.options.max_message_size)
        return new

    def _live(
        self, tx: Transaction, queue: QueueRecord, row: MessageRow, edited: NewMessage | None
    ) -> MessageRow:
        """Return a dead letter as an active message again, or its edited replacement."""
        headers = decode_headers(row.headers)
        message_id, encoded, ttl = row.message_id, row.headers, headers.time_to_live
        if headers.hops:
            # It may be forwarded from the start again.
            headers = msgspec.structs.replace(headers, hops=0)
            encoded = encode_headers(headers)
        if edited is not None:
            ttl = edited.time_to_live
            headers = msgspec.structs.replace(decode_headers(edited.headers), edit_of=row.message_id)
            encoded = encode_headers(headers)
            message_id = edited.message_id or row.message_id
            if message_id == row.message_id:
                message_id = f"{row.message_id}.{row.generation + 1}"
        again = hooks_of(queue).headers_again(tx, row, headers)
        if again is not headers:
            headers, encoded = again, encode_headers(again)
        if queue.options.requires_session and headers.session_id is None:
            raise InvalidMessage(f"queue {queue.path!r} requires sessions: a message needs a session_id")
        # A copy lives no longer than its topic and subscription allow, however it arrives.
        topic = None if queue.topic_id is None else tx.queues.by_id(queue.topic_id)
        defaults = [e.options.default_time_to_live for e in (queue, topic) if e is not None]
        lives = [round(seconds * 1_000_000) for seconds in defaults if seconds is not None]
        if ttl is not None:
            lives.append(ttl)
        expires = tx.now + min(lives) if lives else None
        later = edited is not None and edited.scheduled is not None and edited.scheduled > tx.now
        times = (expires, edited.scheduled if later and edited is not None else None)
        return msgspec.structs.replace(
            row,
            state=SCHEDULED if later else FRESH,
            due=min((time for time in times if time is not None), default=None),
            expires=expires,
            enqueued=tx.now,
            message_id=message_id,
            session_id=headers.session_id if queue.options.requires_session else None,
            delivery_count=0,
            cycle_attempts=0,
            cycle=0,
            deferred=0,
            generation=row.generation + 1,
            enqueued_sequence_number=sequence_of(row.key),
            resubmitted_from=main_key(row.key),
            headers=encoded,
        )


def _back_in_place(live: MessageRow, dead: MessageRow) -> MessageRow:
    """Return a message to its place in its session, which waits behind it."""
    return msgspec.structs.replace(
        live,
        state=READY,
        enqueued_sequence_number=dead.enqueued_sequence_number,
        resubmitted_from=dead.resubmitted_from,
    )


def _replace(tx: Transaction, dead: MessageRow, live: MessageRow, body: bytes) -> None:
    tx.delete_messages([dead.key])
    if dead.body_id is not None:
        tx.bodies.delete([dead.body_id])
    tx.insert_row(live, body)
