"""Hooks that run when messages are settled: empty for plain queues, used by dialogs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lazaretto.engine.dialogs import conversation_ends
from lazaretto.errors import NotAllowed
from lazaretto.model.conversations import place_of_stream
from lazaretto.model.entities import PoisonSession
from lazaretto.model.failure import Failure
from lazaretto.model.headers import Headers, decode_headers
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Final, Outcome
from lazaretto.store.records.messages import MessageRow, QueueRecord
from lazaretto.store.sql.transaction import Transaction


class QueueHooks:
    """Called within the transaction that changes the messages. A plain queue adds nothing."""

    #: Whether each message of a session has a lock of its own, beside the session's.
    locks_each = False
    #: Whether a message that fails may take the rest of its session along.
    ends_sessions = False

    def retains(self, queue: QueueRecord, messages: Sequence[ReceivedMessage]) -> bool:
        """Return whether completed messages stay in the store."""
        return False

    def on_completed(self, tx: Transaction, queue: QueueRecord, messages: Sequence[ReceivedMessage]) -> None:
        """Called when messages were completed; retained ones are still there, under their lock."""

    def after_settle(self, tx: Transaction, queue: QueueRecord, completed: Iterable[ReceivedMessage]) -> None:
        """Called when a settlement is done; these messages of the queue itself were completed."""

    def on_failed(self, tx: Transaction, row: MessageRow, outcome: Outcome, failure: Failure | None) -> None:
        """Called when an attempt was counted, before the policy decides."""

    def poison_session(self, queue: QueueRecord, verdict: Final) -> PoisonSession:
        """Return how to treat a session whose message got this verdict."""
        return queue.options.on_poison_session

    def on_poison(self, tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: Final) -> None:
        """Called when the policy disposed of a message of a session and nothing waits for it."""

    def on_dead_lettered(
        self, tx: Transaction, queue: QueueRecord, row: MessageRow, reason: str | None
    ) -> None:
        """Called when a receiver dead-lettered a message."""

    def headers_again(self, tx: Transaction, row: MessageRow, headers: Headers) -> Headers:
        """Return the headers for resubmitting a dead letter. Raises NotAllowed if that is impossible."""
        return headers


_PLAIN = QueueHooks()


def hooks_of(queue: QueueRecord) -> QueueHooks:
    """Return the hooks of a queue, by its kind."""
    return _DIALOGS if queue.options.dialogs else _PLAIN


class DialogHooks(QueueHooks):
    """Hooks of a service's queue. A message received as a dead letter has no session lock and no dialog."""

    #: A message of a dialog has a time of its own until which it is locked, beside its group.
    locks_each = True
    #: An invalid message ends its conversation with an error.
    ends_sessions = True

    def retains(self, queue: QueueRecord, messages: Sequence[ReceivedMessage]) -> bool:
        return queue.options.retention and _in_conversation(messages)

    def on_completed(self, tx: Transaction, queue: QueueRecord, messages: Sequence[ReceivedMessage]) -> None:
        if _in_conversation(messages):
            if queue.options.retention:
                conversation_ends.retain(tx, [message.key for message in messages])
            conversation_ends.completed(tx, messages)

    def after_settle(self, tx: Transaction, queue: QueueRecord, completed: Iterable[ReceivedMessage]) -> None:
        conversation_ends.end_heard(tx, queue, completed)

    def on_failed(self, tx: Transaction, row: MessageRow, outcome: Outcome, failure: Failure | None) -> None:
        conversation_ends.record_failure(tx, row, outcome, failure)

    def poison_session(self, queue: QueueRecord, verdict: Final) -> PoisonSession:
        # What can never be processed is answered at once, however poison is dealt with.
        invalid = verdict.reason == conversation_ends.INVALID_REASON
        return PoisonSession.END if invalid else queue.options.on_poison_session

    def on_poison(self, tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: Final) -> None:
        if self.poison_session(queue, verdict) is PoisonSession.END:
            conversation_ends.end_poisoned(tx, queue, row, verdict)
        else:
            conversation_ends.record_dead_letter(tx, queue, row, verdict.reason)

    def on_dead_lettered(
        self, tx: Transaction, queue: QueueRecord, row: MessageRow, reason: str | None
    ) -> None:
        conversation_ends.record_dead_letter(tx, queue, row, reason)

    def headers_again(self, tx: Transaction, row: MessageRow, headers: Headers) -> Headers:
        # Whatever else was edited, it belongs to its conversation.
        before = decode_headers(row.headers)
        assert before.session_id is not None
        if conversation_ends.open_conversation(tx, place_of_stream(before.session_id).handle) is None:
            raise NotAllowed("its conversation has ended")
        return msgspec.structs.replace(
            headers,
            session_id=before.session_id,
            subject=before.subject,
            correlation_id=before.correlation_id,
        )


_DIALOGS = DialogHooks()


def _in_conversation(messages: Sequence[ReceivedMessage]) -> bool:
    lock = messages[0].lock
    return lock is not None and lock.session_id is not None
