"""Sends one message for an operator, with an entry in the audit log."""

from __future__ import annotations

import dataclasses

from lazaretto.engine.log import audit
from lazaretto.engine.messages.send import Send
from lazaretto.model.entities import EntityPath
from lazaretto.store.records.messages import NewMessage
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction


@dataclasses.dataclass(slots=True)
class SendMessage(Operation[int]):
    """Send a message to a queue or topic; return its sequence number there."""

    path: EntityPath
    message: NewMessage
    actor: str

    def run(self, tx: Transaction) -> int:
        (number,) = Send(self.path, [self.message]).run(tx)
        detail = {"sequence_number": number, "message_id": self.message.message_id}
        audit(tx, self.actor, "send_message", self.path.queue, **detail)
        return number
