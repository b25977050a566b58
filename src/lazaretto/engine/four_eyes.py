"""Limits on one person alone: sending or deleting many letters within an hour, or ending this rule."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from lazaretto.engine.command import Administering, Command, Detail
from lazaretto.engine.log import audit
from lazaretto.errors import SecondPersonNeeded
from lazaretto.model.actors import Actor, behind
from lazaretto.model.checks import whole
from lazaretto.model.clock import MICROSECONDS, to_datetime
from lazaretto.store.records.access import FOUR_EYES, FOUR_EYES_ASKED, LETTERS_OF
from lazaretto.store.sql.transaction import Transaction

_MINUTE: Final = 60 * MICROSECONDS
_HOUR: Final = 60 * _MINUTE
#: How long somebody's wish to end the rule waits for a second person.
_DAY: Final = 24 * _HOUR


@dataclasses.dataclass(frozen=True, slots=True)
class FourEyesWish:
    """A wish to let one person send more, which holds once a second person asks for the same.

    `letters`: how many; None: any number. `actor`: who asked. `ends`: until when a second person may.
    """

    letters: int | None
    actor: str
    time: datetime
    ends: datetime


class _Asked(msgspec.Struct, frozen=True):
    """A wish as it is stored. `by`: the identities of who asked; `time`: in microseconds."""

    letters: int | None
    by: tuple[str, ...]
    time: int
    actor: str = ""


def four_eyes(tx: Transaction) -> int | None:
    """Return the most letters that one person may send or delete in an hour; None: any number."""
    value = tx.access.setting(FOUR_EYES)
    return None if value is None else int(value)


def four_eyes_wish(tx: Transaction) -> FourEyesWish | None:
    """Return the wish to let one person send more that waits for a second person."""
    asked = _asked(tx)
    if asked is None:
        return None
    # One of a version before this has no name.
    actor = asked.actor or ", ".join(sorted(asked.by))
    return FourEyesWish(asked.letters, actor, to_datetime(asked.time), to_datetime(asked.time + _DAY))


def _asked(tx: Transaction) -> _Asked | None:
    kept = tx.access.setting(FOUR_EYES_ASKED)
    asked = None if kept is None else msgspec.json.decode(kept, type=_Asked)
    return asked if asked is not None and asked.time + _DAY > tx.now else None


def identities(names: Iterable[str]) -> frozenset[str]:
    """Return names as they are compared: however they are spelled, a person is the same."""
    return frozenset(unicodedata.normalize("NFKC", name).casefold().strip() for name in names)


def letters_left(tx: Transaction, actor: str) -> int | None:
    """Return how many letters an actor may still send or delete in this hour; None: any number."""
    most = four_eyes(tx)
    if most is None:
        return None
    spent = (sum(_spent(tx, name).values()) for name in identities(behind(actor)))
    return max(0, most - max(spent))


def count_letters(tx: Transaction, actor: str, letters: int, what: str) -> None:
    """Count letters that somebody sends or deletes alone. Raises SecondPersonNeeded above what is left."""
    rest = letters_left(tx, actor)
    if rest is None or not letters:
        return
    if letters > rest:
        raise SecondPersonNeeded(
            f"expected {str(actor)!r} to {what} at most {rest} letters more within this hour, got {letters}: "
            f"one person may send and delete {four_eyes(tx)} in an hour. Plan a repair, and ask somebody "
            "else to apply it"
        )
    minute = tx.now // _MINUTE
    for name in identities(behind(actor)):
        spent = _spent(tx, name)
        spent[minute] = spent.get(minute, 0) + letters
        tx.access.save_setting(f"{LETTERS_OF}{name}", msgspec.json.encode(spent).decode())


def _spent(tx: Transaction, name: str) -> dict[int, int]:
    """Return how many letters somebody sent and deleted alone, by minute, in the last hour."""
    kept = tx.access.setting(f"{LETTERS_OF}{name}")
    counts = {} if kept is None else msgspec.json.decode(kept, type=dict[int, int])
    since = (tx.now - _HOUR) // _MINUTE
    return {minute: letters for minute, letters in counts.items() if minute > since}


class SetFourEyes(Administering[int | None], frozen=True, kw_only=True):
    """Set the most letters that one person may send or delete in an hour; null: any number.

    Over HTTP, letting one person send more holds once a second one asks for the same within a day; the answer
    is what holds.
    """

    action = "access: four eyes"
    touched = ("four eyes",)
    letters: int | None

    def run(self, tx: Transaction, actor: str) -> int | None:
        letters = None if self.letters is None else whole("letters", self.letters, 0, 1 << 40)
        before, asked = four_eyes(tx), _asked(tx)
        # Whoever has the store itself needs nobody else.
        by_server = isinstance(actor, Actor) and actor.by_server
        grows = before is not None and (letters is None or letters > before)
        names = identities(behind(actor))
        second = asked is not None and asked.letters == letters and not names & set(asked.by)
        if by_server and grows and not second:
            wish = _Asked(letters, tuple(names), tx.now, str(actor))
            tx.access.save_setting(FOUR_EYES_ASKED, msgspec.json.encode(wish).decode())
            audit(tx, actor, "access: four eyes asked", "", letters=letters, before=before)
            return before
        tx.access.save_setting(FOUR_EYES_ASKED, None)
        tx.access.save_setting(FOUR_EYES, None if letters is None else str(letters))
        audit(tx, actor, self.action, "", letters=letters, before=before)
        return letters

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        return cls(letters=detail["before"])
