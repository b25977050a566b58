"""Message ids in SQL: the part of a transaction for duplicate detection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lazaretto.store.sql.commit_context import Part


class MessageIdTables(Part):
    """Operations on the message ids of a duplicate detection window within one commit."""

    def find(self, queue_id: int, message_id: str, partition_key: str) -> int | None:
        """Return the sequence number under which the id was sent within the window."""
        values = (queue_id, message_id, partition_key, self._context.now)
        row = self._context.run("select_message_id", values).fetchone()
        return row[0] if row else None

    def find_all(self, queue_id: int, message_ids: Iterable[str]) -> dict[str, int]:
        """Return the sequence numbers of those ids, of no partition, that are remembered."""
        context = self._context
        values = {"queue_id": queue_id, "message_ids": context.ids(message_ids), "now": context.now}
        return dict(context.run("select_message_ids", values))

    def find_sent(self, lanes: Mapping[tuple[str | None, str], int]) -> dict[object, int]:
        """Return the sequence numbers of those message ids that were sent.

        `lanes`: the lane of each id with its partition key.
        """
        now = self._context.now
        asked = {
            id_and_key: self._context.run("select_sent_id", (lane, *id_and_key, now))
            for id_and_key, lane in lanes.items()
        }
        rows = {id_and_key: answer.fetchone() for id_and_key, answer in asked.items()}
        return {id_and_key: row[0] for id_and_key, row in rows.items() if row}

    def remember(
        self, queue_id: int, message_id: str, partition_key: str, forget_after: int, sequence_number: int
    ) -> None:
        """Remember a message id."""
        values = (queue_id, message_id, partition_key, forget_after, sequence_number)
        self._context.run("insert_message_id", values)

    def remember_all(self, queue_id: int, numbers: Mapping[str, int], forget_after: int) -> None:
        """Remember message ids of no partition, each with its sequence number."""
        values = [
            value
            for message_id, number in numbers.items()
            for value in (queue_id, message_id, "", forget_after, number)
        ]
        self._context.insert("insert_message_ids", values, len(numbers))

    def forget(self, queue_id: int, message_id: str, partition_key: str, sequence_number: int) -> None:
        """Delete a message id if it was sent under this number."""
        self._context.run("delete_message_id", (queue_id, message_id, partition_key, sequence_number))
