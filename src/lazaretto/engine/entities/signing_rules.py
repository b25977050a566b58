"""Operations on the keys with which clients sign for one entity."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.log import audit
from lazaretto.errors import InvalidPath, NotAllowed
from lazaretto.model.entities import EntityKind, EntityPath
from lazaretto.model.grants import owner_of
from lazaretto.model.signing import (
    SigningRule,
    check_signing_rules,
    decode_signing_rules,
    encode_signing_rules,
)
from lazaretto.store.records.access import SIGNING
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction


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
