"""Clients whose connection was lost without a goodbye: what they worked on, and what they only held."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lazaretto.engine.outcome.attempts import end_attempt, put_back
from lazaretto.engine.workers.workers import blame_client
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Outcome
from lazaretto.store.records.messages import MessageRow
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction


@dataclasses.dataclass(slots=True)
class LoseClient(Operation[None]):
    """End what a client held of a queue, or of a session, when its connection was lost.

    `working`: what it worked on, as far as its settlements show. Their locks run out first, because it may
    live; that of a session has ended. `waiting`: what it had not begun; it is released. `together`: whether
    other connections were lost with it, so that the message that it held alone need not have killed it.
    """

    path: EntityPath
    working: Sequence[ReceivedMessage]
    waiting: Sequence[ReceivedMessage]
    together: bool = False

    def run(self, tx: Transaction) -> None:
        queue = tx.queues.by_path(self.path.key)
        if queue is None:
            return
        for row in _rows_of(tx, self.waiting):
            put_back(tx, end_attempt(tx, row, Outcome.RELEASED))
        working = _rows_of(tx, self.working)
        if queue.options.requires_session and working:
            blame_client(tx, queue, working, together=self.together)
        elif working:
            tx.workers.note_lost([row.key for row in working], together=self.together)


def _rows_of(tx: Transaction, messages: Sequence[ReceivedMessage]) -> list[MessageRow]:
    """Return those of some messages that are held under their locks still."""
    by_token: dict[int, list[int]] = {}
    for message in messages:
        if message.lock is not None:
            by_token.setdefault(message.lock.token, []).append(message.key)
    return [row for token, keys in by_token.items() for row in tx.held_rows(keys, token).values()]
