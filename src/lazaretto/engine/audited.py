"""Writes into the audit log what changes nothing: exports, and handlers that are tried."""

from __future__ import annotations

import dataclasses
from typing import Any

from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.log import audit
from lazaretto.model.edits.edit import Edit
from lazaretto.model.entities import EntityPath
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction


@dataclasses.dataclass(slots=True)
class NoteAct(Operation[None]):
    """Note something that changes nothing, such as an export."""

    actor: str
    action: str
    queue: str
    detail: dict[str, Any]

    def run(self, tx: Transaction) -> None:
        audit(tx, self.actor, self.action, self.queue, **self.detail)


@dataclasses.dataclass(slots=True)
class NoteTry(Operation[None]):
    """Note that somebody has a handler run on a dead letter, as an edit would leave it, to see what it does.

    Raises EntityNotFound.
    """

    path: EntityPath
    number: int
    handler: str
    edit: Edit | None
    actor: str

    def run(self, tx: Transaction) -> None:
        edit = self.edit
        details = {} if edit is None else {"edit": edit.describe(), "edit_digest": edit.digest}
        queue = require_queue(tx, self.path).path
        audit(tx, self.actor, "try", queue, sequence_number=self.number, handler=self.handler, **details)
