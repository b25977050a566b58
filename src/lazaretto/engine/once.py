"""Runs an operation at most once under an idempotency key, and gives its first answer again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from lazaretto.errors import IdempotencyConflict
from lazaretto.store.records.access import CommandRecord
from lazaretto.store.records.messages import Again
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: How long a key is known, in microseconds.
KEPT = 86_400 * 1_000_000


def first_answer(tx: Transaction, key: str, actor: str, digest: bytes) -> bytes | None:
    """Return the first answer to a command under a key; None: it was not run. Raises IdempotencyConflict."""
    answer = tx.commands.find(key)
    if answer is None or answer.time <= tx.now - KEPT:
        return None
    if (answer.actor, answer.digest) != (actor, digest):
        raise IdempotencyConflict(
            f"expected the command that {key!r} was first used for, got another one; "
            "give each command a key of its own"
        )
    return answer.answer


@dataclasses.dataclass(slots=True)
class Once(Operation[bytes]):
    """Run an operation unless its key is known; return its answer, or the first one, as JSON.

    `digest`: of the command, which must be the same each time. Raises IdempotencyConflict.
    """

    key: str
    actor: str
    digest: bytes
    operation: Operation[Any]
    encode: Callable[[Any], bytes]

    def run(self, tx: Transaction) -> bytes | Again:
        first = first_answer(tx, self.key, self.actor, self.digest)
        if first is not None:
            return first
        answer = self.operation.run(tx)
        if isinstance(answer, Again):
            return answer
        encoded = self.encode(answer)
        tx.commands.keep(CommandRecord(self.key, str(self.actor), self.digest, encoded, tx.now))
        return encoded
