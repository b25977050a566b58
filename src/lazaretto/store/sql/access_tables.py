"""Access in SQL: people and their secrets, and commands with an idempotency key."""

from __future__ import annotations

import msgspec

from lazaretto.store.records.access import FINGERPRINT_KEY, CommandRecord, PersonRecord, SecretRecord
from lazaretto.store.sql.commit_context import Part


class AccessTables(Part):
    """Operations on people and their secrets within one commit."""

    #: It never changes.
    _fingerprint_key: bytes | None = None

    def person(self, name: str) -> PersonRecord | None:
        """Return a person."""
        row = self._context.run("select_person", (name,)).fetchone()
        return PersonRecord(*row) if row else None

    def people(self) -> list[PersonRecord]:
        """Return all people, by name."""
        return [PersonRecord(*row) for row in self._context.run("select_people")]

    def save_person(self, person: PersonRecord) -> None:
        """Keep a person, in place of one with the same name."""
        self._context.run("save_person", msgspec.structs.asdict(person))

    def delete_person(self, name: str) -> bool:
        """Delete a person; return whether there was one. Their secrets stay."""
        return bool(self._context.run("delete_person", (name,)).rowcount)

    def secret(self, id_: str) -> SecretRecord | None:
        """Return a secret."""
        row = self._context.run("select_secret", (id_,)).fetchone()
        return SecretRecord(*row) if row else None

    def secrets(self, kind: str, person: str | None) -> list[SecretRecord]:
        """Return all secrets of a kind, or those of a person, the latest first."""
        rows = self._context.run("select_secrets", {"kind": kind, "person": person})
        return [SecretRecord(*row) for row in rows]

    def save_secret(self, secret: SecretRecord) -> None:
        """Keep a new secret, or when it was last seen."""
        self._context.run("save_secret", msgspec.structs.asdict(secret))

    def delete_secret(self, id_: str) -> bool:
        """Delete a secret; return whether there was one."""
        return bool(self._context.run("delete_secret", (id_,)).rowcount)

    def delete_secrets(self, person: str, kind: str | None) -> int:
        """Delete the secrets of a person, or those of a kind; return how many."""
        return int(self._context.run("delete_secrets", {"person": person, "kind": kind}).rowcount)

    def setting(self, name: str) -> str | None:
        """Return a setting of the store; None: it was not set."""
        row = self._context.run("select_setting", (name,)).fetchone()
        return str(row[0]) if row else None

    def fingerprint_key(self) -> bytes:
        """Return the key of fingerprints as people see them."""
        if self._fingerprint_key is None:
            self._fingerprint_key = bytes.fromhex(self.setting(FINGERPRINT_KEY) or "")
        return self._fingerprint_key

    def save_setting(self, name: str, value: str | None) -> None:
        """Set a setting of the store; None removes it."""
        if value is None:
            self._context.run("delete_setting", (name,))
        else:
            self._context.run("save_setting", {"name": name, "value": value})

    def forget(self, before: int, limit: int) -> bool:
        """Delete secrets that expired before a time; return whether there may be more."""
        return bool(self._context.run("forget_secrets", (before, limit)).rowcount >= limit)


class CommandTables(Part):
    """Operations on commands that were run under an idempotency key, within one commit."""

    def find(self, key: str) -> CommandRecord | None:
        """Return the command that was run under a key."""
        row = self._context.run("select_command", (key,)).fetchone()
        return CommandRecord(*row) if row else None

    def keep(self, record: CommandRecord) -> None:
        """Keep a command and its answer, in place of one with the same key."""
        self._context.run("save_command", msgspec.structs.asdict(record))

    def forget(self, before: int, limit: int) -> bool:
        """Delete commands that were run before a time; return whether there may be more."""
        return bool(self._context.run("delete_commands", (before, limit)).rowcount >= limit)
