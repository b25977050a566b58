"""The presence of those who take messages in a process: how long each is told of, and how many are."""

from __future__ import annotations

from lazaretto import ManualClock
from lazaretto.model.actors import RECEIVER, Taker
from lazaretto.store.runtime.notices import Presence

ORDERS = Taker("orders", RECEIVER, "shop")


class Holder:
    """One who takes messages."""


def names(presence: Presence) -> list[str]:
    return [one.name for one in presence.records()]


def test_one_that_is_gone_is_told_of_for_a_minute() -> None:
    clock = ManualClock()
    presence = Presence(clock)
    holder, lost = Holder(), Holder()
    presence.enter(holder, ORDERS)
    presence.enter(lost, ORDERS._replace(name="lost"))
    del lost
    clock.advance(50)
    assert names(presence) == ["lost", "shop"]
    clock.advance(20)
    assert names(presence) == ["shop"]
    since, seen = presence.records()[0].since, presence.records()[0].seen
    assert seen - since == 70_000_000
    presence.leave(holder)
    clock.advance(61)
    assert names(presence) == []


def test_many_that_do_the_same_are_one() -> None:
    presence = Presence(ManualClock())
    holders = [Holder() for _ in range(8)]
    for holder in holders:
        presence.enter(holder, ORDERS)
    assert names(presence) == ["shop"]


def test_names_and_numbers_are_bounded() -> None:
    clock = ManualClock()
    presence = Presence(clock)
    for number in range(3_000):
        clock.advance(1)
        presence.enter(Holder(), ORDERS._replace(name=f"{number}" + "x" * 1_000))
    assert len(presence.records()) <= 61
    for number in range(3_000):
        presence.enter(Holder(), ORDERS._replace(name=f"{number}"))
    assert len(presence.records()) == 500
    assert max(map(len, names(presence))) <= 120
