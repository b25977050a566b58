"""History in the store: attempts, dead letters, events, and the audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lazaretto.model.fingerprint import Fingerprint
from lazaretto.store.contract.records import (
    AttemptRecord,
    AuditCriteria,
    AuditRecord,
    DeadLetterCriteria,
    DeadLetterRecord,
    ErrorRecord,
    EventRecord,
    NewEvent,
)


class StoredHistory(Protocol):
    """Records and looks up history within one commit.

    The key of attempts and dead letters is the message's key in the queue itself. Details are JSON.
    """

    def insert_attempts(self, attempts: Sequence[tuple[int, AttemptRecord]]) -> None:
        """Add to the histories of messages, each given by its key."""
        ...

    def trim_attempts(self, key: int, number: int) -> None:
        """Delete a message's attempts up to a number."""
        ...

    def attempts(self, key: int) -> list[AttemptRecord]:
        """Return a message's history, oldest first."""
        ...

    def workers(self, keys: Sequence[int]) -> dict[int, str]:
        """Return who made the latest attempt at each message, by key, where that is known."""
        ...

    def move_attempts(self, key: int, new_key: int) -> None:
        """Move a message's history to another key."""
        ...

    def delete_attempts(self, keys: Sequence[int]) -> None:
        """Delete the history of messages."""
        ...

    def last_error(self, key: int) -> ErrorRecord | None:
        """Return a message's latest error."""
        ...

    def insert_dead_letter(self, record: DeadLetterRecord, print_: Fingerprint) -> None:
        """Record why a message was dead-lettered, and count it by its fingerprint."""
        ...

    def dead_letter(self, key: int) -> DeadLetterRecord | None:
        """Return one dead letter, resolved or not."""
        ...

    def some_dead_letters(self, keys: Sequence[int]) -> dict[int, DeadLetterRecord]:
        """Return several dead letters, resolved or not, by key."""
        ...

    def dead_letters(self, criteria: DeadLetterCriteria, limit: int) -> list[DeadLetterRecord]:
        """Return unresolved dead letters, lowest sequence number first."""
        ...

    def dead_letter_keys(self, criteria: DeadLetterCriteria, limit: int) -> list[int]:
        """Return only the keys of unresolved dead letters."""
        ...

    def resolve_dead_letters(self, keys: Sequence[int], resolution: str) -> None:
        """Record how dead letters were resolved, and stop counting them."""
        ...

    def send_dead_letters(self, sent: Mapping[int, int | None], resolution: str) -> None:
        """Record dead letters as resubmitted or moved, with their new keys."""
        ...

    def purged(self, first: int, last: int, subqueue: int) -> list[int]:
        """Return the keys of purged dead letters that can be restored, lowest first."""
        ...

    def purged_before(self, before: int, limit: int) -> list[int]:
        """Return the keys of dead letters that were purged before a time."""
        ...

    def mark_deleted(self, keys: Sequence[int]) -> None:
        """Record that purged dead letters were deleted for good."""
        ...

    def forget_old(self, before: int, limit: int) -> bool:
        """Delete old events, resolved dead letters and message ids; return whether there may be more."""
        ...

    def insert_events(self, kind: str, events: Sequence[NewEvent]) -> None:
        """Add to the event log."""
        ...

    def events(self, after: int, limit: int, *, kind: str | None, queue: str | None) -> list[EventRecord]:
        """Return events after a position, oldest first."""
        ...

    def events_before(
        self, before: int, limit: int, *, kind: str | None, queue: str | None
    ) -> list[EventRecord]:
        """Return events before a position, newest first."""
        ...

    def end(self, queue: str, sequence_number: int, limit: int) -> EventRecord | None:
        """Return the event "dropped" or "rejected" of a message, if it is among so many latest events."""
        ...

    def last_event(self) -> int:
        """Return the position of the latest event."""
        ...

    def insert_audit(self, actor: str, action: str, queues: Sequence[str], detail: str) -> None:
        """Add an entry about each of several entities to the audit log."""
        ...

    def audit(self, criteria: AuditCriteria, limit: int) -> list[AuditRecord]:
        """Return operators' actions, newest first."""
        ...
