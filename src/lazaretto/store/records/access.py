"""Access in the store: people with what they were granted, and their secrets."""

from __future__ import annotations

from typing import Final

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


class CommandRecord(msgspec.Struct, frozen=True):
    """A command that was run. `digest`: of what it was; `answer`: as JSON; `time`: in microseconds."""

    key: str
    actor: str
    digest: bytes
    answer: bytes
    time: int
