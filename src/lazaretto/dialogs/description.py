"""Conversations as operators see them: their state, why they wait, and their timeline."""

from __future__ import annotations

import dataclasses
from collections import Counter
from datetime import datetime

from lazaretto.engine.dialogs.verbs import both_ends
from lazaretto.engine.entities.status import stop_error
from lazaretto.engine.outcome.dead_letter_operations import history
from lazaretto.engine.outcome.held_sessions import held_session
from lazaretto.model.clock import to_datetime, to_ending
from lazaretto.model.conversations import (
    RECEIVED_STREAMS,
    ConversationState,
    at_time,
    dialog_of,
    far_end,
    group_session,
    is_initiator,
    number_of,
    stream_of,
)
from lazaretto.model.descriptions import HeldSession
from lazaretto.model.entities import QueueStatus, Subqueue
from lazaretto.model.headers import decode_headers
from lazaretto.store.records.dialogs import ConversationRecord
from lazaretto.store.records.messages import STATES, QueueRecord
from lazaretto.store.sql.transaction import Transaction


@dataclasses.dataclass(frozen=True, slots=True)
class ConversationDescription:
    """The state of one side of a dialog.

    `messages`: its queued messages, counted by state. `sent`: the number of messages it has sent. `waits`:
    the reason for its waiting, in words. `held`: the poison message that holds it, if one does.
    """

    conversation: str
    dialog: str
    service: str
    far_service: str
    queue: str
    contract: str
    group: str
    state: ConversationState
    initiator: bool
    priority: int
    sent: int
    messages: dict[str, int]
    waits: str
    held: HeldSession | None
    locked_by: str | None
    locked_until: datetime | None
    error: tuple[int, str] | None
    created: datetime
    expires: datetime | None


@dataclasses.dataclass(frozen=True, slots=True)
class TimelineEntry:
    """Something that happened in a dialog, or stands in it now.

    `end`: "initiator" or "target". `kind`: begun, sent, received, failed, set_aside, waiting and others.
    `number`: of the message among those of its sender.
    """

    time: datetime
    end: str
    service: str
    kind: str
    message_type: str | None
    number: int | None
    text: str | None


#: What comes first of what happened at one moment: in one commit.
_RANK = {"begun": -1, "sent": 0}


def describe_conversation(tx: Transaction, record: ConversationRecord) -> ConversationDescription:
    """Return a conversation's description."""
    queue = tx.queues.by_id(record.queue_id)
    state = at_time(record.state, record.expires, tx.now)
    states: Counter[str] = Counter()
    hold: HeldSession | None = None
    delayed: datetime | None = None
    for stream in RECEIVED_STREAMS:
        session_id = stream_of(record.priority, record.handle, stream)
        for message in tx.sessions.messages(record.queue_id, session_id):
            name = STATES[message.state].value
            states[name] += 1
            if name == "delayed" and delayed is None:
                row = tx.row(message.key)
                delayed = None if row is None or row.due is None else to_datetime(row.due)
        session = tx.sessions.find(record.queue_id, session_id)
        if hold is None and session is not None and session.held_by is not None:
            hold = held_session(session_id, session.held_by)
    group = tx.sessions.find(record.queue_id, group_session(record.group_id))
    locked = group is not None and group.is_locked(tx.now)
    error = None if record.error_code is None else (record.error_code, record.error_text or "")
    return ConversationDescription(
        conversation=record.handle,
        dialog=dialog_of(record.handle),
        service=record.service,
        far_service=record.far_service,
        queue="" if queue is None else queue.path,
        contract=record.contract,
        group=record.group_id,
        state=state,
        initiator=is_initiator(record.handle),
        priority=record.priority,
        sent=record.sent,
        messages=dict(states),
        waits=_waits(tx, record, state, queue, hold, delayed, states, locked),
        held=hold,
        locked_by=group.locked_by if group is not None and locked else None,
        locked_until=to_datetime(group.locked_until) if group and locked and group.locked_until else None,
        error=error,
        created=to_datetime(record.created),
        expires=to_ending(record.expires),
    )


def _waits(
    tx: Transaction,
    record: ConversationRecord,
    state: ConversationState,
    queue: QueueRecord | None,
    hold: HeldSession | None,
    delayed: datetime | None,
    states: Counter[str],
    locked: bool,
) -> str:
    """Return the main reason why a conversation waits."""
    if queue is None:
        return "its queue was deleted; clean it up"
    stopped = stop_error(queue, Subqueue.MAIN)
    if stopped is not None and queue.status is not QueueStatus.SEND_DISABLED:
        return f"its queue cannot be received from: {queue.status.value}"
    if hold is not None:
        message = f"poison message {hold.sequence_number} ({hold.reason})"
        return f"for a verdict on {message}; use `lazaretto dialog resume`"
    if locked:
        return "for the reader that has locked its group"
    if delayed is not None:
        return f"until {delayed:%H:%M:%S} UTC to retry its first message"
    if states["active"] or states["suspect"]:
        return f"for a reader: {states['active'] + states['suspect']} to receive"
    if state is ConversationState.DISCONNECTED_OUTBOUND:
        return "for the other side to read that this side has ended"
    if state is ConversationState.STARTED_OUTBOUND:
        return "for a first message to be sent"
    if states["scheduled"]:
        return "for a timer or the other side"
    if state is ConversationState.CONVERSING and tx.dialogs.conversation(far_end(record.handle)) is None:
        return "for nothing: the other side was cleaned up; end the conversation"
    return "for the other side, or for this side to end"


def timeline(tx: Transaction, dialog: str) -> list[TimelineEntry]:
    """Return the history of both sides of a dialog, oldest first, then their queued messages."""
    ends = {record.handle: record for record in both_ends(tx, dialog)}
    happened: list[TimelineEntry] = []
    sent: dict[tuple[str, int], TimelineEntry] = {}
    for h in tx.dialogs.happenings(dialog_of(dialog)):
        about = (h.message_type, h.number)
        happened.append(
            TimelineEntry(
                to_datetime(h.time), _end(h.handle), _service(ends, h.handle), h.kind, *about, h.text
            )
        )
        if h.sent is not None and h.number is not None:
            far = far_end(h.handle)
            before = TimelineEntry(to_datetime(h.sent), _end(far), _service(ends, far), "sent", *about, None)
            sent.setdefault((far, h.number), before)
    waiting = [(record, entry) for record in ends.values() for entry in _waiting(tx, record)]
    for record, entry in waiting:
        if entry.number is not None:
            far = far_end(record.handle)
            before = dataclasses.replace(
                entry, end=_end(far), service=_service(ends, far), kind="sent", text=None
            )
            sent.setdefault((far, entry.number), before)
    # What was sent is noted where it is dealt with, so that sending need not write it down.
    past = sorted([*happened, *sent.values()], key=lambda entry: (entry.time, _RANK.get(entry.kind, 1)))
    return [*past, *(entry for _, entry in waiting)]


def _end(handle: str) -> str:
    return "initiator" if is_initiator(handle) else "target"


def _service(ends: dict[str, ConversationRecord], handle: str) -> str:
    if handle in ends:
        return ends[handle].service
    other = ends.get(far_end(handle))
    return "" if other is None else other.far_service


def _waiting(tx: Transaction, record: ConversationRecord) -> list[TimelineEntry]:
    waiting = []
    for stream in RECEIVED_STREAMS:
        for message in tx.sessions.messages(
            record.queue_id, stream_of(record.priority, record.handle, stream)
        ):
            row = tx.row(message.key)
            if row is None:
                continue
            attempts = history(tx, message.key)
            last = attempts[-1] if attempts else None
            text = STATES[message.state].value
            if last is not None:
                error = f": {last.error_type}: {last.error_message}" if last.error_type else ""
                text += f" after {len(attempts)} attempts, the last {last.outcome.value}{error}"
            waiting.append(
                TimelineEntry(
                    to_datetime(row.enqueued), _end(record.handle), record.service, "waiting",
                    decode_headers(row.headers).subject, number_of(row.message_id), text,
                )
            )  # fmt: skip
    return waiting
