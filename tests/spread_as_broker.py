"""A spread with the verbs of a broker, for tests that know of one store. Its messages have plain numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from lazaretto import Broker, PeekedMessage, QueueDescription, Receiver
from lazaretto.receiver import NextSession
from lazaretto.spread import Placed, SpreadBroker, SpreadReceiver, SpreadSender, connect
from lazaretto.tools.closing import Closing

#: Verbs that are done in each store.
_EACH = (
    "add_rule", "create_queue", "create_queues", "create_subscription", "create_topic", "delete_queue",
    "delete_subscription", "delete_topic", "remove_rule", "set_status", "update_queue", "update_rule",
    "update_subscription", "update_topic",
)  # fmt: skip


#: Tests of what a spread leaves to the brokers of its stores.
LEFT_TO_STORES = {
    "a message has a place, not only a number": ("test_cancelled_it_can_be_sent_again[sqlite-spread-p]",),
    "duplicates are found where a queue detects them, not where it forwards to": (
        "TestForwardTo::test_duplicates_are_dropped_at_the_destination[",
    ),
    "messages of a store's own receiver are settled by it": (
        "TestSettling::test_by_a_message_of_another_store[",
    ),
    "a session is received from through its broker": ("-expected session to be text",),
    "the next session is accepted, not received from": ("TestMuchIsDue::test_the_next_session[",),
}


def left_to_stores(node: str) -> str | None:
    """Return what a test is about that a spread leaves to its stores, None if it is nothing."""
    return next((what for what, tests in LEFT_TO_STORES.items() if any(t in node for t in tests)), None)


class SpreadAsBroker(Closing):
    """A spread that is at home in its first store, which also does all that a spread leaves to its stores."""

    def __init__(self, spread: SpreadBroker) -> None:
        self._spread = spread
        self._home = spread.broker_at(0)

    def __getattr__(self, name: str) -> Any:
        if name in _EACH:
            return lambda *given, **named: self._spread.each(
                lambda broker: getattr(broker, name)(*given, **named)
            )[0]
        return getattr(self._home, name)

    def sender(self, path: str, *, via: str | None = None) -> Any:
        return self._home.sender(path, via=via) if via else _Sender(self._spread.sender(path))

    def receiver(self, path: str, *, session: str | NextSession | None = None, **named: Any) -> Any:
        if session is None:
            return _Receiver(self._spread.receiver(path, **named), self._home.receiver(path, **named))
        broker = self._spread.broker_of(session) if isinstance(session, str) else self._home
        return broker.receiver(path, session=session, **named)

    def peek(self, path: str, max_messages: int = 1, *given: Any, **named: Any) -> list[PeekedMessage]:
        found = self._spread.each(lambda broker: broker.peek(path, max_messages, *given, **named))
        return [message for some in found for message in some][:max_messages]

    def queue(self, path: str) -> QueueDescription:
        return dataclasses.replace(self._home.queue(path), counts=self._spread.counts(path))

    def close(self) -> None:
        self._spread.close()


class _Sender(Closing):
    def __init__(self, inner: SpreadSender) -> None:
        self._inner = inner

    def send(self, messages: Any) -> int | list[int]:
        return _numbers(self._inner.send(messages))

    def schedule(self, messages: Any, at: datetime) -> int | list[int]:
        return _numbers(self._inner.schedule(messages, at))

    def cancel(self, numbers: int | Iterable[int]) -> None:
        self._inner.cancel(_places(numbers))

    def close(self) -> None:
        self._inner.close()


class _Receiver(Closing):
    """The verbs of a spread's receiver; the others are the home's."""

    def __init__(self, inner: SpreadReceiver, home: Receiver) -> None:
        self._inner = inner
        self._home = home

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner if hasattr(self._inner, name) else self._home, name)

    def receive_deferred(self, numbers: int | Iterable[int]) -> Any:
        return self._inner.receive_deferred(_places(numbers))

    def receive_by_number(self, numbers: int | Iterable[int]) -> Any:
        return self._inner.receive_by_number(_places(numbers))

    def close(self) -> None:
        self._inner.close()
        self._home.close()


def _numbers(placed: Placed | list[Placed]) -> int | list[int]:
    return placed.sequence_number if isinstance(placed, Placed) else [one.sequence_number for one in placed]


def _places(numbers: int | Iterable[int]) -> Any:
    if isinstance(numbers, Iterable) and not isinstance(numbers, str):
        return [Placed(0, number) for number in numbers]
    return Placed(0, numbers)


def connected(urls: list[str], **options: Any) -> Broker:
    """Open a spread as a broker."""
    spread: Any = SpreadAsBroker(connect(urls, home=0, **options))
    found: Broker = spread
    return found
