"""Sends messages to one queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import overload

import msgspec

from lazaretto.broker.steps import Do, Steps, steps_of, verb
from lazaretto.engine.command import check_numbers
from lazaretto.engine.messages.prepare import Sendable, prepare_all, several
from lazaretto.engine.messages.send import CancelScheduled, Send
from lazaretto.errors import BrokerClosed, InvalidOption, NotAllowed
from lazaretto.model.checks import is_aware, shown
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.messages import Message, as_message
from lazaretto.observe.traces import active
from lazaretto.store.records.messages import NewMessage
from lazaretto.store.sql.store import Store
from lazaretto.tools.closing import Closing


def later(messages: Sendable | Iterable[Sendable], at: datetime) -> Message | list[Message]:
    """Return one message or several that become receivable at a given time. Raises InvalidOption."""
    if not is_aware(at):
        raise InvalidOption(f"expected at to be a datetime with a time zone, got {shown(at)}")
    if isinstance(messages, Sendable):
        return msgspec.structs.replace(as_message(messages), scheduled_enqueue_time=at)
    return [msgspec.structs.replace(as_message(one), scheduled_enqueue_time=at) for one in several(messages)]


def sendable(path: str) -> EntityPath:
    """Parse a path and check that it can be sent to. Raises InvalidPath, NotAllowed."""
    parsed = EntityPath.parse(path)
    if parsed.subqueue is not Subqueue.MAIN:
        raise NotAllowed(f"nothing can be sent to the subqueue {path!r}; send to {parsed.queue!r}")
    return parsed


def send_operation(path: EntityPath, via: EntityPath | None, messages: list[NewMessage]) -> Send:
    """Return the operation that sends messages to an entity, directly or through another."""
    return Send(path, messages) if via is None else Send(via, messages, path.queue)


class Sender(Closing):
    """Sends to a queue or topic. Threads can share it. A context manager."""

    def __init__(self, store: Store, path: EntityPath, via: EntityPath | None = None) -> None:
        self._store = store
        self._path = path
        self._via = via
        self._closed = False

    @overload
    def send(self, messages: Sendable) -> int: ...
    @overload
    def send(self, messages: Iterable[Sendable]) -> list[int]: ...
    @verb
    def send(self, messages: Sendable | Iterable[Sendable]) -> Steps[int | list[int]]:
        """Send one message, or several in one commit. When the call returns, they are on disk.

        A received or peeked message is sent as a copy, with its body and everything a sender can set,
        including the id.

        Returns the sequence number, or a list of them. When sending via another queue, these are the numbers
        in that queue. A scheduled message gets another number when it becomes active; use this one to
        cancel it. Raises EntityNotFound, QueueDisabled, QuotaExceeded, InvalidMessage or MessageTooLarge;
        then nothing was sent.
        """
        if self._closed:
            self._refuse_closed()
        prepared = prepare_all(messages)
        if not prepared:
            return []
        tracing = active(self._store)
        numbers: list[int]
        if tracing is None:
            numbers = yield Do(send_operation(self._path, self._via, prepared))
        else:
            numbers = yield from tracing.sending(self._path, prepared, self._step)
        return numbers[0] if isinstance(messages, Sendable) else numbers

    def _step(self, messages: list[NewMessage]) -> Do:
        return Do(send_operation(self._path, self._via, messages))

    @overload
    def schedule(self, messages: Sendable, at: datetime) -> int: ...
    @overload
    def schedule(self, messages: Iterable[Sendable], at: datetime) -> list[int]: ...
    @verb
    def schedule(self, messages: Sendable | Iterable[Sendable], at: datetime) -> Steps[int | list[int]]:
        """Send messages that become receivable at a given time (an aware datetime)."""
        send: Callable[..., int | list[int]] = self.send
        return (yield from steps_of(send, later(messages, at)))

    @verb
    def cancel(self, sequence_numbers: int | Iterable[int]) -> Steps[None]:
        """Delete scheduled messages: all of them, or none and MessageNotFound."""
        self._refuse_closed()
        yield Do(CancelScheduled(self._path, check_numbers(sequence_numbers)))

    def close(self) -> None:
        """Stop sending. Messages that were sent stay sent."""
        self._closed = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BrokerClosed("this sender is closed")
