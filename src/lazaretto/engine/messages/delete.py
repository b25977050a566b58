"""Deletes messages that nobody has received."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Annotated, ClassVar

from msgspec import Meta

from lazaretto.engine.command import Administering
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.entities.status import refuse_receiving
from lazaretto.engine.four_eyes import count_letters
from lazaretto.engine.log import audit
from lazaretto.engine.outcome.dispositions import remove
from lazaretto.engine.timers import catch_up
from lazaretto.errors import NotAllowed
from lazaretto.model.checks import moment, text, whole
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.headers import LONGEST_ID
from lazaretto.model.keys import lower_bound, upper_bound
from lazaretto.model.messages import MOST_MESSAGES
from lazaretto.store.records.messages import AGAIN, FRESH, READY, SUSPECT, Again, MessageRow, QueueRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction


@dataclasses.dataclass(slots=True)
class DeleteActive(Operation[int]):
    """Delete the first active messages of a subqueue, or of a session; return how many.

    `before`: only those that were enqueued earlier. Messages that are locked, deferred or scheduled stay.
    """

    path: EntityPath
    limit: int
    before: int | None
    session_id: str | None
    actor: str

    def run(self, tx: Transaction) -> int | Again:
        queue = require_queue(tx, self.path)
        if self.path.subqueue is Subqueue.RETRY:
            raise NotAllowed(f"the messages of {str(self.path)!r} return to the queue on their own")
        refuse_receiving(queue, self.path.subqueue)
        caught_up = catch_up(tx)
        rows = self._of_queue(tx, queue) if self.session_id is None else self._of_session(tx, queue)
        for row in rows:
            remove(tx, row)
        if self.path.subqueue is not Subqueue.MAIN:
            count_letters(tx, self.actor, len(rows), "delete")
        if rows:
            audit(tx, self.actor, "delete_messages", queue.path, count=len(rows))
        elif not caught_up:
            return AGAIN
        return len(rows)

    def _of_queue(self, tx: Transaction, queue: QueueRecord) -> list[MessageRow]:
        subqueue = self.path.subqueue
        lanes = tx.partitions.waiting(queue) if subqueue is Subqueue.MAIN else (queue.queue_id,)
        rows: list[MessageRow] = []
        # A lane is named again once it has been looked at; nothing was removed from it meanwhile.
        for lane in dict.fromkeys(lanes):
            first, last = lower_bound(lane, subqueue), upper_bound(lane, subqueue)
            while len(rows) < self.limit:
                rows_of_lane = tx.active(first, last, self.limit - len(rows))
                old = [row for row in rows_of_lane if self._is_old(row)]
                rows += old
                if not old:
                    break
                first = rows_of_lane[-1].key
        return rows

    def _of_session(self, tx: Transaction, queue: QueueRecord) -> list[MessageRow]:
        if not queue.options.requires_session or self.path.subqueue is not Subqueue.MAIN:
            raise NotAllowed(f"{str(self.path)!r} has no sessions: delete without session_id")
        assert self.session_id is not None
        standing = tx.sessions.messages(queue.queue_id, self.session_id)
        rows = tx.rows([one.key for one in standing if one.state in (FRESH, READY, SUSPECT)])
        return [row for _, row in sorted(rows.items()) if self._is_old(row)][: self.limit]

    def _is_old(self, row: MessageRow) -> bool:
        return self.before is None or row.enqueued < self.before


class DeleteMessages(Administering[int], frozen=True, kw_only=True):
    """Delete the first active messages of a queue for good; the answer is how many these were.

    `count`: at most so many. `session_id`: only messages of this session. `enqueued_before`: only those that
    came earlier. Messages that are locked, deferred or scheduled stay.
    """

    action = "delete_messages"
    final: ClassVar[bool] = True
    path: str
    count: Annotated[int, Meta(ge=1)]
    session_id: str | None = None
    enqueued_before: datetime | None = None

    def by(self, actor: str) -> Operation[int]:
        return self.of_part(None, actor)

    def of_part(self, subqueue: str | None, actor: str) -> Operation[int]:
        """Return the operation on a part of the queue. Raises InvalidOption."""
        return DeleteActive(
            EntityPath.parse(self.path, subqueue),
            whole("count", self.count, 1, MOST_MESSAGES),
            moment("enqueued_before", self.enqueued_before),
            None if self.session_id is None else text("session_id", self.session_id, LONGEST_ID, 0),
            actor,
        )
