"""Ends conversations, applies settlements to them, and removes what is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lazaretto.engine.log import note
from lazaretto.engine.outcome.attempts import end_attempt
from lazaretto.engine.outcome.dispositions import remove
from lazaretto.engine.routing.deliver import dead_letter
from lazaretto.errors import ConversationError, ConversationNotFound, InvalidOption
from lazaretto.model.checks import shown, text, whole
from lazaretto.model.conversations import (
    END_DIALOG,
    ERROR,
    INVALID_CODE,
    LONGEST_ERROR,
    POISON_CODE,
    POISON_TEXT,
    STREAMS,
    SYSTEM_TYPES,
    ConversationEvent,
    ConversationState,
    Stream,
    after,
    at_time,
    dialog_of,
    far_end,
    group_session,
    number_of,
    place_of_stream,
    stream_of,
)
from lazaretto.model.failure import Failure
from lazaretto.model.headers import Headers, decode_headers, encode_headers
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Final, Outcome
from lazaretto.store.records.dialogs import ConversationRecord
from lazaretto.store.records.messages import DEFERRED, LOCKED, SCHEDULED, MessageRow, NewMessage, QueueRecord
from lazaretto.store.sql.transaction import Transaction

_replace = msgspec.structs.replace

#: The reason of dead letters that waited in a conversation when a poison message ended it.
ENDED_REASON = "ConversationEnded"
INVALID_REASON = "InvalidMessage"
#: How many entries of a dialog's log are kept, and how often the rest is cut off.
LOG_LIMIT = 1_000
_TRIM_EVERY = 500

#: An error that ends a conversation: code and text.
DialogError = tuple[int, str]


def check_error(error: object) -> DialogError:
    """Return an error that ends a conversation: a code above 0 and a text. Raises InvalidOption."""
    if not isinstance(error, tuple) or len(error) != 2:
        raise InvalidOption(f"expected error to be a code and a text, got {shown(error)}")
    return whole("an error's code", error[0], 1, 2**31 - 1), text("an error's text", error[1], LONGEST_ERROR)


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an Error message, as JSON."""

    code: int
    text: str


def require_conversation(tx: Transaction, handle: str) -> ConversationRecord:
    """Return one end of a dialog. Raises ConversationNotFound."""
    record = tx.dialogs.conversation(handle)
    if record is None:
        raise ConversationNotFound(f"no conversation has the handle {handle!r}; it may have ended")
    return record


def open_conversation(tx: Transaction, handle: str) -> ConversationRecord | None:
    """Return one end of a dialog; None if there is none, or it has ended."""
    record = tx.dialogs.conversation(handle)
    over = record is not None and record.state is ConversationState.DISCONNECTED_OUTBOUND
    return None if over else record


def refused(tx: Transaction, handle: str, verb: str) -> ConversationError:
    """Return the error of a call that a conversation's state does not allow. Raises ConversationNotFound."""
    record = require_conversation(tx, handle)
    state = at_time(record.state, record.expires, tx.now)
    error = "" if record.error_code is None else f" (error {record.error_code}: {record.error_text})"
    return ConversationError(f"conversation {handle} is {state.value}{error}: it cannot {verb}")


# -- messages in streams ---------------------------------------------------------------------------


def message(
    priority: int,
    handle: str,
    stream: Stream,
    type_: str,
    body: bytes,
    name: str,
    scheduled: int | None = None,
    properties: Mapping[str, str] | None = None,
) -> NewMessage:
    """Return a message for a stream of the conversation `handle`; `name` makes its id unique."""
    session = stream_of(priority, handle, stream)
    headers = Headers(
        session_id=session,
        subject=type_,
        correlation_id=dialog_of(handle),
        properties=dict(properties or {}),
    )
    return NewMessage(body, name, session, None, scheduled, None, encode_headers(headers))


def post(
    tx: Transaction,
    record: ConversationRecord,
    stream: Stream,
    type_: str,
    body: bytes = b"",
    scheduled: int | None = None,
) -> None:
    """Put a system message into a stream, at once or later."""
    queue = tx.queues.by_id(record.queue_id)
    if queue is not None:
        name = f"{record.handle}.{type_.rpartition('/')[2]}"
        tx.insert_messages(
            queue, [message(record.priority, record.handle, stream, type_, body, name, scheduled)]
        )


def post_error(
    tx: Transaction, record: ConversationRecord, error: DialogError, scheduled: int | None = None
) -> None:
    """Put an Error message into a conversation's stream of errors."""
    post(tx, record, Stream.ERROR, ERROR, msgspec.json.encode(ErrorBody(*error)), scheduled)


def cancel_scheduled(tx: Transaction, record: ConversationRecord, stream: Stream) -> None:
    """Remove the scheduled messages of a stream."""
    for message in tx.sessions.messages(record.queue_id, stream_of(record.priority, record.handle, stream)):
        row = tx.row(message.key) if message.state == SCHEDULED else None
        if row is not None:
            remove(tx, row)


# -- ending --------------------------------------------------------------------------------------


def end(
    tx: Transaction,
    record: ConversationRecord,
    error: DialogError | None = None,
    *,
    set_aside: str | None = None,
) -> None:
    """End a conversation at this end, and notify the other end. Once both have ended, nothing is left.

    Unread messages are dropped, as in Service Broker. With `set_aside`, a reason, they become dead letters.
    Raises ConversationError if this end has already ended.
    """
    far = open_conversation(tx, far_end(record.handle))
    event = ConversationEvent.END_LAST if far is None else ConversationEvent.END
    state = after(at_time(record.state, record.expires, tx.now), event)
    if state is None:
        raise refused(tx, record.handle, "be ended again")
    queue = tx.queues.by_id(record.queue_id)
    dropped = 0 if queue is None else clear_streams(tx, queue, record, set_aside)
    text = None if error is None else f"{error[0]}: {error[1]}"
    if far is None:
        forget(tx, record, text, dropped)
    else:
        what = "ended" if error is None else "ended_with_error"
        tx.dialogs.record_happening(record.handle, what, text=text)
        if dropped:
            tx.dialogs.record_happening(
                record.handle, "set_aside" if set_aside else "dropped", text=f"{dropped} unread"
            )
        code, words = error if error is not None else (None, None)
        tx.dialogs.save_conversation(_replace(record, state=state, error_code=code, error_text=words))
        _tell(tx, far, error)
    leave_group(tx, record)


def forget(tx: Transaction, record: ConversationRecord, text: str | None, dropped: int) -> None:
    """Delete a dialog when both ends have ended; only an event remains."""
    for handle in (record.handle, far_end(record.handle)):
        tx.dialogs.delete_conversation(handle)
    tx.dialogs.forget_happenings(dialog_of(record.handle))
    queue = tx.queues.by_id(record.queue_id)
    if queue is not None:
        error = text or (None if record.error_code is None else f"{record.error_code}: {record.error_text}")
        note(
            tx, "dialog_ended", queue, dialog=dialog_of(record.handle), service=record.service,
            far_service=record.far_service, contract=record.contract, error=error, dropped=dropped,
        )  # fmt: skip


def _tell(tx: Transaction, far: ConversationRecord, error: DialogError | None) -> None:
    """Notify the other end: normally after all sent messages, but an error goes before them."""
    before = at_time(far.state, far.expires, tx.now)
    event = ConversationEvent.FAR_END if error is None else ConversationEvent.FAR_ERROR
    state = after(before, event)
    if state is None or before is ConversationState.ERROR:
        # Its lifetime has expired: it already has its error.
        return
    cancel_scheduled(tx, far, Stream.ERROR)
    if error is None:
        tx.dialogs.save_conversation(_replace(far, state=state))
        post(tx, far, Stream.MESSAGE, END_DIALOG)
    else:
        tx.dialogs.save_conversation(_replace(far, state=state, error_code=error[0], error_text=error[1]))
        post_error(tx, far, error)


def clear_streams(
    tx: Transaction, queue: QueueRecord, record: ConversationRecord, set_aside: str | None = None
) -> int:
    """Remove or dead-letter a conversation's messages; return how many were unread."""
    unread = 0
    for stream in STREAMS:
        for message in tx.sessions.messages(
            queue.queue_id, stream_of(record.priority, record.handle, stream)
        ):
            row = tx.row(message.key)
            if row is None:
                continue
            sent = stream is Stream.MESSAGE and decode_headers(row.headers).subject not in SYSTEM_TYPES
            unread += sent
            if sent and set_aside is not None:
                if message.state == LOCKED:
                    row = end_attempt(tx, row, Outcome.RELEASED)
                dead_letter(tx, queue, row, ENDED_REASON, set_aside)
            else:
                remove(tx, row)
    return unread


def leave_group(tx: Transaction, record: ConversationRecord) -> None:
    """Delete the state of a group after its last conversation."""
    if not tx.dialogs.group_open(record.queue_id, record.group_id):
        tx.sessions.set_state(record.queue_id, group_session(record.group_id), None)


# -- what became of messages ---------------------------------------------------------------------


def completed(tx: Transaction, messages: Sequence[ReceivedMessage]) -> None:
    """Record that messages of dialogs were processed."""
    for one in messages:
        headers = one.headers
        if headers.session_id is None or headers.subject is None:
            continue
        handle = place_of_stream(headers.session_id).handle
        number = number_of(one.message_id)
        tx.dialogs.record_happening(handle, "received", headers.subject, number, sent=one.enqueued)
        if number and number % _TRIM_EVERY == 0:
            tx.dialogs.trim_happenings(dialog_of(handle), LOG_LIMIT)


def end_heard(tx: Transaction, queue: QueueRecord, messages: Iterable[ReceivedMessage]) -> None:
    """End the conversations whose last message is among these that were processed."""
    for one in messages:
        headers = one.headers
        if headers.subject in (END_DIALOG, ERROR) and headers.session_id is not None:
            last_read(tx, queue, place_of_stream(headers.session_id).handle)


def last_read(tx: Transaction, queue: QueueRecord, handle: str) -> None:
    """End a conversation whose reader was told that it is over, once it has read what came before."""
    record = open_conversation(tx, handle)
    if record is None:
        return
    waiting = tx.sessions.messages(queue.queue_id, stream_of(record.priority, handle, Stream.MESSAGE))
    if not waiting:
        end(tx, record)
        return
    # It was an error, which goes first, or something before it is to be tried again: then this comes last.
    last = tx.row(waiting[-1].key)
    if last is not None and decode_headers(last.headers).subject != END_DIALOG:
        post(tx, record, Stream.MESSAGE, END_DIALOG)


def retain(tx: Transaction, keys: Sequence[int]) -> None:
    """Keep processed messages, out of reach of receivers, until their conversation ends."""
    for key in keys:
        row = tx.row(key)
        if row is None or row.session_id is None:
            continue
        place = place_of_stream(row.session_id)
        stream = stream_of(place.priority, place.handle, Stream.RETAINED)
        tx.save_row(_replace(row, state=DEFERRED, due=None, session_id=stream))


def record_failure(tx: Transaction, row: MessageRow, outcome: Outcome, failure: Failure | None) -> None:
    """Record that an attempt at a message of a dialog failed."""
    if row.session_id is not None:
        error = "" if failure is None else f": {failure.type}: {failure.message or ''}"[:500]
        _about(tx, row, "failed", f"{outcome.value}{error}", over=False)


def _about(tx: Transaction, row: MessageRow, kind: str, text: str | None, *, over: bool = True) -> str:
    assert row.session_id is not None
    handle = place_of_stream(row.session_id).handle
    number, sent = number_of(row.message_id), row.enqueued if over else None
    tx.dialogs.record_happening(handle, kind, decode_headers(row.headers).subject, number, text, sent)
    return handle


def record_dead_letter(tx: Transaction, queue: QueueRecord, row: MessageRow, reason: str | None) -> None:
    """Record that a message of a dialog was dead-lettered, and the conversation continues without it."""
    if row.session_id is None:
        return
    handle = _about(tx, row, "set_aside", reason)
    type_ = decode_headers(row.headers).subject
    if type_ in (END_DIALOG, ERROR):
        last_read(tx, queue, handle)


def end_poisoned(tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: Final) -> None:
    """End the conversation of a message that was dead-lettered as poison."""
    assert row.session_id is not None
    record = open_conversation(tx, _about(tx, row, "set_aside", verdict.reason))
    if record is None:
        return
    invalid = verdict.reason == INVALID_REASON
    error = (INVALID_CODE, verdict.description) if invalid else (POISON_CODE, POISON_TEXT)
    text = f"Its conversation was ended by a poison message: {verdict.reason}."
    end(tx, record, error, set_aside=text)
