"""Makes an entity anew: its settings stay, its messages and its history go."""

from __future__ import annotations

import dataclasses

from lazaretto.engine.entities.queues import delete, require_queue
from lazaretto.engine.routing.forwards import touch
from lazaretto.model.entities import EntityKind, EntityPath
from lazaretto.store.records.access import SIGNING
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction


@dataclasses.dataclass(slots=True)
class Recreate(Operation[None]):
    """Put an entity of the same settings in the place of one; of a topic, with its subscriptions.

    All messages go at once, whatever their state. Raises EntityNotFound.
    """

    path: EntityPath
    actor: str

    def run(self, tx: Transaction) -> None:
        record = require_queue(tx, self.path)
        topic = record.kind is EntityKind.TOPIC
        subscriptions = tx.topics.subscriptions(record.queue_id) if topic else []
        keys = tx.access.setting(f"{SIGNING}{record.queue_id}")
        delete(tx, [*subscriptions, record], self.actor)
        made = _insert(tx, record, record.topic_id)
        if keys is not None:
            tx.access.save_setting(f"{SIGNING}{made.queue_id}", keys)
        for one in subscriptions:
            _insert(tx, one, made.queue_id)


def _insert(tx: Transaction, like: QueueRecord, topic_id: int | None) -> QueueRecord:
    made = tx.queues.insert(like.path, like.options, like.kind, topic_id, like.rules)
    if made.status is not like.status:
        made = tx.queues.save(dataclasses.replace(made, status=like.status))
    touch(tx, made)
    return made
