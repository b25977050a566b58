"""Runs changes that are given as values, at most once under an idempotency key.

A change can also ask that nobody has changed an entity's settings since they were looked at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from lazaretto.engine.command import Act, Command, CommandOf, Once, first_answer
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.log import acting
from lazaretto.engine.outcome.send_back import Resubmit
from lazaretto.errors import ChangedMeanwhile, InvalidOption, NotAllowed
from lazaretto.model.checks import shown, text
from lazaretto.model.clock import to_datetime
from lazaretto.model.descriptions import version_of
from lazaretto.model.entities import EntityKind, EntityPath
from lazaretto.model.filters.rules import decode_rules, encode_rules
from lazaretto.model.records.plain import plain
from lazaretto.observe.traces.letters import resubmitting
from lazaretto.store.records.messages import Again
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.store import Store
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


class Maker:
    """The base of what has a method for each change."""

    _store: Store

    def _run(self, act: Callable[[Transaction], T]) -> T:
        """Run a function of a transaction as one commit."""
        return self._store.run(Act(act))

    def _make(self, command: CommandOf[T], actor: str | None) -> T:
        """Make a change as somebody, and return its answer."""
        return self._store.run(command.operation(self._store, acting(actor)))


#: The most characters of an idempotency key.
_LONGEST_KEY: Final = 200


def _encoded(answer: Any) -> bytes:
    return msgspec.json.encode(plain(answer))


def _seen(command: Command, version: str) -> tuple[EntityPath, str]:
    """Return what a command changes, and the version that somebody saw. Raises InvalidOption."""
    path = command.entity()
    if path is None:
        raise InvalidOption(
            f"expected no version: {command.command_name} changes no queue, topic, subscription"
        )
    return path, text("version", version, _LONGEST_KEY)


class CommandDesk:
    """Runs changes that are given as values."""

    _store: Store

    def run(
        self,
        command: Command,
        *,
        actor: str | None = None,
        idempotency_key: str | None = None,
        version: str | None = None,
    ) -> Any:
        """Make a change, and return its answer as JSON values.

        With an `idempotency_key`, the same command by the same actor is run once: for 24 hours the key gives
        the first answer again. `version`: that of the entity's description, if nobody may have changed the
        entity since. Raises IdempotencyConflict for another command under the key, ChangedMeanwhile, and what
        the broker's verb raises.
        """
        if not isinstance(command, Command):
            raise InvalidOption(f"expected a command, got {shown(command)}")
        if idempotency_key is not None:
            text("idempotency_key", idempotency_key, _LONGEST_KEY)
            if command.shown_once:
                raise NotAllowed("expected no idempotency key: the answer has a secret, which is shown once")
        who = acting(actor)
        try:
            asked = msgspec.json.encode((command.command_name, command))
        except UnicodeEncodeError:
            raise InvalidOption(f"expected valid Unicode, got a lone surrogate in {shown(command)}") from None
        digest = hashlib.blake2b(asked, digest_size=16).digest()
        seen = None if version is None else _seen(command, version)
        if idempotency_key is not None:
            # Some read before they run, what may be gone since the first answer.
            first = self._store.read(lambda tx: first_answer(tx, idempotency_key, who, digest))
            if first is not None:
                return command.told(msgspec.json.decode(first))
        operation = command.operation(self._store, who)
        if seen is not None:
            operation = IfVersion(*seen, operation)
        with _tracing(self._store, command):
            if idempotency_key is None:
                answer = _encoded(self._store.run(operation))
            else:
                answer = self._store.run(Once(idempotency_key, who, digest, operation, _encoded))
        return command.told(msgspec.json.decode(answer))


def _tracing(store: Store, command: Command) -> contextlib.AbstractContextManager[None]:
    if isinstance(command, Resubmit):
        return resubmitting(store, command.place, command.numbers)
    return contextlib.nullcontext()
