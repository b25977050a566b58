"""A transaction: receives, settlements, sends and the user's own SQL in one commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload

from lazaretto.broker.receiver import Receiver
from lazaretto.broker.sender import send_operation, sendable
from lazaretto.broker.settling import Messages, MessageVerbs
from lazaretto.broker.steps import Steps, steps_of, verb
from lazaretto.broker.work import UnitOfWork, WorkVerbs
from lazaretto.engine.messages.prepare import Sendable, prepare_all
from lazaretto.engine.messages.settle import Settlement
from lazaretto.model.checks import GivenDuration
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import ReceivedMessage
from lazaretto.observe.traces import active
from lazaretto.store.sql.store import Store


class BrokerTransaction(MessageVerbs, WorkVerbs):
    """Receives, settlements, sends and SQL that take effect together or not at all. A context manager.

    Leaving the block commits; an exception rolls back. What the transaction received and did not
    settle otherwise is completed by the commit. Rolling back charges each message it received one
    failure and makes it receivable again. Nothing is locked in the store while your code runs, until the
    first `execute`: from then on it is the only writer of a file, so be quick. On PostgreSQL others go on.
    The verbs that settle take messages received in this transaction or by a receiver. One thread.
    """

    def __init__(self, store: Store, work: UnitOfWork | None = None) -> None:
        self._store = store
        self._work = UnitOfWork(store) if work is None else work

    @verb
    def receive(
        self,
        path: str,
        max_messages: int = 1,
        max_wait: GivenDuration | None = 0.0,
        *,
        subqueue: str | None = None,
    ) -> Steps[list[ReceivedMessage]]:
        """Receive messages. The commit completes them; a rollback counts a failed attempt.

        Raises TransactionError after `execute`: the delivery must be committed before you see the message,
        which is impossible within your own SQL's transaction.
        """
        self._work.refuse_receiving()
        receiver = Receiver(self._store, EntityPath.parse(path, subqueue))
        messages = yield from steps_of(receiver.receive, max_messages, max_wait)
        self._work.adopt(messages)
        return messages

    @verb
    def receive_by_number(
        self, path: str, sequence_numbers: int | Iterable[int], *, subqueue: str | None = None
    ) -> Steps[list[ReceivedMessage]]:
        """Receive active messages by sequence number: all, or none. Otherwise as `receive`."""
        self._work.refuse_receiving()
        receiver = Receiver(self._store, EntityPath.parse(path, subqueue))
        messages = yield from steps_of(receiver.receive_by_number, sequence_numbers)
        self._work.adopt(messages)
        return messages

    @overload
    def send(self, path: str, messages: Sendable, *, via: str | None = None) -> None: ...
    @overload
    def send(self, path: str, messages: Iterable[Sendable], *, via: str | None = None) -> None: ...
    def send(self, path: str, messages: Sendable | Iterable[Sendable], *, via: str | None = None) -> None:
        """Send messages to a queue or topic on commit. Invalid messages raise an error immediately.

        `via`: a queue that they pass through (send via in Service Bus). The commit succeeds once that queue
        accepts them; if `path` cannot, they move to its transfer dead-letter subqueue.
        """
        self._work.refuse_ended()
        target, through = sendable(path), None if via is None else sendable(via)
        prepared = prepare_all(messages)
        if (tracing := active(self._store)) is not None:
            prepared = tracing.created(target, prepared)
        if prepared:
            self._work.enlist(send_operation(target, through, prepared))

    def _settle(self, messages: Messages, settlement: Settlement) -> None:
        self._work.settle(messages, settlement)
