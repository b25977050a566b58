"""Runs an operation, and writes who asked for it into the audit log."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from lazaretto.engine.log import audit_all
from lazaretto.store.contract.transaction_contract import Again, Operation, Transaction

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class Audited(Operation[T]):
    """Run an operation that writes no entry itself, and write one about each of some entities."""

    operation: Operation[T]
    actor: str
    action: str
    paths: Sequence[str]

    def run(self, tx: Transaction) -> T | Again:
        answer = self.operation.run(tx)
        if self.paths and not isinstance(answer, Again):
            audit_all(tx, self.actor, self.action, self.paths)
        return answer
