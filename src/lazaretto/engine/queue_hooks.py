"""Hooks for settling the messages of a kind of queue: empty for plain queues, used by dialogs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from lazaretto.engine.dialogs.dialog_hooks import DialogHooks
from lazaretto.model.entities import PoisonSession
from lazaretto.model.failure import Failure
from lazaretto.model.headers import Headers
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Final, Outcome
from lazaretto.store.contract.records import MessageRow, QueueRecord
from lazaretto.store.contract.transaction_contract import Transaction


class QueueHooks(Protocol):
    """Called within the transaction that changes the messages."""

    #: Whether each message of a session has a lock of its own, beside the session's.
    locks_each: bool

    def retains(self, queue: QueueRecord, messages: Sequence[ReceivedMessage]) -> bool:
        """Return whether messages that were completed stay in the store."""
        ...

    def on_completed(self, tx: Transaction, queue: QueueRecord, messages: Sequence[ReceivedMessage]) -> None:
        """Messages were completed; those that are retained are still there, under their lock."""
        ...

    def after_settle(self, tx: Transaction, queue: QueueRecord, completed: Iterable[ReceivedMessage]) -> None:
        """All messages of a settle are settled; these of the queue itself were completed."""
        ...

    def on_failed(self, tx: Transaction, row: MessageRow, outcome: Outcome, failure: Failure | None) -> None:
        """An attempt was charged; the policy has not decided yet."""
        ...

    def poison_session(self, queue: QueueRecord, verdict: Final) -> PoisonSession:
        """Return what becomes of a session whose message got this verdict."""
        ...

    def on_poison(self, tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: Final) -> None:
        """A message of a session was set aside by the policy, and nothing waits for it."""
        ...

    def on_dead_lettered(
        self, tx: Transaction, queue: QueueRecord, row: MessageRow, reason: str | None
    ) -> None:
        """A message was set aside by who received it."""
        ...

    def headers_again(self, tx: Transaction, row: MessageRow, headers: Headers) -> Headers:
        """Return the headers a dead letter is sent back with. Raises NotAllowed if it cannot be."""
        ...


class PlainHooks:
    """A queue that adds nothing."""

    locks_each = False

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
    """Return what a queue adds, by its kind."""
    return _DIALOGS if queue.options.dialogs else _PLAIN
