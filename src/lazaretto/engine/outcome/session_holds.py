"""Holds of sessions by poison messages. A session goes on when an operator has decided on all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lazaretto.engine.log import note
from lazaretto.model.entities import PoisonSession
from lazaretto.model.headers import decode_headers
from lazaretto.model.keys import dead_key, lower_bound, sequence_of, upper_bound
from lazaretto.store.records.messages import MessageRow, QueueRecord
from lazaretto.store.sql.transaction import Transaction

_replace = msgspec.structs.replace
#: Up to so many held sessions of a queue are read at once; beyond, each session is looked up.
_FEW = 200


class HeldRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first poison message of a held session, as stored with the session, and those behind it.

    Only dead letters hold a session together: what stays in its place is met again when the session goes on.
    """

    mode: PoisonSession
    sequence_number: int
    reason: str
    time: int
    error: str | None = None
    others: tuple[HeldRecord, ...] = ()

    @property
    def all(self) -> tuple[HeldRecord, ...]:
        """Return each poison message that holds the session, in order."""
        return (_replace(self, others=()), *self.others)


held_decoder = msgspec.json.Decoder(HeldRecord)


def hold(tx: Transaction, queue: QueueRecord, session_id: str, record: HeldRecord) -> None:
    """Hold a session because of one more message."""
    session = tx.sessions.find(queue.queue_id, session_id)
    records = [record]
    if session is not None and session.held_by is not None:
        others = held_decoder.decode(session.held_by).all
        records += [other for other in others if other.sequence_number != record.sequence_number]
    _store(tx, queue.queue_id, session_id, records)


def _store(tx: Transaction, queue_id: int, session_id: str, records: Iterable[HeldRecord]) -> None:
    first, *behind = sorted(records, key=lambda record: record.sequence_number)
    others = tuple(record for record in behind if record.mode is PoisonSession.PARK)
    encoded = msgspec.json.encode(_replace(first, others=others)).decode()
    tx.sessions.hold(queue_id, session_id, lower_bound(queue_id) + first.sequence_number, encoded)


def release_sessions(tx: Transaction, keys: Sequence[int]) -> None:
    """Release sessions whose poison messages are resolved or gone, unless others still hold them."""
    for session in tx.sessions.release(keys):
        queue = tx.queues.by_id(session.queue_id)
        if queue is None:
            continue
        others = held_decoder.decode(session.held_by).others
        waiting = _waiting(tx, queue, others, keys)
        if waiting:
            _store(tx, queue.queue_id, session.session_id, waiting)
        else:
            note(tx, "session_released", queue, session=session.session_id)


def _waiting(
    tx: Transaction, queue: QueueRecord, records: Sequence[HeldRecord], gone: Sequence[int]
) -> list[HeldRecord]:
    """Return those of some poison messages that are dead letters still."""
    if not records:
        return []
    by_key = {lower_bound(queue.queue_id) + record.sequence_number: record for record in records}
    rows = tx.rows([dead_key(key) for key in by_key if key not in set(gone)])
    return [record for key, record in by_key.items() if dead_key(key) in rows]


def holding(tx: Transaction, queue: QueueRecord, rows: Mapping[int, MessageRow]) -> dict[int, HeldRecord]:
    """Return how letters hold the sessions that they belong to, by the keys in the queue of those that do."""
    if not queue.options.requires_session:
        return {}
    members: dict[str, list[int]] = {}
    for key, row in rows.items():
        session_id = decode_headers(row.headers).session_id
        if session_id is not None:
            members.setdefault(session_id, []).append(key)
    holds: dict[int, HeldRecord] = {}
    for session_id, held_by in _held_among(tx, queue.queue_id, members).items():
        records = {record.sequence_number: record for record in held_decoder.decode(held_by).all}
        holds |= {key: records[n] for key in members[session_id] if (n := sequence_of(key)) in records}
    return holds


def _held_among(tx: Transaction, queue_id: int, sessions: Iterable[str]) -> dict[str, str]:
    """Return what is stored of those of some sessions that are held."""
    holds = tx.sessions.held(lower_bound(queue_id), upper_bound(queue_id), _FEW + 1)
    if len(holds) <= _FEW:
        by_id = {session.session_id: session.held_by for session in holds}
    else:
        records = ((session_id, tx.sessions.find(queue_id, session_id)) for session_id in sessions)
        by_id = {
            session_id: record.held_by
            for session_id, record in records
            if record is not None and record.held_by is not None
        }
    return {session_id: by_id[session_id] for session_id in sessions if session_id in by_id}
