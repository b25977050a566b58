"""Runs an operation only if nobody has changed the settings of an entity since they were looked at."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from lazaretto.engine.entities.queues import require_queue
from lazaretto.errors import ChangedMeanwhile
from lazaretto.model.clock import to_datetime
from lazaretto.model.descriptions import version_of
from lazaretto.model.entities import EntityKind, EntityPath
from lazaretto.model.filters.rules import decode_rules, encode_rules
from lazaretto.store.records.messages import Again
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")


def entity_version(tx: Transaction, path: EntityPath) -> str:
    """Return the version of an entity's settings. Raises EntityNotFound."""
    record = require_queue(tx, path)
    rules = encode_rules(decode_rules(record.rules)) if record.kind is EntityKind.SUBSCRIPTION else b""
    return version_of(record.options, record.status, to_datetime(record.created), rules)


@dataclasses.dataclass(slots=True)
class IfVersion(Operation[T]):
    """Run an operation if an entity's settings still have a version. Raises ChangedMeanwhile."""

    path: EntityPath
    version: str
    operation: Operation[T]

    def run(self, tx: Transaction) -> T | Again:
        require_version(tx, self.path, self.version)
        return self.operation.run(tx)


def require_version(tx: Transaction, path: EntityPath, version: str) -> None:
    """Raise ChangedMeanwhile unless an entity has the version that somebody saw."""
    current = entity_version(tx, path)
    if current != version:
        raise ChangedMeanwhile(
            f"expected the settings of {path.queue!r} in version {version!r}, got {current!r}: somebody has "
            "changed them; look again"
        )
