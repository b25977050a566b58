"""Operations on access: what people and clients were granted, and the secrets that stand for it."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from datetime import datetime
from typing import ClassVar, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from lazaretto.engine.command import Administering, Command, Detail
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.log import audit
from lazaretto.errors import InvalidPath, NotAllowed, PersonNotFound, TokenNotFound
from lazaretto.model.actors import Actor, behind
from lazaretto.model.checks import moment, text
from lazaretto.model.clock import MICROSECONDS, to_datetime
from lazaretto.model.entities import EntityKind, EntityPath
from lazaretto.model.grants import (
    Grant,
    SigningRule,
    check_signing_rules,
    checked_grant,
    decode_grants,
    decode_signing_rules,
    encode_grants,
    encode_signing_rules,
    join_grants,
    owner_of,
    person_name,
)
from lazaretto.store.records.access import SIGNING, PersonRecord, SecretRecord
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

TOKEN: Final = "token"  # noqa: S105
SESSION: Final = "session"
LINK: Final = "link"
#: What a secret begins with, by its kind.
PREFIXES: Final = {TOKEN: "lzt", SESSION: "lzs", LINK: "lzl"}

T = TypeVar("T")

#: The most characters of what a token is for, and of an id.
_LONGEST_LABEL: Final = 200
#: How long a token works for which no end is given, in microseconds.
_DAY: Final = 24 * 3600 * MICROSECONDS
_TOKEN_LASTS: Final = 90 * _DAY
#: How long before its end whoever uses a token is warned of.
_WARNED: Final = 14 * _DAY
#: How long an unused session works, in microseconds.
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


class NewSecret(msgspec.Struct, frozen=True):
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
    secret_record = tx.access.secret(id_)
    if (
        secret_record is None
        or secret_record.kind != kind
        or not hmac.compare_digest(secret_record.digest, digest_of(secret))
    ):
        return None
    if secret_record.expires is not None and secret_record.expires <= tx.now:
        return None
    seen = secret_record.seen or secret_record.created
    if kind == SESSION and seen + _SESSION_IDLES <= tx.now:
        return None
    grants = _grants_of_secret(tx, secret_record)
    stale = secret_record.seen is None or seen + _SEEN_EVERY[kind] <= tx.now
    makers = (
        ()
        if secret_record.makers is None
        else msgspec.json.decode(secret_record.makers, type=tuple[str, ...])
    )
    soon = kind == TOKEN and secret_record.expires is not None and secret_record.expires <= tx.now + _WARNED
    ends = to_datetime(secret_record.expires) if soon and secret_record.expires is not None else None
    return Visitor(secret_record.id, secret_record.person, grants, stale, makers, ends)


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


def require_person(tx: Transaction, name: str) -> PersonRecord:
    person = tx.access.person(name)
    if person is None:
        raise PersonNotFound(f"expected somebody who was granted a role, got {name!r}; grant one first")
    return person


def make_secret(
    tx: Transaction,
    kind: str,
    person: str,
    label: str,
    expires: int | None,
    grants: str | None = None,
    member_of: str | None = None,
    makers: str | None = None,
) -> NewSecret:
    id_ = secrets.token_hex(6)
    secret = f"{PREFIXES[kind]}_{id_}_{secrets.token_urlsafe(32)}"
    tx.access.save_secret(
        SecretRecord(
            id_, kind, person, digest_of(secret), grants, label, tx.now, expires, None, member_of, makers
        )
    )
    return NewSecret(id_, person, secret, None if expires is None else to_datetime(expires))


class PersonChange(Administering[T], frozen=True, kw_only=True):
    """A change of what somebody may do. A name that begins with `group:` is that of a group."""

    person: str


class RoleChange(PersonChange[Person], frozen=True, kw_only=True):
    """A change of one role of somebody, on the entities that a pattern matches."""

    touched = ("role", "{person}", "{role}", "{pattern}")
    role: str
    queue: str = "*"


class GrantRole(RoleChange, frozen=True, kw_only=True):
    """Grant a role to a person or group, on the entities that a pattern matches."""

    action = "access: grant"

    def run(self, tx: Transaction, actor: str) -> Person:
        name, grant = person_name(self.person), checked_grant(self.role, self.queue)
        before = grants_of(tx, name)
        if grant in before:
            raise NotAllowed(f"expected a role that {name!r} does not have yet, got {_told(grant)}")
        return _save_grants(tx, actor, self.action, name, grant, (*before, grant))

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        return WithdrawRole(person=detail["person"], role=detail["role"], queue=detail["pattern"])


class WithdrawRole(RoleChange, frozen=True, kw_only=True):
    """Withdraw a role, as it was granted."""

    action = "access: withdraw"

    def run(self, tx: Transaction, actor: str) -> Person:
        name, grant = person_name(self.person), checked_grant(self.role, self.queue)
        before = decode_grants(require_person(tx, name).grants)
        if grant not in before:
            raise NotAllowed(f"expected a role that {name!r} has, got {_told(grant)}")
        rest = tuple(one for one in before if one != grant)
        return _save_grants(tx, actor, self.action, name, grant, rest)

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        return GrantRole(person=detail["person"], role=detail["role"], queue=detail["pattern"])


def _told(grant: Grant) -> str:
    return f"{grant.role.value!r} on {grant.pattern!r}"


def _save_grants(
    tx: Transaction, actor: str, action: str, name: str, changed: Grant, grants: tuple[Grant, ...]
) -> Person:
    person = tx.access.person(name)
    record = PersonRecord(name, encode_grants(grants), tx.now if person is None else person.created)
    tx.access.save_person(record)
    audit(tx, actor, action, "", person=name, role=changed.role.value, pattern=changed.pattern)
    return Person(name, grants, to_datetime(record.created))


class RemovePerson(PersonChange[int], frozen=True, kw_only=True):
    """Remove a person with all roles, tokens and sessions.

    The answer is how many secrets these were.
    """

    action = "access: remove"
    touched = ("role", "{person}")

    def run(self, tx: Transaction, actor: str) -> int:
        name = person_name(self.person)
        require_person(tx, name)
        tx.access.delete_person(name)
        count = tx.access.delete_secrets(name, None)
        audit(tx, actor, self.action, "", person=name, count=count)
        return count


class EndSessions(PersonChange[int], frozen=True, kw_only=True):
    """End all sessions of a person in browsers.

    The answer is how many these were.
    """

    action = "access: end sessions"

    def run(self, tx: Transaction, actor: str) -> int:
        name = person_name(self.person)
        count = tx.access.delete_secrets(name, SESSION)
        audit(tx, actor, self.action, "", person=name, count=count)
        return count


class CreateToken(PersonChange[NewSecret], frozen=True, kw_only=True):
    """Make a token that stands for a person. The answer has its secret, which is shown only now.

    It ends after 90 days unless another time is given; null: never.
    """

    action = "access: token"
    shown_once: ClassVar[bool] = True
    label: str = ""
    expires: datetime | UnsetType | None = UNSET

    def run(self, tx: Transaction, actor: str) -> NewSecret:
        name = person_name(self.person)
        label = text("label", self.label, _LONGEST_LABEL, 0)
        usual = tx.now + _TOKEN_LASTS
        expires = usual if isinstance(self.expires, UnsetType) else moment("expires", self.expires)
        require_person(tx, name)
        made = make_secret(tx, TOKEN, name, label, expires, makers=makers_of(actor, name))
        audit(tx, actor, self.action, "", person=name, id=made.id, label=label)
        return made


class RevokeToken(Administering[str], frozen=True, kw_only=True):
    """Delete a token by its id, with the sessions of its person; or one session by its id."""

    action = "access: revoke"
    id: str

    def run(self, tx: Transaction, actor: str) -> str:
        id_ = text("id", self.id, _LONGEST_LABEL)
        secret = tx.access.secret(id_)
        if secret is None or secret.kind == LINK:
            raise TokenNotFound(f"expected the id of a token or session, got {id_!r}")
        tx.access.delete_secret(id_)
        if secret.kind == TOKEN:
            # One of them may have been opened with it.
            tx.access.delete_secrets(secret.person, SESSION)
        audit(tx, actor, self.action, "", person=secret.person, id=id_, kind=secret.kind)
        return secret.person


def rules_of(tx: Transaction, queue_id: int) -> tuple[SigningRule, ...]:
    """Return the rules of one entity."""
    return decode_signing_rules(tx.access.setting(f"{SIGNING}{queue_id}"))


def rules_above(tx: Transaction, path: str) -> tuple[str, tuple[SigningRule, ...]]:
    """Return the queue or topic that a path is in, and its rules. Where nothing is: an empty path."""
    try:
        owner = tx.queues.by_path(owner_of(path))
    except InvalidPath:
        owner = None
    if owner is None:
        return "", ()
    return owner.path, rules_of(tx, owner.queue_id)


def _at(tx: Transaction, path: str) -> QueueRecord | None:
    try:
        return tx.queues.by_path(EntityPath.parse(path).key)
    except InvalidPath:
        return None


def rules_at(tx: Transaction, paths: Iterable[str]) -> dict[str, tuple[SigningRule, ...]]:
    """Return the rules of each entity that has some, by path in lower case."""
    records = {path.lower(): _at(tx, path) for path in paths}
    by_path = {path: rules_of(tx, record.queue_id) for path, record in records.items() if record is not None}
    return {path: rules for path, rules in by_path.items() if rules}


@dataclasses.dataclass(slots=True)
class SetSigningRules(Operation[None]):
    """Set the rules of a queue or topic in place of those that it has.

    A rule that stays as it is keeps its times. Raises EntityNotFound, InvalidOption, NotAllowed.
    """

    path: EntityPath
    rules: tuple[SigningRule, ...]
    actor: str

    def run(self, tx: Transaction) -> None:
        check_signing_rules(self.rules)
        record = require_queue(tx, self.path)
        if record.kind is EntityKind.SUBSCRIPTION:
            raise NotAllowed(f"{record.path!r} is a subscription: its topic has authorization rules")
        before = {rule.name: rule for rule in rules_of(tx, record.queue_id)}
        after = {rule.name: _dated(rule, before.get(rule.name), tx.now) for rule in self.rules}
        if after == before:
            return
        tx.access.save_setting(f"{SIGNING}{record.queue_id}", encode_signing_rules(after.values()))
        changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        # Names alone: who reads the log must not learn keys.
        audit(
            tx, self.actor, "authorization rules", record.path, kind=record.kind.value,
            rules={name: list(rule.rights) for name, rule in after.items()}, changed=changed,
        )  # fmt: skip


def _dated(rule: SigningRule, before: SigningRule | None, now: int) -> SigningRule:
    if before is None:
        return dataclasses.replace(rule, created=now, modified=now)
    same = dataclasses.replace(rule, created=before.created, modified=before.modified)
    return same if same == before else dataclasses.replace(same, modified=now)
