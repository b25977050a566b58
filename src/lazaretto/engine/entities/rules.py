"""Rules of a subscription: added, removed, and what takes that back."""

from __future__ import annotations

import dataclasses

from lazaretto.engine.command import Command, Detail, Options, Touch
from lazaretto.engine.entities.existing import require_same_rules
from lazaretto.engine.entities.topics import (
    SubscriptionChange,
    SubscriptionDescription,
    check_rules,
    describe_subscription,
    require_subscription,
)
from lazaretto.engine.log import audit, note
from lazaretto.errors import EntityNotFound
from lazaretto.model.checks import flag, suggestion, text
from lazaretto.model.entities import (
    EntityPath,
)
from lazaretto.model.filters.records import rule_from, rule_record
from lazaretto.model.filters.rules import LONGEST_NAME, Rule, decode_rules, encode_rules
from lazaretto.model.paths import split_subscription
from lazaretto.store.sql.transaction import Transaction


class AddRule(SubscriptionChange[SubscriptionDescription], frozen=True, kw_only=True):
    """Add a rule to a subscription."""

    action = "rules"
    rule: Options
    exist_ok: bool = False

    def run(self, tx: Transaction, actor: str) -> SubscriptionDescription:
        topic, rule = EntityPath.parse(self.topic), rule_from(self.rule)
        return change_rules(tx, topic, self.subscription, actor, added=rule, exist_ok=self.exist_ok)

    @classmethod
    def touches(cls, path: str, detail: Detail) -> list[Touch]:
        names = {rule["name"] for part in ("added", "removed") for rule in detail.get(part) or ()}
        return [Touch((path, "rule", name)) for name in names]

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        names = split_subscription(EntityPath.parse(path))
        match detail.get("added"), detail.get("removed"):
            case [[added], []] if names is not None:
                return RemoveRule(topic=names[0], subscription=names[1], rule=added["name"])
        return None


class RemoveRule(SubscriptionChange[SubscriptionDescription], frozen=True, kw_only=True):
    """Remove a rule from a subscription.

    Without rules it gets no messages. Raises EntityNotFound.
    """

    action = "rules"
    rule: str

    def run(self, tx: Transaction, actor: str) -> SubscriptionDescription:
        topic, rule = EntityPath.parse(self.topic), text("rule", self.rule, LONGEST_NAME)
        return change_rules(tx, topic, self.subscription, actor, removed=rule)

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        names = split_subscription(EntityPath.parse(path))
        match detail.get("added"), detail.get("removed"):
            case [[], [removed]] if names is not None:
                return AddRule(topic=names[0], subscription=names[1], rule=removed)
        return None


def change_rules(
    tx: Transaction,
    topic: EntityPath,
    name: str,
    actor: str,
    *,
    added: Rule | None = None,
    removed: str | None = None,
    exist_ok: bool = False,
) -> SubscriptionDescription:
    """Add a rule to a subscription, or remove the rule with a name, or both.

    `exist_ok`: a rule that exists as it is to be added is left so.
    """
    flag("exist_ok", exist_ok)
    record = require_subscription(tx, topic, name)
    before = list(decode_rules(record.rules))
    rules = before
    if exist_ok and isinstance(added, Rule):
        same = [rule for rule in before if rule.name.lower() == added.name.lower()]
        if same:
            require_same_rules(f"rule {added.name!r} of {record.path!r}", same, [added])
            return describe_subscription(tx, record)
    if removed is not None:
        rule_names = [rule.name for rule in rules]
        rules = [rule for rule in rules if rule.name.lower() != removed.lower()]
        if len(rules) == len(rule_names):
            meant = suggestion(removed, rule_names)
            raise EntityNotFound(f"subscription {record.path!r} has no rule {removed!r}{meant}")
    if added is not None:
        rules = check_rules([*rules, added])
    record = tx.queues.save(dataclasses.replace(record, rules=encode_rules(rules)))
    names = [rule.name for rule in rules]
    note(tx, "rules_changed", record, rules=names)
    changed = {
        "added": [rule_record(rule) for rule in rules if rule not in before],
        "removed": [rule_record(rule) for rule in before if rule not in rules],
    }
    audit(tx, actor, "rules", record.path, rules=names, **changed)
    return describe_subscription(tx, record)
