"""Operations on the rules for fields of messages that people may not read."""

from __future__ import annotations

import dataclasses
import secrets

from lazaretto.edits.redact import Redaction
from lazaretto.engine.log import audit
from lazaretto.errors import NotAllowed
from lazaretto.model.entities import EntityKind
from lazaretto.model.redaction import (
    MOST_RULES,
    RedactionRule,
    decode_rules,
    encode_rules,
    rules_for,
)
from lazaretto.store.records.access import REDACTION, REDACTION_KEY
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction


def find_rules(tx: Transaction) -> tuple[RedactionRule, ...]:
    """Return all rules, by pattern and field."""
    return decode_rules(tx.access.setting(REDACTION))


def redaction_key(tx: Transaction) -> bytes:
    """Return the key of hashes; before there is a rule, it is empty."""
    return bytes.fromhex(tx.access.setting(REDACTION_KEY) or "")


def redaction_of(tx: Transaction, path: str) -> Redaction:
    """Return what the rules mean for one entity."""
    rules = rules_for(find_rules(tx), path)
    return Redaction(rules, redaction_key(tx)) if rules else Redaction()


def _save(tx: Transaction, rules: tuple[RedactionRule, ...], changed: RedactionRule) -> None:
    """Keep rules. Completed messages of a queue that a changed one is about are forgotten."""
    ordered = sorted(rules, key=lambda rule: (rule.queue, rule.field))
    tx.access.save_setting(REDACTION, encode_rules(ordered) if ordered else None)
    if rules and not redaction_key(tx):
        tx.access.save_setting(REDACTION_KEY, secrets.token_hex(32))
    for queue in tx.queues.all():
        if not rules_for([changed], queue.path):
            continue
        if queue.kind is not EntityKind.TOPIC:
            tx.samples.remove_all(queue.queue_id)
        redacted = bool(rules_for(rules, queue.path))
        if redacted != queue.redacted:
            tx.queues.mark_redacted(queue.queue_id, redacted)


def _other(rules: tuple[RedactionRule, ...], queue: str, field: str) -> tuple[RedactionRule, ...]:
    return tuple(one for one in rules if (one.queue, one.field) != (queue, field))


@dataclasses.dataclass(slots=True)
class SetRedaction(Operation[RedactionRule]):
    """Set the rule for a field of the entities that a pattern matches. Raises NotAllowed."""

    rule: RedactionRule
    actor: str

    def run(self, tx: Transaction) -> RedactionRule:
        rule, rules = self.rule, find_rules(tx)
        others = _other(rules, rule.queue, rule.field)
        before = next((one.form for one in rules if one not in others), None)
        if len(others) >= MOST_RULES:
            raise NotAllowed(f"expected at most {MOST_RULES} rules; remove one first")
        if before is not rule.form:
            _save(tx, (*others, rule), rule)
            audit(
                tx, self.actor, "redaction: set", "", pattern=rule.queue, field=rule.field,
                form=rule.form.value, before=None if before is None else before.value,
            )  # fmt: skip
        return rule


@dataclasses.dataclass(slots=True)
class RemoveRedaction(Operation[RedactionRule]):
    """Remove the rule for a field and a pattern; return it. Raises NotAllowed if there is none."""

    queue: str
    field: str
    actor: str

    def run(self, tx: Transaction) -> RedactionRule:
        rules = find_rules(tx)
        others = _other(rules, self.queue, self.field)
        removed = next((one for one in rules if one not in others), None)
        if removed is None:
            raise NotAllowed(f"expected a field with a rule, got {self.field!r} of {self.queue!r}")
        _save(tx, others, removed)
        audit(
            tx, self.actor, "redaction: remove", "", pattern=removed.queue, field=removed.field,
            before=removed.form.value,
        )  # fmt: skip
        return removed
