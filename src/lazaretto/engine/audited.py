"""Runs an operation, and writes who asked for it into the audit log."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from lazaretto.edits.edit import Edit
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.log import audit, audit_all
from lazaretto.model.entities import EntityPath
from lazaretto.store.records.messages import Again
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Making(Protocol[T_co]):
    """An operation that tells which entities it has made."""

    @property
    def made(self) -> Sequence[str]: ...
    def run(self, tx: Transaction, /) -> T_co | Again: ...


@dataclasses.dataclass(slots=True)
class Audited(Operation[T]):
    """Run an operation that creates entities, and write an entry about each that it has made."""

    operation: Making[T]
    actor: str
    action: str

    def run(self, tx: Transaction) -> T | Again:
        answer = self.operation.run(tx)
        if self.operation.made and not isinstance(answer, Again):
            audit_all(tx, self.actor, self.action, self.operation.made)
        return answer


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
        told = {} if edit is None else {"edit": edit.describe(), "edit_digest": edit.digest}
        queue = require_queue(tx, self.path).path
        audit(tx, self.actor, "try", queue, sequence_number=self.number, handler=self.handler, **told)
