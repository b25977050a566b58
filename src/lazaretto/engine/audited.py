"""Runs an operation, and writes who asked for it into the audit log."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from lazaretto.engine.log import audit
from lazaretto.store.contract.transaction_contract import Again, Operation, Transaction

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class Audited(Operation[T]):
    """Run an operation that writes no entry itself, and write one about the entity at a path."""

    operation: Operation[T]
    actor: str
    action: str
    path: str

    def run(self, tx: Transaction) -> T | Again:
        answer = self.operation.run(tx)
        if not isinstance(answer, Again):
            audit(tx, self.actor, self.action, self.path)
        return answer
