"""The operations of dialogs: begin, send, end, move, set timers, clean up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from lazaretto.engine.command import CommandOf
from lazaretto.engine.dialogs.conversation_ends import (
    INVALID_REASON,
    DialogError,
    cancel_scheduled,
    check_error,
    clear_streams,
    end,
    forget,
    last_read,
    leave_group,
    message,
    open_conversation,
    post,
    post_error,
    refused,
    require_conversation,
)
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.log import audit
from lazaretto.engine.messages.prepare import check_size
from lazaretto.engine.outcome.held_sessions import ResumeSession
from lazaretto.engine.outcome.session_holds import HeldRecord, held_decoder
from lazaretto.engine.routing.deliver import dead_letter
from lazaretto.engine.timers import SWEEP, sweep
from lazaretto.errors import ConversationError, ConversationLocked, DefinitionError, InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.conversations import (
    DIALOG_TIMER,
    END_DIALOG,
    ERROR,
    INVALID_CODE,
    LIFETIME_CODE,
    POISON_CODE,
    POISON_TEXT,
    RECEIVED_STREAMS,
    ConversationState,
    Stream,
    check_handle,
    dialog_of,
    far_end,
    group_session,
    is_initiator,
    message_name,
    stream_of,
)
from lazaretto.model.entities import EntityPath
from lazaretto.model.grants import Permission
from lazaretto.model.headers import decode_headers
from lazaretto.model.keys import lower_bound
from lazaretto.store.records.dialogs import ConversationRecord
from lazaretto.store.records.messages import DEFERRED, READY, QueueRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")

#: An operator's possible decisions on the poison message that holds a conversation.
VERDICTS: Final = ("retry", "move", "drop", "reject", "end")

_replace = msgspec.structs.replace

_LIFETIME: DialogError = (LIFETIME_CODE, "The dialog has exceeded its lifetime.")


@dataclasses.dataclass(slots=True)
class BeginDialog(Operation[None]):
    """Begin a dialog between two services. The other end learns of it with the first message."""

    handle: str
    service: str
    far_service: str
    contract: str
    group: str
    lifetime: int | None = None

    def run(self, tx: Transaction) -> None:
        definitions = tx.dialogs.definitions()
        near, far = definitions.service(self.service), definitions.service(self.far_service)
        definitions.contract(self.contract)
        if self.contract not in far.contracts:
            raise DefinitionError(
                f"service {far.name!r} is not the target of contract {self.contract!r}; its contracts are: "
                f"{', '.join(far.contracts) or 'none'}"
            )
        record = ConversationRecord(
            handle=self.handle,
            queue_id=require_queue(tx, EntityPath.parse(near.queue)).queue_id,
            service=near.name,
            far_service=far.name,
            contract=self.contract,
            group_id=self.group,
            state=ConversationState.STARTED_OUTBOUND,
            priority=definitions.priority_of(self.contract, near.name, far.name),
            far_queue_id=require_queue(tx, EntityPath.parse(far.queue)).queue_id,
            far_priority=definitions.priority_of(self.contract, far.name, near.name),
            sent=0,
            created=tx.now,
            expires=None if self.lifetime is None else tx.now + self.lifetime,
        )
        _open(tx, record, "begun")


def _open(tx: Transaction, record: ConversationRecord, kind: str) -> None:
    tx.dialogs.save_conversation(record)
    tx.dialogs.record_happening(record.handle, kind, text=f"{record.service} to {record.far_service}")
    if record.expires is not None:
        post_error(tx, record, _LIFETIME, scheduled=record.expires)


@dataclasses.dataclass(slots=True)
class SendDialog(Operation[None]):
    """Send a message to the other end of a conversation.

    With `invalid`, the reason, the message is not delivered: it is dead-lettered, and the other end ends with
    an error.
    """

    handle: str
    type: str
    body: bytes
    invalid: str | None
    #: The group of the other end if this message begins it.
    group: str
    #: Where the message comes from, if somebody traces.
    trace: Mapping[str, str] | None = None

    def run(self, tx: Transaction) -> None:
        near = tx.dialogs.count_sent(self.handle)
        if near is None:
            raise refused(tx, self.handle, "send")
        queue = tx.queues.by_id(near.far_queue_id)
        if queue is None:
            raise ConversationError(
                f"the queue that conversation {self.handle} sends to was deleted; end the conversation"
            )
        if near.sent == 1 and is_initiator(self.handle):
            self._begin_far_end(tx, near)
        far = tx.dialogs.conversation(far_end(self.handle))
        if far is None:
            raise ConversationError(
                f"the other side of conversation {self.handle} was cleaned up; end the conversation"
            )
        name = message_name(self.handle, near.sent)
        prepared = message(
            far.priority, far.handle, Stream.MESSAGE, self.type, self.body, name, properties=self.trace
        )
        check_size(prepared, queue.options.max_message_size)
        own = tx.queues.by_id(near.queue_id)
        retains = own is not None and own.options.retention
        if self.invalid is None and not retains and tx.start_sending(queue, [prepared]) is not None:
            return
        (key,) = tx.insert_messages(queue, [prepared])
        if self.invalid is not None:
            self._refuse(tx, queue, far, key, near.sent, self.invalid)
        elif own is not None and retains:
            self._retain(tx, own, near)

    def _begin_far_end(self, tx: Transaction, near: ConversationRecord) -> None:
        far = ConversationRecord(
            handle=far_end(self.handle),
            queue_id=near.far_queue_id,
            service=near.far_service,
            far_service=near.service,
            contract=near.contract,
            group_id=self.group,
            state=ConversationState.CONVERSING,
            priority=near.far_priority,
            far_queue_id=near.queue_id,
            far_priority=near.priority,
            sent=0,
            created=tx.now,
            expires=near.expires,
        )
        _open(tx, far, "arrived")

    def _refuse(
        self, tx: Transaction, queue: QueueRecord, far: ConversationRecord, key: int, number: int, why: str
    ) -> None:
        """Dead-letter an invalid message, and answer it with an error at once."""
        row = tx.row(key)
        assert row is not None
        dead_letter(tx, queue, row, INVALID_REASON, why)
        tx.dialogs.record_happening(far.handle, "refused", self.type, number, why, tx.now)
        end(tx, far, (INVALID_CODE, why), set_aside="Its conversation was ended by an invalid message.")

    def _retain(self, tx: Transaction, queue: QueueRecord, near: ConversationRecord) -> None:
        """Keep a copy of a sent message in the sender's queue until the conversation ends."""
        copy = message(
            near.priority, near.handle, Stream.RETAINED, self.type, self.body, f"{near.handle}.sent"
        )
        (key,) = tx.insert_messages(queue, [copy])
        row = tx.row(key)
        assert row is not None
        tx.save_row(_replace(row, state=DEFERRED))


class OfConversation(CommandOf[T], frozen=True, kw_only=True):
    """A change of one end of a dialog. `handle`: that of the end."""

    permission = Permission.OPERATE
    holder = "dialogs"
    noun = "_conversation"
    handle: str

    def record(self, tx: Transaction) -> ConversationRecord:
        """Return the end. Raises InvalidOption, ConversationNotFound."""
        return require_conversation(tx, check_handle(self.handle))


class EndConversation(OfConversation[None], frozen=True, kw_only=True):
    """End a conversation at this end; the other end is told. `error`: its code and text."""

    action = "end_conversation"
    error: tuple[int, str] | None = None

    def run(self, tx: Transaction, actor: str) -> None:
        error = None if self.error is None else check_error(self.error)
        record = self.record(tx)
        end(tx, record, error)
        _audit(tx, actor, self.action, record)


@dataclasses.dataclass(slots=True)
class EndSide(Operation[None]):
    """End a conversation at this end as its program, perhaps with an error.

    `lenient`: it may already be gone, because its last message was settled in the same commit.
    """

    handle: str
    error: DialogError | None = None
    lenient: bool = False

    def run(self, tx: Transaction) -> None:
        if self.lenient and open_conversation(tx, self.handle) is None:
            return
        end(tx, require_conversation(tx, self.handle), self.error)


def _audit(tx: Transaction, actor: str, action: str, record: ConversationRecord) -> None:
    queue = tx.queues.by_id(record.queue_id)
    audit(tx, actor, action, queue.path if queue else "", conversation=record.handle)


class CleanUpConversation(OfConversation[int], frozen=True, kw_only=True):
    """Delete one end of a dialog and its messages, without telling the other end."""

    action = "clean_up_conversation"
    permission = Permission.ADMINISTER

    def run(self, tx: Transaction, actor: str) -> int:
        record = self.record(tx)
        queue = tx.queues.by_id(record.queue_id)
        dropped = 0 if queue is None else clear_streams(tx, queue, record)
        if open_conversation(tx, far_end(self.handle)) is None:
            # Nobody is left to end it.
            forget(tx, record, "cleaned up", dropped)
        else:
            tx.dialogs.delete_conversation(self.handle)
            tx.dialogs.record_happening(self.handle, "cleaned_up", text=f"{dropped} unread")
        leave_group(tx, record)
        _audit(tx, actor, self.action, record)
        return dropped


@dataclasses.dataclass(slots=True)
class MoveConversation(Operation[None]):
    """Move a conversation to another group of its queue; both must be free, or locked under `token`."""

    handle: str
    group: str
    token: int

    def run(self, tx: Transaction) -> None:
        record = require_conversation(tx, self.handle)
        for group in (record.group_id, self.group):
            refuse_locked(tx, record.queue_id, group, self.token)
        tx.dialogs.save_conversation(_replace(record, group_id=self.group))
        tx.dialogs.record_happening(self.handle, "moved", text=f"to group {self.group}")
        leave_group(tx, record)
        tx.wake(lower_bound(record.queue_id))


def refuse_locked(tx: Transaction, queue_id: int, group: str, token: int) -> None:
    """Raise ConversationLocked if somebody else holds a group."""
    session = tx.sessions.find(queue_id, group_session(group))
    if session is not None and session.is_locked(tx.now) and session.lock_token != token:
        raise ConversationLocked(f"conversation group {group} is locked by {session.locked_by}")


@dataclasses.dataclass(slots=True)
class SetTimer(Operation[None]):
    """Deliver a DialogTimer message to this end after a time, replacing an earlier timer; None: cancel it."""

    handle: str
    delay: int | None

    def run(self, tx: Transaction) -> None:
        # An expired timer stays: its message is already there.
        sweep(tx, SWEEP)
        record = open_conversation(tx, self.handle)
        if record is None:
            raise refused(tx, self.handle, "have a timer")
        cancel_scheduled(tx, record, Stream.TIMER)
        if self.delay is None:
            tx.dialogs.record_happening(self.handle, "timer_cancelled")
            return
        post(tx, record, Stream.TIMER, DIALOG_TIMER, scheduled=tx.now + self.delay)
        tx.dialogs.record_happening(self.handle, "timer_set", text=f"{self.delay / 1_000_000:g} s")


class ResumeConversation(OfConversation[None], frozen=True, kw_only=True):
    """Resume a conversation with a verdict on the poison message that holds it."""

    action = "resume_session"
    verdict: str

    def run(self, tx: Transaction, actor: str) -> None:
        resume_conversation(tx, self.handle, self.verdict, (POISON_CODE, POISON_TEXT), actor)


def resume_conversation(tx: Transaction, handle: str, verdict: str, error: DialogError, actor: str) -> None:
    """Decide on the poison message that holds a conversation: retry, move, drop, reject; or end it."""
    if verdict not in VERDICTS:
        raise InvalidOption(f"expected a verdict of {', '.join(VERDICTS)}, got {shown(verdict)}")
    check_handle(handle)
    record = require_conversation(tx, handle)
    queue = tx.queues.by_id(record.queue_id)
    if queue is None:
        raise ConversationError(f"the queue of conversation {handle} was deleted; end the conversation")
    waits = False
    for stream in RECEIVED_STREAMS:
        session_id = stream_of(record.priority, handle, stream)
        session = tx.sessions.find(queue.queue_id, session_id)
        if session is not None and session.held_by is not None:
            if not waits:
                tx.dialogs.record_happening(handle, "resumed", text=verdict)
            waits = True
            if verdict != "end":
                _decide(tx, queue, handle, session_id, held_decoder.decode(session.held_by), verdict, actor)
    if not waits:
        raise ConversationError(f"conversation {handle} is not held by a poison message")
    if verdict == "end":
        end(tx, record, error, set_aside="Its conversation was ended by an operator.")
        _audit(tx, actor, "end_conversation", record)


def _decide(
    tx: Transaction,
    queue: QueueRecord,
    handle: str,
    session_id: str,
    hold: HeldRecord,
    verdict: str,
    actor: str,
) -> None:
    row = tx.row(lower_bound(queue.queue_id) + hold.sequence_number)
    type_ = None if row is None else decode_headers(row.headers).subject
    ResumeSession(path=queue.path, session_id=session_id, verdict=verdict).run(tx, actor)
    for waiting in tx.sessions.messages(queue.queue_id, session_id):
        other = tx.row(waiting.key) if waiting.state == READY else None
        if other is not None and other.cycle_attempts:
            # Rolled back together with the poison message, it was charged for it.
            tx.save_row(_replace(other, cycle_attempts=0, cycle=0))
    if verdict != "retry" and type_ in (END_DIALOG, ERROR):
        # It was the other end's last message, and counts as received.
        last_read(tx, queue, handle)


def both_ends(tx: Transaction, dialog: str) -> list[ConversationRecord]:
    """Return the existing ends of a dialog, the initiator first."""
    ends = (tx.dialogs.conversation(f"{dialog_of(dialog)}-{end_}") for end_ in "it")
    return [record for record in ends if record is not None]
