"""Operations on access: what people were granted, and the secrets that stand for them."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
from datetime import datetime
from typing import Final

import msgspec

from lazaretto.engine.log import audit
from lazaretto.errors import NotAllowed, PersonNotFound, TokenNotFound
from lazaretto.model.actors import Actor, behind
from lazaretto.model.clock import MICROSECONDS, to_datetime
from lazaretto.model.grants import Grant, decode_grants, encode_grants, join_grants
from lazaretto.store.records.access import PersonRecord, SecretRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

TOKEN: Final = "token"  # noqa: S105
SESSION: Final = "session"
LINK: Final = "link"
#: What a secret begins with, by its kind.
PREFIXES: Final = {TOKEN: "lzt", SESSION: "lzs", LINK: "lzl"}

#: The end of a token for which none is given, and how long it works then, in microseconds.
USUAL: Final = -1
_DAY: Final = 24 * 3600 * MICROSECONDS
_TOKEN_LASTS: Final = 90 * _DAY
#: How long before its end whoever uses a token is warned of.
_WARNED: Final = 14 * _DAY
#: How long a link works, and a session: in all, and unused; in microseconds.
_LINK_LASTS: Final = 60 * MICROSECONDS
_SESSION_LASTS: Final = 24 * 3600 * MICROSECONDS
_SESSION_IDLES: Final = 8 * 3600 * MICROSECONDS
#: How old the note of when a secret was last seen may be, by its kind.
_SEEN_EVERY: Final = {TOKEN: 3600 * MICROSECONDS, SESSION: 300 * MICROSECONDS, LINK: 0}


class Person(msgspec.Struct, frozen=True):
    """Somebody, or a group, and what was granted."""

    name: str
    grants: tuple[Grant, ...]
    created: datetime


class Token(msgspec.Struct, frozen=True):
    """A token or a browser's session, without its secret.

    `id`: the part of a token that is public. `label`: what it is for; of a session, where it came from.
    `expires`: None: never. `seen`: when it was last used, to the hour.
    """

    id: str
    person: str
    label: str
    created: datetime
    expires: datetime | None
    seen: datetime | None


class MadeSecret(msgspec.Struct, frozen=True):
    """A new secret, which is shown once."""

    id: str
    person: str
    secret: str
    expires: datetime | None


class Visitor(msgspec.Struct, frozen=True):
    """Whom a secret stands for, and what was granted. `stale`: the note of when it was seen is old.

    `makers`: who else has seen the secret. `ends`: when a token ends, if that is soon.
    """

    id: str
    name: str
    grants: tuple[Grant, ...]
    stale: bool = False
    makers: tuple[str, ...] = ()
    ends: datetime | None = None


def digest_of(secret: str) -> bytes:
    """Return what is kept of a secret. Secrets are random, so a quick hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def find_people(tx: Transaction) -> list[Person]:
    """Return all people, by name."""
    return [Person(p.name, decode_grants(p.grants), to_datetime(p.created)) for p in tx.access.people()]


def find_tokens(tx: Transaction, kind: str, person: str | None) -> list[Token]:
    """Return the tokens or sessions of a person or of all, the latest first."""
    return [
        Token(
            one.id, one.person, one.label, to_datetime(one.created),
            None if one.expires is None else to_datetime(one.expires),
            None if one.seen is None else to_datetime(one.seen),
        )
        for one in tx.access.secrets(kind, person)
    ]  # fmt: skip


def find_visitor(tx: Transaction, secret: str, kind: str) -> Visitor | None:
    """Return whom a secret stands for; None if it is unknown, of another kind, or has expired."""
    prefix, _, rest = secret.partition("_")
    id_, _, _ = rest.partition("_")
    if prefix != PREFIXES[kind] or not id_.isalnum():
        return None
    found = tx.access.secret(id_)
    if found is None or found.kind != kind or not hmac.compare_digest(found.digest, digest_of(secret)):
        return None
    if found.expires is not None and found.expires <= tx.now:
        return None
    seen = found.seen or found.created
    if kind == SESSION and seen + _SESSION_IDLES <= tx.now:
        return None
    grants = _grants_of_secret(tx, found)
    stale = found.seen is None or seen + _SEEN_EVERY[kind] <= tx.now
    makers = () if found.makers is None else msgspec.json.decode(found.makers, type=tuple[str, ...])
    soon = kind == TOKEN and found.expires is not None and found.expires <= tx.now + _WARNED
    ends = to_datetime(found.expires) if soon and found.expires is not None else None
    return Visitor(found.id, found.person, grants, stale, makers, ends)


def makers_of(actor: str, person: str) -> str | None:
    """Return who sees a secret besides its person when an actor makes it, as JSON; None: nobody does.

    Whoever has the store itself needs no secret, and does not count; whoever asks a server for one does.
    """
    if not isinstance(actor, Actor):
        return None
    seen = behind(actor) if actor.by_server else frozenset(actor.makers)
    return msgspec.json.encode(sorted(seen - {person})).decode() if seen - {person} else None


def _grants_of_secret(tx: Transaction, secret: SecretRecord) -> tuple[Grant, ...]:
    if secret.grants is not None:
        return decode_grants(secret.grants)
    groups = [] if secret.member_of is None else msgspec.json.decode(secret.member_of, type=list[str])
    return join_grants(grants_of(tx, name) for name in (secret.person, *groups))


def grants_of(tx: Transaction, name: str) -> tuple[Grant, ...]:
    """Return what was granted to somebody: nothing to whom the store does not know."""
    person = tx.access.person(name)
    return () if person is None else decode_grants(person.grants)


def _known(tx: Transaction, name: str) -> PersonRecord:
    person = tx.access.person(name)
    if person is None:
        raise PersonNotFound(f"expected somebody who was granted a role, got {name!r}; grant one first")
    return person


def _make(
    tx: Transaction,
    kind: str,
    person: str,
    label: str,
    expires: int | None,
    grants: str | None = None,
    member_of: str | None = None,
    makers: str | None = None,
) -> MadeSecret:
    id_ = secrets.token_hex(6)
    secret = f"{PREFIXES[kind]}_{id_}_{secrets.token_urlsafe(32)}"
    tx.access.save_secret(
        SecretRecord(
            id_, kind, person, digest_of(secret), grants, label, tx.now, expires, None, member_of, makers
        )
    )
    return MadeSecret(id_, person, secret, None if expires is None else to_datetime(expires))


@dataclasses.dataclass(slots=True)
class ChangeGrants(Operation[Person]):
    """Grant a role to somebody, or withdraw it. Raises NotAllowed if that changes nothing."""

    person: str
    grant: Grant
    actor: str
    withdraw: bool = False

    def run(self, tx: Transaction) -> Person:
        found = tx.access.person(self.person)
        grants = () if found is None else decode_grants(found.grants)
        told = f"{self.grant.role.value!r} on {self.grant.pattern!r}"
        if self.withdraw:
            _known(tx, self.person)
            if self.grant not in grants:
                raise NotAllowed(f"expected a role that {self.person!r} has, got {told}")
            left = tuple(one for one in grants if one != self.grant)
        elif self.grant in grants:
            raise NotAllowed(f"expected a role that {self.person!r} does not have yet, got {told}")
        else:
            left = (*grants, self.grant)
        record = PersonRecord(self.person, encode_grants(left), tx.now if found is None else found.created)
        tx.access.save_person(record)
        audit(
            tx, self.actor, "access: withdraw" if self.withdraw else "access: grant", "",
            person=self.person, role=self.grant.role.value, pattern=self.grant.pattern,
        )  # fmt: skip
        return Person(self.person, left, to_datetime(record.created))


@dataclasses.dataclass(slots=True)
class RemovePerson(Operation[int]):
    """Remove a person with all tokens and sessions; return how many these were. Raises PersonNotFound."""

    person: str
    actor: str

    def run(self, tx: Transaction) -> int:
        _known(tx, self.person)
        tx.access.delete_person(self.person)
        count = tx.access.delete_secrets(self.person, None)
        audit(tx, self.actor, "access: remove", "", person=self.person, count=count)
        return count


@dataclasses.dataclass(slots=True)
class CreateToken(Operation[MadeSecret]):
    """Make a token for a person, which is shown once. Raises PersonNotFound.

    `expires`: in microseconds; USUAL: after 90 days; None: never.
    """

    person: str
    label: str
    expires: int | None
    actor: str

    def run(self, tx: Transaction) -> MadeSecret:
        _known(tx, self.person)
        makers = makers_of(self.actor, self.person)
        expires = tx.now + _TOKEN_LASTS if self.expires == USUAL else self.expires
        made = _make(tx, TOKEN, self.person, self.label, expires, makers=makers)
        audit(tx, self.actor, "access: token", "", person=self.person, id=made.id, label=self.label)
        return made


@dataclasses.dataclass(slots=True)
class RevokeToken(Operation[str]):
    """Delete a token with the sessions of its person, or one session; return whose it was.

    Raises TokenNotFound.
    """

    id: str
    actor: str

    def run(self, tx: Transaction) -> str:
        found = tx.access.secret(self.id)
        if found is None or found.kind == LINK:
            raise TokenNotFound(f"expected the id of a token or session, got {self.id!r}")
        tx.access.delete_secret(self.id)
        if found.kind == TOKEN:
            # One of them may have been opened with it.
            tx.access.delete_secrets(found.person, SESSION)
        audit(tx, self.actor, "access: revoke", "", person=found.person, id=self.id, kind=found.kind)
        return found.person


@dataclasses.dataclass(slots=True)
class EndSessions(Operation[int]):
    """End all sessions of a person; return how many these were."""

    person: str
    actor: str

    def run(self, tx: Transaction) -> int:
        count = tx.access.delete_secrets(self.person, SESSION)
        audit(tx, self.actor, "access: end sessions", "", person=self.person, count=count)
        return count


@dataclasses.dataclass(slots=True)
class CreateLink(Operation[MadeSecret]):
    """Make a secret that opens one session within a minute.

    `grants`: what the session may do, in place of what was granted to the person: for the store's owner.
    Raises PersonNotFound.
    """

    person: str
    actor: str
    grants: tuple[Grant, ...] | None = None

    def run(self, tx: Transaction) -> MadeSecret:
        if self.grants is None:
            _known(tx, self.person)
        grants = None if self.grants is None else encode_grants(self.grants)
        makers = makers_of(self.actor, self.person)
        made = _make(tx, LINK, self.person, "", tx.now + _LINK_LASTS, grants, makers=makers)
        audit(tx, self.actor, "access: link", "", person=self.person)
        return made


@dataclasses.dataclass(slots=True)
class OpenSession(Operation[MadeSecret | None]):
    """Open a session for whoever has a token, or a link, which is used up; None if there is none such.

    `former`: the session that the browser had, which ends. `address`: where the browser is.
    """

    secret: str
    former: str | None
    address: str

    def run(self, tx: Transaction) -> MadeSecret | None:
        kind = LINK if self.secret.startswith(PREFIXES[LINK]) else TOKEN
        found = find_visitor(tx, self.secret, kind)
        if found is None:
            return None
        record = tx.access.secret(found.id)
        assert record is not None
        expires = tx.now + _SESSION_LASTS
        if kind == LINK:
            tx.access.delete_secret(found.id)
        elif record.expires is not None:
            expires = min(expires, record.expires)
        if self.former is not None:
            close_session(tx, self.former)
        made = _make(tx, SESSION, found.name, self.address, expires, record.grants, makers=record.makers)
        # A link may be for somebody of whom the store knows nothing else.
        who = Actor.at(found.name, self.address)
        audit(tx, who, "access: login", "", by=kind, id=made.id, address=self.address)
        return made


@dataclasses.dataclass(slots=True)
class OpenVouchedSession(Operation[MadeSecret | None]):
    """Open a session for somebody whom an identity provider names, with groups.

    None if nothing was granted to any of these names. `by`: the provider. `former` and `address` as for
    OpenSession.
    """

    person: str
    groups: tuple[str, ...]
    by: str
    former: str | None
    address: str

    def run(self, tx: Transaction) -> MadeSecret | None:
        known = [name for name in (self.person, *self.groups) if grants_of(tx, name)]
        if not known:
            return None
        if self.former is not None:
            close_session(tx, self.former)
        member_of = msgspec.json.encode(self.groups).decode()
        expires = tx.now + _SESSION_LASTS
        made = _make(tx, SESSION, self.person, self.address, expires, None, member_of)
        who = Actor.at(self.person, self.address)
        audit(tx, who, "access: login", "", by=self.by, id=made.id, address=self.address)
        return made


def close_session(tx: Transaction, secret: str) -> bool:
    """End a session; return whether there was one."""
    found = find_visitor(tx, secret, SESSION)
    return found is not None and tx.access.delete_secret(found.id)


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
        found = tx.access.secret(self.id)
        if found is not None:
            tx.access.save_secret(msgspec.structs.replace(found, seen=tx.now))
