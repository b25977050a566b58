"""Keys with which clients sign for one entity, and what each allows. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import text

#: The most rules of an entity, as at Service Bus; the most characters of a name, and of a key.
MOST_RULES: Final = 12
_LONGEST: Final = 256
RIGHTS: Final = ("Manage", "Send", "Listen")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SigningRule:
    """Two keys by a name, and what they allow on an entity and what is below it. Raises InvalidOption.

    `rights`: Manage, which includes the others, Send, Listen. `created`, `modified`: in microseconds.
    """

    name: str
    rights: tuple[str, ...]
    primary: str = dataclasses.field(repr=False)
    secondary: str = dataclasses.field(repr=False)
    created: int = 0
    modified: int = 0

    def __post_init__(self) -> None:
        text("the name of an authorization rule", self.name, _LONGEST)
        for key in (self.primary, self.secondary):
            # An error must not show the key.
            if not key or len(key) > _LONGEST or not key.isascii():
                raise InvalidOption(
                    f"expected keys of 1 to {_LONGEST} ASCII characters for authorization rule {self.name!r}"
                )
        if not self.rights or not set(self.rights) <= set(RIGHTS):
            raise InvalidOption(
                f"expected rights of the authorization rule {self.name!r} among {', '.join(RIGHTS)}, "
                f"got {', '.join(map(repr, self.rights)) or 'none'}"
            )


def check_signing_rules(rules: Sequence[SigningRule]) -> None:
    """Raise InvalidOption for too many rules of an entity, or two with one name."""
    if len(rules) > MOST_RULES:
        raise InvalidOption(f"expected at most {MOST_RULES} authorization rules, got {len(rules)}")
    if len({rule.name for rule in rules}) != len(rules):
        raise InvalidOption("expected authorization rules with different names, got one name twice")


def encode_signing_rules(rules: Iterable[SigningRule]) -> str | None:
    """Return rules as they are stored; None: there are none."""
    listed = list(rules)
    return msgspec.json.encode(listed).decode() if listed else None


def decode_signing_rules(stored: str | None) -> tuple[SigningRule, ...]:
    """Return stored rules."""
    return () if stored is None else msgspec.json.decode(stored, type=tuple[SigningRule, ...])
