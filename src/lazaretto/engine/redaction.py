"""Operations on the rules for fields of messages that people may not read."""

from __future__ import annotations

import secrets

from lazaretto.engine.command import Administering, Command, Detail
from lazaretto.engine.log import audit
from lazaretto.errors import NotAllowed
from lazaretto.model.edits.redact import Redaction
from lazaretto.model.entities import EntityKind
from lazaretto.model.redaction import (
    MOST_RULES,
    RedactionRule,
    checked_rule,
    decode_rules,
    encode_rules,
    rules_for,
)
from lazaretto.store.records.access import REDACTION, REDACTION_KEY
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


class RedactionChange(Administering[RedactionRule], frozen=True, kw_only=True):
    """A change of what is hidden of messages."""

    touched = ("redaction", "{pattern}", "{field}")
    field: str
    queue: str = "*"

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        field, queue, before = detail["field"], detail["pattern"], detail["before"]
        if before is None:
            return RemoveRedaction(field=field, queue=queue)
        return SetRedaction(field=field, queue=queue, form=before)


class SetRedaction(RedactionChange, frozen=True, kw_only=True):
    """Hide a field of messages from people, on the entities that a pattern matches.

    `field`: such as `body.card.number`; `form`: drop, mask or hash.
    """

    action = "redaction: set"
    form: str = "mask"

    def run(self, tx: Transaction, actor: str) -> RedactionRule:
        rule, rules = checked_rule(self.queue, self.field, self.form), find_rules(tx)
        others = _other(rules, rule.queue, rule.field)
        before = next((one.form for one in rules if one not in others), None)
        if len(others) >= MOST_RULES:
            raise NotAllowed(f"expected at most {MOST_RULES} rules; remove one first")
        if before is not rule.form:
            _save(tx, (*others, rule), rule)
            audit(
                tx, actor, self.action, "", pattern=rule.queue, field=rule.field,
                form=rule.form.value, before=None if before is None else before.value,
            )  # fmt: skip
        return rule


class RemoveRedaction(RedactionChange, frozen=True, kw_only=True):
    """Hide a field of messages no longer; `queue` is the pattern under which it was hidden."""

    action = "redaction: remove"

    def run(self, tx: Transaction, actor: str) -> RedactionRule:
        named, rules = checked_rule(self.queue, self.field, "mask"), find_rules(tx)
        others = _other(rules, named.queue, named.field)
        removed = next((one for one in rules if one not in others), None)
        if removed is None:
            raise NotAllowed(f"expected a field with a rule, got {named.field!r} of {named.queue!r}")
        _save(tx, others, removed)
        audit(
            tx, actor, self.action, "", pattern=removed.queue, field=removed.field,
            before=removed.form.value,
        )  # fmt: skip
        return removed
