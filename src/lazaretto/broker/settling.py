"""The verbs that settle messages, shared by receivers, transactions and dialog transactions."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from lazaretto.broker.steps import (
    Do,
    Look,
    Steps,
    run_steps,
)
from lazaretto.engine.messages.locks import held_of
from lazaretto.engine.messages.settle import COMPLETE, RELEASE, Settle, Settled, Settlement
from lazaretto.errors import (
    InvalidOption,
    MessageLockLost,
)
from lazaretto.model.checks import seconds, shown
from lazaretto.model.failure import failure_of, kept
from lazaretto.model.headers import PropertyValue, check_properties
from lazaretto.model.messages import ReceivedMessage, Suspects
from lazaretto.model.policy import Outcome
from lazaretto.model.sized import types_of
from lazaretto.observe.traces import active
from lazaretto.store.sql.store import Store

M = TypeVar("M")

Messages = ReceivedMessage | Iterable[ReceivedMessage]
Mode = Literal["peek_lock", "receive_and_delete"]


class NextSession(enum.Enum):
    """The type of NEXT_SESSION."""

    NEXT_SESSION = "next session"


#: As `session=` of a receiver: the next session that is free and has something to receive.
NEXT_SESSION: Final = NextSession.NEXT_SESSION


class SuspectChoice(Protocol):
    """The part of a connection that tries suspects alone."""

    def choose(self) -> Suspects:
        """Return what a receive that begins now does about suspects."""
        ...

    def wants_skipped(self) -> bool:
        """Return whether a receive that skipped a suspect ends at once, so that it can be tried."""
        ...


class SettleVerbs(ABC, Generic[M]):
    """Settles received messages. Each verb takes one message or several.

    A receiver settles them at once, in one commit that is on disk when the call returns. A transaction
    settles them when it commits. If the lock on any message is lost, none is settled, and MessageLockLost
    (SessionLockLost) is raised.
    """

    @abstractmethod
    def _settle(self, messages: M | Iterable[M], settlement: Settlement) -> None:
        """Settle messages, or note what the commit is to do with them."""

    def complete(self, messages: M | Iterable[M]) -> None:
        """Complete the messages: they are processed, and deleted."""
        self._settle(messages, COMPLETE)

    def abandon(
        self,
        messages: M | Iterable[M],
        *,
        error: BaseException | str | None = None,
        delay: float | None = None,
        properties: Mapping[str, PropertyValue] | None = None,
    ) -> None:
        """Count a failed attempt; the poison policy decides what happens next.

        `error` is kept in the history. `delay`: seconds until the next attempt, if there is one.
        `properties`: application properties to add to the messages.
        """
        wait = None if delay is None else seconds("delay", delay)
        failure = failure_of(error)
        self._settle(messages, Settlement(Outcome.FAILED, failure, wait, **_changes(properties)))

    def invalid(self, messages: M | Iterable[M], *, error: BaseException | str | None = None) -> None:
        """Mark the messages as invalid: no retries, the policy's `on_invalid` applies at once.

        In a dialog, the other side gets an error at once.
        """
        self._settle(messages, Settlement(Outcome.INVALID, failure_of(error)))

    def dead_letter(
        self,
        messages: M | Iterable[M],
        *,
        reason: str | None = None,
        description: str | None = None,
        error: BaseException | str | None = None,
        properties: Mapping[str, PropertyValue] | None = None,
    ) -> None:
        """Move the messages to the dead-letter subqueue. Long texts are shortened in the middle.

        A dialog continues without the message. `properties`: as in `abandon`.
        """
        settlement = Settlement(
            Outcome.DEAD_LETTERED,
            failure_of(error),
            reason=kept("reason", reason),
            description=kept("description", description),
            **_changes(properties),
        )
        self._settle(messages, settlement)

    def release(self, messages: M | Iterable[M]) -> None:
        """Release the messages without counting an attempt."""
        self._settle(messages, RELEASE)


class MessageVerbs(SettleVerbs[ReceivedMessage]):
    """The verbs for messages of ordinary queues, which can be deferred too."""

    def defer(self, messages: Messages, *, properties: Mapping[str, PropertyValue] | None = None) -> None:
        """Keep the messages until they are received by number. `properties`: as in `abandon`."""
        self._settle(messages, Settlement(Outcome.DEFERRED, **_changes(properties)))


def _changes(properties: Mapping[str, PropertyValue] | None) -> dict[str, Any]:
    """Return what a settlement changes of a message's properties. Raises InvalidMessage, MessageTooLarge."""
    if properties is None:
        return {}
    return {"properties": check_properties(properties), "types": types_of(properties)}


def settlements(messages: Messages, settlement: Settlement) -> list[Settled]:
    """Return the settlements of one call: one message or several, all settled in the same way."""
    if isinstance(messages, ReceivedMessage):
        return [Settled(messages, settlement)]
    items = list(messages) if type(messages) is list or isinstance(messages, Iterable) else [messages]
    for message in items:
        if not isinstance(message, ReceivedMessage):
            raise InvalidOption(f"expected received messages, got {shown(message)}")
    return [Settled(message, settlement) for message in items]


def settle(store: Store, entries: Sequence[Settled]) -> None:
    """Settle messages in one commit: all, or none and MessageLockLost, which lists the lost ones."""
    run_steps(store, settling(store, entries))


def settling(store: Store, entries: Sequence[Settled]) -> Steps[None]:
    """Return the steps of `settle`."""
    tracing = active(store)
    steps = _settling(entries)
    return steps if tracing is None or not entries else tracing.settling(entries, steps)


def _settling(entries: Sequence[Settled]) -> Steps[None]:
    if not entries:
        return
    try:
        yield Do(Settle(entries))
    except MessageLockLost as error:
        if len(entries) > 1:
            keys = yield Look(lambda tx: held_of(tx, entries))
            lost = [e.message.sequence_number for e in entries if e.message.key not in keys]
            # None lost: a message was named twice.
            raise MessageLockLost(str(error), lost or error.sequence_numbers) from None
        raise


def check_mode(mode: object) -> None:
    """Raise InvalidOption for what is no mode of receiving."""
    if not isinstance(mode, str) or mode not in ("peek_lock", "receive_and_delete"):
        raise InvalidOption(f"expected mode to be peek_lock or receive_and_delete, got {shown(mode)}")
