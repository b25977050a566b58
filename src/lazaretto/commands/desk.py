"""Runs changes that are given as values, at most once under an idempotency key."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from lazaretto.commands.access_commands import (
    CreateLink,
    CreateToken,
    EndSessions,
    GrantRole,
    RemovePerson,
    RevokeToken,
    SetFourEyes,
    WithdrawRole,
)
from lazaretto.commands.command import Command
from lazaretto.commands.dialog_commands import (
    ApplyDefinitions,
    CleanUpConversation,
    DropDefinition,
    EndConversation,
    ResumeConversation,
    RevokeClaim,
)
from lazaretto.commands.entity_commands import (
    AddRule,
    CreateQueue,
    CreateQueues,
    CreateSubscription,
    CreateTopic,
    DeleteQueue,
    DeleteSubscription,
    DeleteTopic,
    FreeSession,
    RemoveRule,
    ResumeQueue,
    ResumeSession,
    SetBreaker,
    SetStatus,
    UpdateQueue,
    UpdateSubscription,
    UpdateTopic,
)
from lazaretto.commands.letter_commands import (
    AcknowledgeCause,
    ApplyRepair,
    CanaryRepair,
    CancelRepair,
    DeletePurged,
    MergeCauses,
    MoveDeadLetters,
    NoteCause,
    PaceRepair,
    PauseRepair,
    PlanRepair,
    Purge,
    PurgeCause,
    RecountCauses,
    Republish,
    Restore,
    RestorePurged,
    Resubmit,
    ResumeRepair,
    SplitCause,
    UndoRepair,
    UnmergeCauses,
)
from lazaretto.commands.message_commands import DeleteMessages, SendMessage
from lazaretto.commands.redaction_commands import RemoveRedaction, SetRedaction
from lazaretto.dialogs import Dialogs
from lazaretto.engine.entities.versions import IfVersion
from lazaretto.engine.log import acting
from lazaretto.engine.once import Once, first_answer
from lazaretto.errors import InvalidOption, NotAllowed
from lazaretto.model.checks import shown, text
from lazaretto.model.entities import EntityPath
from lazaretto.records.plain import plain
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.store import Store

if TYPE_CHECKING:
    from lazaretto.broker import Broker

T = TypeVar("T")

#: The most characters of an idempotency key.
_LONGEST_KEY: Final = 200

_ALL: Final[Sequence[type[Command]]] = (
    CreateQueue, CreateQueues, UpdateQueue, DeleteQueue, CreateTopic, UpdateTopic, DeleteTopic,
    CreateSubscription, UpdateSubscription, DeleteSubscription, AddRule, RemoveRule, SetStatus, ResumeQueue,
    ResumeSession, SetBreaker, Resubmit, MoveDeadLetters, Republish, Purge, Restore, DeletePurged,
    MergeCauses, UnmergeCauses, SplitCause, RecountCauses, NoteCause, AcknowledgeCause, PlanRepair,
    CanaryRepair, ApplyRepair, PauseRepair, ResumeRepair, CancelRepair, UndoRepair, PaceRepair, GrantRole,
    WithdrawRole, RemovePerson, EndSessions, CreateToken, RevokeToken, CreateLink, SetFourEyes, SetRedaction,
    RemoveRedaction, RevokeClaim, EndConversation, CleanUpConversation, ResumeConversation,
    ApplyDefinitions, DropDefinition, PurgeCause, RestorePurged, SendMessage, DeleteMessages, FreeSession,
)  # fmt: skip


#: All commands by their names, such as "create_queue".
COMMANDS: Final[dict[str, type[Command]]] = {kind.command_name: kind for kind in _ALL}


class _Answered(BaseException):
    """The operation of a command has its answer: what a verb makes of it is not needed."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer


class _CommandStore:
    """A store for one command: runs the verb's operation, under a key if there is one.

    `seen`: the entity that it changes, and the version that it must have.
    """

    def __init__(
        self,
        store: Store,
        key: str | None,
        actor: str,
        digest: bytes,
        seen: tuple[EntityPath, str] | None,
    ) -> None:
        self._store, self._key, self._actor, self._digest = store, key, actor, digest
        self._seen = seen

    def run(self, operation: Operation[T]) -> T:
        if self._seen is not None:
            operation = IfVersion(*self._seen, operation)
        if self._key is None:
            raise _Answered(_encoded(self._store.run(operation)))
        raise _Answered(self._store.run(Once(self._key, self._actor, self._digest, operation, _encoded)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


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
            told = msgspec.json.encode((command.command_name, command))
        except UnicodeEncodeError:
            raise InvalidOption(f"expected valid Unicode, got a lone surrogate in {shown(command)}") from None
        digest = hashlib.blake2b(told, digest_size=16).digest()
        seen = None if version is None else _seen(command, version)
        if idempotency_key is not None:
            # Some verbs read before they run, what may be gone since the first answer.
            first = self._store.read(lambda tx: first_answer(tx, idempotency_key, who, digest))
            if first is not None:
                return command.told(msgspec.json.decode(first))
        broker = copy.copy(cast("Broker", self))
        store = _CommandStore(self._store, idempotency_key, who, digest, seen)
        broker._store = cast("Any", store)
        broker.dialogs = Dialogs(broker._store)
        try:
            command.apply(broker, who)
        except _Answered as answered:
            return command.told(msgspec.json.decode(answered.answer))
        raise NotAllowed("expected something to change, got a command that changes nothing")
