"""People, groups, tokens and sessions in the store, and their roles. Commands change them."""

from __future__ import annotations

from lazaretto.engine.access import SESSION, TOKEN, Person, Token, find_people, find_tokens
from lazaretto.engine.four_eyes import FourEyesWish, four_eyes, four_eyes_wish
from lazaretto.engine.maintenance import look
from lazaretto.engine.redaction import find_rules
from lazaretto.model.grants import person_name
from lazaretto.model.redaction import RedactionRule
from lazaretto.store.sql.store import Store


class AccessDesk:
    """Lists people and what stands for them."""

    _store: Store

    def people(self) -> list[Person]:
        """Return the people and groups that were granted something, by name."""
        return look(self._store, find_people)

    def tokens(self, person: str | None = None) -> list[Token]:
        """Return the tokens of a person or of all, the latest first."""
        name = None if person is None else person_name(person)
        return look(self._store, lambda tx: find_tokens(tx, TOKEN, name))

    def browser_sessions(self, person: str | None = None) -> list[Token]:
        """Return the sessions of a person or of all in browsers, the latest first."""
        name = None if person is None else person_name(person)
        return look(self._store, lambda tx: find_tokens(tx, SESSION, name))

    def four_eyes(self) -> int | None:
        """Return the most letters that one person may send or delete in an hour; None: any number."""
        return look(self._store, four_eyes)

    def four_eyes_wish(self) -> FourEyesWish | None:
        """Return the wish to let one person send more that waits for a second person; None: there is none."""
        return look(self._store, four_eyes_wish)

    def redaction(self) -> list[RedactionRule]:
        """Return the rules for fields of messages that people may not read."""
        return list(look(self._store, find_rules))
