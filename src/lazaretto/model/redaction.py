"""Rules that say which fields of messages people may not read, by queue. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import member, shown, text
from lazaretto.model.entities import LONGEST_PATH
from lazaretto.model.grants import Reach, grant_covers
from lazaretto.model.policy import COUNT_REASON

#: The most rules of a store, the most characters of a field, and the most steps of a path.
MOST_RULES: Final = 1_000
_LONGEST_FIELD, _MOST_STEPS = 500, 32
#: Why the system itself dead-letters messages: nothing of a message is in these.
OWN_REASONS: Final = frozenset({
    "ConversationEnded", "FilterException", "HandlerTimeout", "HeaderSizeExceeded", "InvalidMessage",
    COUNT_REASON, "MaxTransferHopCountExceeded", "MessageSizeExceeded",
    "MessagingEntityDisabled", "MessagingEntityNotFound", "NoMatchingSubscription", "OutOfMemory",
    "QuotaExceeded", "Rejected", "Session ID is null.", "SessionPoisoned", "TTLExpiredException",
    "WorkerCrashed",
})  # fmt: skip
_STEP = re.compile(r"(\.\.?)(?:\[((?:[^\]]|\]\])+)\]|\"((?:[^\"]|\"\")+)\"|([^\W\d]\w*))")


class Form(enum.StrEnum):
    """The form that people see in place of a redacted value."""

    #: Nothing: the field is left out.
    DROP = "drop"
    #: A mark that says that there was a value.
    MASK = "mask"
    #: A keyed hash, the same for the same value within a store.
    HASH = "hash"


class RedactionRule(msgspec.Struct, frozen=True):
    """A field that people may not read, on the entities whose path a pattern matches.

    `field`: "body", or a part of a JSON body such as `body.card.number`, in each element of an array on the
    way; after two points at any depth: `body..password`. Or `user`, `user.name`: application properties. Or
    `error`: the texts and stacks of errors, and descriptions. Names are compared without case.
    """

    queue: str
    field: str
    form: Form


class Target(NamedTuple):
    """The target of a rule's field. `steps`: of the body or of properties; True before a name: any depth."""

    where: str
    steps: tuple[tuple[bool, str], ...]


def read_field(field: str) -> Target:
    """Return what a field names. Raises InvalidOption."""
    wrong = InvalidOption(
        f"expected field to be body, body.name, body..name, user, user.name or error, got {shown(field)}"
    )
    match = re.match(r"(body|user|error)(?![^.])", field, re.IGNORECASE)
    if match is None:
        raise wrong
    where, at, steps = match[1].lower(), match.end(), []
    while at < len(field):
        step = _STEP.match(field, at)
        if step is None:
            raise wrong
        bracketed, quoted, plain = step[2], step[3], step[4]
        name = bracketed.replace("]]", "]") if bracketed else quoted.replace('""', '"') if quoted else plain
        steps.append((step[1] == "..", name.lower()))
        at = step.end()
    deep = any(anywhere for anywhere, _ in steps)
    most = {"body": _MOST_STEPS, "user": 1, "error": 0}[where]
    if len(steps) > most or (deep and where != "body"):
        raise wrong
    return Target(where, tuple(steps))


def checked_rule(queue: object, field: object, form: object) -> RedactionRule:
    """Return a rule. Raises InvalidOption."""
    name = text("field", field, _LONGEST_FIELD)
    read_field(name)
    pattern = text("queue", queue, LONGEST_PATH)
    return RedactionRule(pattern, name, member("form", form, {one.value: one for one in Form}))


def encode_rules(rules: Sequence[RedactionRule]) -> str:
    """Return rules as the store has them."""
    return msgspec.json.encode(rules).decode()


def decode_rules(stored: str | None) -> tuple[RedactionRule, ...]:
    """Return rules from the store's form."""
    return () if stored is None else msgspec.json.decode(stored, type=tuple[RedactionRule, ...])


def rules_for(rules: Iterable[RedactionRule], path: str) -> tuple[RedactionRule, ...]:
    """Return the rules that hold for an entity; for a subscription, those of its topic."""
    return tuple(rule for rule in rules if grant_covers(Reach.PATTERN, rule.queue, path))


def names_redacted(targets: Iterable[Target], where: str, path: Sequence[Any]) -> bool:
    """Return whether a field that a filter or an edit names is, holds, or is in, one that is redacted.

    `where`: "body" or "user"; `path`: its steps.
    """
    names = [step.lower() for step in path if isinstance(step, str)]
    return any(target.where == where and _overlap(target.steps, names) for target in targets)


def _overlap(steps: Sequence[tuple[bool, str]], names: Sequence[str], below: bool = False) -> bool:
    """Return whether one of two paths begins with the other. What is at any depth is in no fixed place.

    `below`: what is at any depth is so below a part with a name, and could be taken out of that: any part of
    that may hold it.
    """
    for number, (anywhere, name) in enumerate(steps):
        if not names:
            return True
        if anywhere:
            if below or number:
                return True
            rest = steps[number + 1 :]
            return any(one == name and _overlap(rest, names[at + 1 :], True) for at, one in enumerate(names))
        if names[0] != name:
            return False
        names = names[1:]
    return True
