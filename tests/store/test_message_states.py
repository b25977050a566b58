"""The table of a message's states is what happens, and the page shows it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lazaretto import Broker, ManualClock, Message, MessageState
from lazaretto.broker.broker import store_of
from lazaretto.model.clock import to_datetime

from .actions import Die, create, peek_one, send, take
from .message_states import TRANSITIONS, MessageEnd, MessageEvent, diagram

DOCS = Path(__file__).parents[2] / "docs" / "messages-and-settling.md"
S, E = MessageState, MessageEvent
LIFE = 3600.0


def test_the_page_shows_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in DOCS.read_text("utf-8")


class Life:
    """One message, brought into a state; then something happens to it."""

    def __init__(self, broker: Broker, clock: ManualClock, state: MessageState) -> None:
        self.broker, self.clock = broker, clock
        self.receiver = broker.receiver("q")
        self.message: Any = None
        getattr(self, f"become_{state.value}")()
        self.number = peek_one(broker).sequence_number

    def become_active(self) -> None:
        send(self.broker, b"x", time_to_live=LIFE)

    def become_locked(self) -> None:
        self.become_active()
        self.message = take(self.broker)

    def become_deferred(self) -> None:
        self.become_locked()
        self.receiver.defer(self.message)

    def become_scheduled(self) -> None:
        at = to_datetime(self.clock.now()) + timedelta(seconds=60)
        self.broker.sender("q").schedule(Message(b"x", time_to_live=LIFE), at)

    def become_delayed(self) -> None:
        self.become_locked()
        self.receiver.abandon(self.message, delay=60)

    def become_suspect(self) -> None:
        self.become_active()
        self.die_with_two()

    def die_with_two(self) -> None:
        """Let a worker die that holds the message, and another one, which is gone then."""
        if self.message is not None:
            self.receiver.release(self.message)
        other = send(self.broker, b"other")
        assert self.receiver.take(2, 0.0) is not None
        store_of(self.broker).run(Die())
        self.broker.receiver("q").complete(self.broker.receiver("q").receive_by_number(other))

    def happen(self, event: MessageEvent) -> None:
        happenings: dict[MessageEvent, Callable[[], object]] = {
            E.RECEIVE: lambda: take(self.broker),
            E.RECEIVE_AND_DELETE: lambda: take(self.broker, mode="receive_and_delete"),
            E.COMPLETE: lambda: self.receiver.complete(self.message),
            E.ABANDON: lambda: self.receiver.abandon(self.message),
            E.ABANDON_LATER: lambda: self.receiver.abandon(self.message, delay=60),
            E.DEFER: lambda: self.receiver.defer(self.message),
            E.RECEIVE_DEFERRED: lambda: self.receiver.receive_deferred(self.number),
            E.DEAD_LETTER: lambda: self.receiver.dead_letter(self.message),
            E.LOCK_EXPIRES: lambda: self.clock.advance(61),
            E.WORKER_DIES: self.die_with_two,
            E.TIME_COMES: lambda: self.clock.advance(61),
            E.CANCEL: lambda: self.broker.sender("q").cancel(self.number),
            E.EXPIRE: lambda: self.clock.advance(2 * LIFE),
        }
        happenings[event]()

    def state(self) -> MessageState | MessageEnd:
        if self.broker.peek("q", 10):
            return peek_one(self.broker).state
        dead = self.broker.queue("q").counts.dead_letter
        return MessageEnd.DEAD_LETTER if dead else MessageEnd.GONE


@pytest.mark.parametrize(("state", "event"), TRANSITIONS, ids=lambda one: one.name)
def test_each_step_of_the_table(
    broker: Broker, clock: ManualClock, state: MessageState, event: MessageEvent
) -> None:
    create(broker)
    life = Life(broker, clock, state)
    assert peek_one(broker).state is state
    life.happen(event)
    assert life.state() is TRANSITIONS[state, event]


def test_what_is_deferred_does_not_expire(broker: Broker, clock: ManualClock) -> None:
    create(broker)
    assert (S.DEFERRED, E.EXPIRE) not in TRANSITIONS
    life = Life(broker, clock, S.DEFERRED)
    life.happen(E.EXPIRE)
    assert life.state() is S.DEFERRED
