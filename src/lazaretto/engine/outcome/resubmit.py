"""Resubmits dead letters to their queue, unchanged or edited."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lazaretto.engine.command import OfLetters
from lazaretto.engine.entities.status import refuse_sending
from lazaretto.engine.four_eyes import count_letters
from lazaretto.engine.log import audit, note_all
from lazaretto.engine.messages.prepare import check_size, prepare
from lazaretto.engine.outcome.dead_letter_operations import (
    Skipped,
    holder,
    letter_of,
    messages_of,
    name_numbers,
)
from lazaretto.engine.outcome.send_back import send_back
from lazaretto.errors import InvalidMessage, LazarettoError
from lazaretto.model.entities import EntityPath
from lazaretto.model.keys import lower_bound, sequence_of
from lazaretto.model.messages import DeadLetter, Message
from lazaretto.store.records.messages import DeadLetterRecord, MessageRow, NewMessage, QueueRecord
from lazaretto.store.sql.transaction import Transaction

#: Returns the message to send instead of a dead letter, or None to send it back as it is.
EditFunction = Callable[[DeadLetter], Message | None]
#: What was made of dead letters before, by sequence number: what to send, None, or why one is refused.
EditedLetters = Mapping[int, NewMessage | str | None]


@dataclasses.dataclass(frozen=True, slots=True)
class ResubmitReport:
    """Resubmitted dead letters by old and new sequence number; and those skipped, and why."""

    resubmitted: dict[int, int]
    skipped: list[Skipped]


class Resubmit(OfLetters[ResubmitReport], frozen=True, kw_only=True):
    """Send dead letters back to their queue."""

    action = "resubmit"

    def run(self, tx: Transaction, actor: str) -> ResubmitReport:
        return resubmit(tx, self.place, self.numbers, actor)

    def sends_to(self) -> str:
        return self.path


def resubmit(
    tx: Transaction,
    path: EntityPath,
    numbers: Sequence[int],
    actor: str,
    edit: EditFunction | EditedLetters | None = None,
    detail: Mapping[str, Any] | None = None,
) -> ResubmitReport:
    """Resubmit dead letters to the queue they came from, in one commit.

    A message keeps its id and begins a new generation: its cycle counters restart, its lifetime totals
    continue. An edited message gets a new id. A dead letter that cannot be resubmitted stays where it is.
    """
    queue = holder(tx, path)
    refuse_sending(queue)
    keys = [lower_bound(queue.queue_id) + number for number in dict.fromkeys(numbers)]
    prepared = None if edit is None else functools.partial(_edited, tx, queue, edit)
    result = send_back(tx, queue, path.subqueue, keys, prepared)
    sent = {sequence_of(old): sequence_of(new) for old, new in result.sent.items()}
    skipped = [Skipped(sequence_of(key), why) for key, why in result.skipped.items()]
    count_letters(tx, actor, len(sent), "resubmit")
    if sent:
        edited = {sequence_of(key) for key in result.edited}
        events = [(old, {"new_sequence_number": new, "edited": old in edited}) for old, new in sent.items()]
        note_all(tx, "resubmitted", [(queue, *event) for event in events])
        audit(tx, actor, "resubmit", queue.path, **name_numbers(sent), **(detail or {}))
    return ResubmitReport(sent, skipped)


def _edited(
    tx: Transaction,
    queue: QueueRecord,
    edit: EditFunction | EditedLetters,
    row: MessageRow,
    record: DeadLetterRecord,
) -> NewMessage | None:
    """Return the edited message, or None to resubmit the dead letter unchanged."""
    if isinstance(edit, Mapping):
        new = edit.get(sequence_of(record.key), "it was not there when the edit was made")
        if isinstance(new, str):
            raise InvalidMessage(new)
    else:
        try:
            edited = edit(letter_of(tx, queue, record, messages_of(tx, [record]).get(record.key)))
        except LazarettoError:
            raise
        except Exception as error:
            raise InvalidMessage(f"the edit failed: {type(error).__name__}: {error}") from error
        new = None if edited is None else prepare(edited)
    if new is None:
        return None
    check_size(new, queue.options.max_message_size)
    return new
