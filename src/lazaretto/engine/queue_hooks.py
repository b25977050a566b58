"""Hooks that run when messages are settled: empty for plain queues, used by dialogs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from lazaretto.engine.dialogs.dialog_hooks import DialogHooks
from lazaretto.model.entities import PoisonSession
from lazaretto.model.failure import Failure
from lazaretto.model.headers import Headers
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Final, Outcome
from lazaretto.store.records.messages import MessageRow, QueueRecord
from lazaretto.store.sql.transaction import Transaction


class QueueHooks(Protocol):
    """Called within the transaction that changes the messages."""

    #: Whether each message of a session has a lock of its own, beside the session's.
    locks_each: bool
    #: Whether a message that fails may take the rest of its session along.
    ends_sessions: bool

    def retains(self, queue: QueueRecord, messages: Sequence[ReceivedMessage]) -> bool:
        """Return whether completed messages stay in the store."""
        ...

    def on_completed(self, tx: Transaction, queue: QueueRecord, messages: Sequence[ReceivedMessage]) -> None:
        """Called when messages were completed; retained ones are still there, under their lock."""
        ...

    def after_settle(self, tx: Transaction, queue: QueueRecord, completed: Iterable[ReceivedMessage]) -> None:
        """Called when a settlement is done; these messages of the queue itself were completed."""
        ...

    def on_failed(self, tx: Transaction, row: MessageRow, outcome: Outcome, failure: Failure | None) -> None:
        """Called when an attempt was counted, before the policy decides."""
        ...

    def poison_session(self, queue: QueueRecord, verdict: Final) -> PoisonSession:
        """Return how to treat a session whose message got this verdict."""
        ...

    def on_poison(self, tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: Final) -> None:
        """Called when the policy disposed of a message of a session and nothing waits for it."""
        ...

    def on_dead_lettered(
        self, tx: Transaction, queue: QueueRecord, row: MessageRow, reason: str | None
    ) -> None:
        """Called when a receiver dead-lettered a message."""
        ...

    def headers_again(self, tx: Transaction, row: MessageRow, headers: Headers) -> Headers:
        """Return the headers for resubmitting a dead letter. Raises NotAllowed if that is impossible."""
        ...


class PlainHooks:
    """A queue that adds nothing."""

    locks_each = False
    ends_sessions = False

    def retains(self, queue: QueueRecord, messages: Sequence[ReceivedMessage]) -> bool:
        return False

    def on_completed(self, tx: Transaction, queue: QueueRecord, messages: Sequence[ReceivedMessage]) -> None:
        pass

    def after_settle(self, tx: Transaction, queue: QueueRecord, completed: Iterable[ReceivedMessage]) -> None:
        pass

    def on_failed(self, tx: Transaction, row: MessageRow, outcome: Outcome, failure: Failure | None) -> None:
        pass

    def poison_session(self, queue: QueueRecord, verdict: Final) -> PoisonSession:
        return queue.options.on_poison_session

    def on_poison(self, tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: Final) -> None:
        pass

    def on_dead_lettered(
        self, tx: Transaction, queue: QueueRecord, row: MessageRow, reason: str | None
    ) -> None:
        pass

    def headers_again(self, tx: Transaction, row: MessageRow, headers: Headers) -> Headers:
        return headers


_PLAIN: QueueHooks = PlainHooks()
_DIALOGS: QueueHooks = DialogHooks()


def hooks_of(queue: QueueRecord) -> QueueHooks:
    """Return the hooks of a queue, by its kind."""
    return _DIALOGS if queue.options.dialogs else _PLAIN
