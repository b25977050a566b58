"""A handler's context: facts about its message, and the effects it may request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lazaretto.engine.messages.prepare import Sendable, prepare_all
from lazaretto.engine.messages.settle import COMPLETE, Settlement
from lazaretto.errors import InvalidMessage, InvalidOption, NotAllowed, StoreError, TransactionError
from lazaretto.model.checks import shown
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.failure import Failure, failure_of, kept
from lazaretto.model.messages import Past, ReceivedMessage
from lazaretto.model.policy import Outcome
from lazaretto.store.records.messages import NewMessage
from lazaretto.store.sql.store import Store

_encoder = msgspec.msgpack.Encoder()
encode_effects = _encoder.encode

_VERDICTS = {
    "defer": Outcome.DEFERRED,
    "dead_letter": Outcome.DEAD_LETTERED,
    "reject": Outcome.DEAD_LETTERED,
    "invalid": Outcome.INVALID,
}


class Effects(msgspec.Struct, array_like=True):
    """The effects that a handler requested, for the commit that settles its message.

    `verdict`: None (complete), "defer", "dead_letter", "reject", "invalid" or "skipped". `ran`: when the
    handler began and ended, in nanoseconds since 1970, where somebody wants to know it.
    """

    verdict: str | None = None
    reason: str | None = None
    description: str | None = None
    failure: Failure | None = None
    sends: list[tuple[str, list[NewMessage]]] = []
    statements: list[tuple[str, Any]] = []
    ran: tuple[int, int] | None = None


_decoder = msgspec.msgpack.Decoder(Effects)
decode_effects = _decoder.decode


class LastError(msgspec.Struct, frozen=True):
    """The latest error of a message's earlier attempts."""

    type: str
    message: str | None


def settlement_of(effects: Effects) -> Settlement:
    """Return how the attempt ends of a handler that has returned."""
    if effects.verdict is None:
        return COMPLETE
    return Settlement(
        _VERDICTS[effects.verdict],
        effects.failure,
        reason=effects.reason,
        description=effects.description,
        reject=effects.verdict == "reject",
    )


class HandlerContext:
    """A handler's context, besides its message.

    `attempt`: the number of this delivery in the message's life, from 1. `delivery_count`: as in Service Bus,
    0 at first. `cycle`: retry cycles used. `move_count`: moves between the queue and its subqueues (MSMQ's
    MoveCount). `last_error`: of the previous attempt, or None.

    Sends and SQL take effect in the commit that settles the message. If the handler fails, they are
    discarded.
    """

    def __init__(self, message: ReceivedMessage, past: Past | None) -> None:
        self._message = message
        self.move_count = past.moves if past else 0
        self.last_error = LastError(past.error_type, past.error_message) if past and past.error_type else None
        self._effects: Effects | None = None

    @property
    def attempt(self) -> int:
        return self._message.attempt

    @property
    def delivery_count(self) -> int:
        return self._message.delivery_count

    @property
    def cycle(self) -> int:
        return self._message.cycle

    def send(self, path: str, messages: Sendable | Iterable[Sendable]) -> None:
        """Send messages to a queue with the settling commit. Invalid messages raise an error immediately."""
        target = EntityPath.parse(path)
        if target.subqueue is not Subqueue.MAIN:
            raise NotAllowed(f"nothing can be sent to the subqueue {path!r}; send to {target.queue!r}")
        try:
            prepared = prepare_all(messages)
        except InvalidMessage as error:
            # The handler is at fault, not the message.
            raise TransactionError(f"a message to {path!r} cannot be sent: {error}") from error
        if prepared:
            self._asked().sends.append((path, prepared))

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> None:
        """Run your own SQL on the store's database with the settling commit. It returns no rows.

        Parameters: None, bool, int, float, str, bytes. If the SQL fails, the message has failed.
        """
        if not isinstance(sql, str):
            raise InvalidOption(f"expected SQL as text, got {shown(sql)}")
        values = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
        for value in values.values() if isinstance(values, dict) else values:
            if value is not None and not isinstance(value, bool | int | float | str | bytes):
                raise InvalidOption(
                    f"expected SQL parameters of None, bool, int, float, str or bytes, got {shown(value)}"
                )
        self._asked().statements.append((sql, values))

    def defer(self) -> None:
        """Keep the message until it is received by its sequence number."""
        self._decide("defer")

    def dead_letter(self, reason: str | None = None, description: str | None = None) -> None:
        """Dead-letter the message; sends of this context still take effect."""
        self._decide("dead_letter", reason, description)

    def reject(self, reason: str | None = None, description: str | None = None) -> None:
        """Return the message to its sender's dead-letter queue, with a negative acknowledgement."""
        self._decide("reject", reason, description)

    def invalid(self, error: BaseException | str | None = None) -> None:
        """Declare that the message can never be processed. The policy's `on_invalid` applies at once."""
        self._decide("invalid")
        self._asked().failure = failure_of(error)

    def _decide(self, verdict: str, reason: str | None = None, description: str | None = None) -> None:
        reason, description = kept("reason", reason), kept("description", description)
        effects = self._asked()
        if effects.verdict is not None:
            raise NotAllowed(f"the message already has a verdict: {effects.verdict}")
        effects.verdict, effects.reason, effects.description = verdict, reason, description

    def _asked(self) -> Effects:
        if self._effects is None:
            self._effects = Effects(sends=[], statements=[])
        return self._effects

    @property
    def effects(self) -> Effects | None:
        """The effects requested so far, or None."""
        return self._effects


def store_fault(error: BaseException, store: Store) -> StoreError | None:
    """Return the error as one of the store's if the store is to blame for it; None if its caller is."""
    if isinstance(error, store.errors):
        return store.own_fault(error)
    cause = error.__cause__
    if type(error) is StoreError and isinstance(cause, store.errors):
        # Found only at the commit, for example by a deferred constraint.
        return error if store.own_fault(cause) is not None else None
    return error if isinstance(error, StoreError) else None
