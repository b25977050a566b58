"""Access in the store: people with what they were granted, and their secrets."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

#: The settings: how many letters one person may send in an hour, and the wish that there were more. What the
#: settings with the letters of each person begin with.
FOUR_EYES: Final = "four_eyes"
FOUR_EYES_ASKED: Final = "four_eyes_asked"
LETTERS_OF: Final = "letters:"
#: The settings: rules for fields that people may not read, as JSON; and the key of hashes, in hex.
REDACTION: Final = "redaction"
REDACTION_KEY: Final = "redaction_key"
#: The setting with the place that a store had among several that were used as one.
SPREAD: Final = "spread"
#: The setting with the key of fingerprints as people see them, in hex. It never changes.
FINGERPRINT_KEY: Final = "fingerprint_key"
#: What the setting with the keys of an entity begins with; the queue's id follows.
SIGNING: Final = "signing:"


class PersonRecord(msgspec.Struct, frozen=True):
    """Somebody, by name, or a group. `grants`: as JSON; `created`: in microseconds."""

    name: str
    grants: str
    created: int


class SecretRecord(msgspec.Struct, frozen=True):
    """A secret that stands for a person: a token, a browser's session, or a link that is used once.

    `digest`: the hash of the secret, which is not kept. `grants`: as JSON, in place of the person's; None:
    the person's. `label`: what a token is for; where a session came from. Times are in microseconds.
    `member_of`: names of groups whose grants count too, as JSON, for a session that an identity provider
    has vouched for. `makers`: names of those who have seen it besides the person, as JSON; None: nobody has.
    """

    id: str
    kind: str
    person: str
    digest: bytes
    grants: str | None
    label: str
    created: int
    expires: int | None
    seen: int | None
    member_of: str | None = None
    makers: str | None = None


class StoredAccess(Protocol):
    """Operations on people and their secrets within one commit."""

    def person(self, name: str) -> PersonRecord | None:
        """Return a person."""
        ...

    def people(self) -> list[PersonRecord]:
        """Return all people, by name."""
        ...

    def save_person(self, person: PersonRecord) -> None:
        """Keep a person, in place of one with the same name."""
        ...

    def delete_person(self, name: str) -> bool:
        """Delete a person; return whether there was one. Their secrets stay."""
        ...

    def secret(self, id_: str) -> SecretRecord | None:
        """Return a secret."""
        ...

    def secrets(self, kind: str, person: str | None) -> list[SecretRecord]:
        """Return all secrets of a kind, or those of a person, the latest first."""
        ...

    def save_secret(self, secret: SecretRecord) -> None:
        """Keep a new secret, or when it was last seen."""
        ...

    def delete_secret(self, id_: str) -> bool:
        """Delete a secret; return whether there was one."""
        ...

    def delete_secrets(self, person: str, kind: str | None) -> int:
        """Delete the secrets of a person, or those of a kind; return how many."""
        ...

    def setting(self, name: str) -> str | None:
        """Return a setting of the store; None: it was not set."""
        ...

    def fingerprint_key(self) -> bytes:
        """Return the key of fingerprints as people see them."""
        ...

    def save_setting(self, name: str, value: str | None) -> None:
        """Set a setting of the store; None removes it."""
        ...

    def forget(self, before: int, limit: int) -> bool:
        """Delete secrets that expired before a time; return whether there may be more."""
        ...
