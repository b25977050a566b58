"""Edits of a repair's letters, before any commit is begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from lazaretto.engine.messages.parts import in_parts
from lazaretto.engine.messages.prepare import check_size
from lazaretto.engine.outcome.dead_letter_operations import letter_of, messages_of
from lazaretto.engine.repairs.course import Course
from lazaretto.engine.repairs.letters import Edited
from lazaretto.errors import LazarettoError
from lazaretto.model.deadline import check
from lazaretto.model.edits.edit import Edit, EditKind
from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import dead_key, main_key, subqueue_at
from lazaretto.model.messages import DeadLetter
from lazaretto.model.repairs import Plan
from lazaretto.store.records.messages import DeadLetterRecord, NewMessage, QueueRecord
from lazaretto.store.records.repairs import RepairRecord
from lazaretto.store.sql.transaction import Transaction

#: Bytes of the messages of letters that are read at once, unless one alone has more.
ROOM_OF_LETTERS: Final = 16 << 20


class LetterEditor(Protocol):
    """Applies an edit to dead letters; one thread calls it, any thread stops it."""

    def __call__(self, letters: Sequence[DeadLetter]) -> list[Edited]:
        """Return what becomes of each letter, in order. Raises HandlerError, SandboxError."""
        ...

    def stop(self) -> None:
        """Let a call end soon."""
        ...

    def close(self) -> None:
        """Give up what it holds."""
        ...


#: Makes what applies an edit. Raises HandlerError.
MakeEditor = Callable[[Edit], LetterEditor]


def edit_of(plan: Plan) -> Edit | None:
    """Return the edit of a planned repair; a function as its source was when the repair was planned."""
    if plan.edit is None:
        return None
    edit = Edit.parse(plan.edit)
    return Edit(edit.kind, edit.text, plan.edit_source) if edit.kind is EditKind.FUNCTION else edit


def letters_at(
    tx: Transaction,
    record: RepairRecord,
    first: int,
    last: int,
    *,
    messages: bool = True,
    room: int | None = ROOM_OF_LETTERS,
) -> tuple[QueueRecord | None, list[int], dict[int, DeadLetter]]:
    """Return the queue of a repair, the keys at some places, and the letters that wait there, by key.

    Only the first keys whose messages have `room`, in bytes, or one; None: all of them.
    """
    course = Course.of(tx, record)
    queue, keys = course.queue, course.members(first, last)
    if queue is None:
        return None, keys, {}
    if messages and room is not None:
        dead = {key: dead_key(key, subqueue_at(record.subqueue)) for key in keys}
        sizes = tx.sizes_of(list(dead.values()))
        keys = list(next(in_parts(keys, {key: sizes.get(dead[key], 0) for key in keys}, room), ()))
    letters = tx.history.some_dead_letters(keys)
    records = [letters[key] for key in keys if key in letters and _waits(letters[key], record)]
    messages_by_key = messages_of(tx, records) if messages else {}
    if messages:
        records = [letter for letter in records if letter.key in messages_by_key]
    return queue, keys, {r.key: letter_of(tx, queue, r, messages_by_key.get(r.key)) for r in records}


def _waits(letter: DeadLetterRecord, repair: RepairRecord) -> bool:
    """Return whether a letter is still where a repair found it."""
    return letter.resolution is None and letter.subqueue == repair.subqueue


def edit_letters(
    editor: LetterEditor, queue: QueueRecord, keys: Sequence[int], letters: Mapping[int, DeadLetter]
) -> dict[int, Edited]:
    """Return what an edit makes of letters, by key.

    A letter that is gone is left as it is: it is skipped when its turn comes.
    """
    made = zip(letters, editor(list(letters.values())), strict=True)
    edited = {key: _fitting(queue, new) for key, new in made}
    return {key: edited.get(key) for key in keys}


def _fitting(queue: QueueRecord, new: Edited) -> Edited:
    if isinstance(new, NewMessage):
        try:
            check_size(new, queue.options.max_message_size)
        except LazarettoError as error:
            return f"the edited message cannot be sent: {error}"
    return new


def sessions_after(
    tx: Transaction, queue: QueueRecord, subqueue: Subqueue, editor: LetterEditor, keys: Sequence[int]
) -> dict[int, str | None]:
    """Return the sessions that an edit puts letters in, by key, where it changes something."""
    sessions: dict[int, str | None] = {}
    dead = [dead_key(key, subqueue) for key in keys]
    for part in in_parts(dead, tx.sizes_of(dead), ROOM_OF_LETTERS):
        check()
        records = tx.history.some_dead_letters([main_key(key) for key in part])
        messages = messages_of(tx, records.values())
        letters = {
            key: letter_of(tx, queue, record, messages[key])
            for key, record in records.items()
            if key in messages
        }
        for key, new in zip(letters, editor(list(letters.values())), strict=True):
            if isinstance(new, NewMessage):
                sessions[key] = new.session_id
    return sessions
