"""Logins of browsers: links that are used once, and the sessions that they or others open."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final

import msgspec

from lazaretto.engine.access import (
    LINK,
    PREFIXES,
    SESSION,
    TOKEN,
    NewSecret,
    find_visitor,
    grants_of,
    make_secret,
    makers_of,
    require_person,
)
from lazaretto.engine.command import Administering
from lazaretto.engine.log import audit
from lazaretto.model.actors import Actor
from lazaretto.model.clock import MICROSECONDS
from lazaretto.model.grants import (
    Grant,
    Role,
    encode_grants,
    person_name,
)
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: How long a link works, and a session in all, in microseconds.
_LINK_LASTS: Final = 60 * MICROSECONDS
_SESSION_LASTS: Final = 24 * 3600 * MICROSECONDS


class CreateLink(Administering[NewSecret], frozen=True, kw_only=True):
    """Make the secret of a link that opens one session within a minute.

    `person`: whose session; null: that of whoever asks, who may do everything in it.
    """

    action = "access: link"
    shown_once: ClassVar[bool] = True
    person: str | None = None

    def run(self, tx: Transaction, actor: str) -> NewSecret:
        if self.person is None:
            name, grants = str(actor), encode_grants((Grant(Role.ADMIN),))
        else:
            name, grants = person_name(self.person), None
            require_person(tx, name)
        expires = tx.now + _LINK_LASTS
        made = make_secret(tx, LINK, name, "", expires, grants, makers=makers_of(actor, name))
        audit(tx, actor, self.action, "", person=name)
        return made


@dataclasses.dataclass(slots=True)
class OpenSession(Operation[NewSecret | None]):
    """Open a session for whoever has a token, or a link, which is used up; None if there is none such.

    `former`: the session that the browser had, which ends. `address`: where the browser is.
    """

    secret: str
    former: str | None
    address: str

    def run(self, tx: Transaction) -> NewSecret | None:
        kind = LINK if self.secret.startswith(PREFIXES[LINK]) else TOKEN
        visitor = find_visitor(tx, self.secret, kind)
        if visitor is None:
            return None
        record = tx.access.secret(visitor.id)
        assert record is not None
        expires = tx.now + _SESSION_LASTS
        if kind == LINK:
            tx.access.delete_secret(visitor.id)
        elif record.expires is not None:
            expires = min(expires, record.expires)
        if self.former is not None:
            close_session(tx, self.former)
        made = make_secret(
            tx, SESSION, visitor.name, self.address, expires, record.grants, makers=record.makers
        )
        # A link may be for somebody of whom the store knows nothing else.
        who = Actor.at(visitor.name, self.address)
        audit(tx, who, "access: login", "", by=kind, id=made.id, address=self.address)
        return made


@dataclasses.dataclass(slots=True)
class OpenVouchedSession(Operation[NewSecret | None]):
    """Open a session for somebody whom an identity provider names, with groups.

    None if nothing was granted to any of these names. `by`: the provider. `former` and `address` as for
    OpenSession.
    """

    person: str
    groups: tuple[str, ...]
    by: str
    former: str | None
    address: str

    def run(self, tx: Transaction) -> NewSecret | None:
        names = [name for name in (self.person, *self.groups) if grants_of(tx, name)]
        if not names:
            return None
        if self.former is not None:
            close_session(tx, self.former)
        member_of = msgspec.json.encode(self.groups).decode()
        expires = tx.now + _SESSION_LASTS
        made = make_secret(tx, SESSION, self.person, self.address, expires, None, member_of)
        who = Actor.at(self.person, self.address)
        audit(tx, who, "access: login", "", by=self.by, id=made.id, address=self.address)
        return made


def close_session(tx: Transaction, secret: str) -> bool:
    """End a session; return whether there was one."""
    visitor = find_visitor(tx, secret, SESSION)
    return visitor is not None and tx.access.delete_secret(visitor.id)


@dataclasses.dataclass(slots=True)
class CloseSession(Operation[bool]):
    """End a browser's session; return whether there was one."""

    secret: str

    def run(self, tx: Transaction) -> bool:
        return close_session(tx, self.secret)


@dataclasses.dataclass(slots=True)
class NoteSeen(Operation[None]):
    """Note that a secret was used now."""

    id: str

    durable = False

    def run(self, tx: Transaction) -> None:
        secret = tx.access.secret(self.id)
        if secret is not None:
            tx.access.save_secret(msgspec.structs.replace(secret, seen=tx.now))
