"""Previews a repair: what would become of its letters if they were sent now. It only reads."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from lazaretto.engine.maintenance import look
from lazaretto.engine.messages.peek import in_parts
from lazaretto.engine.messages.prepare import check_size, message_of
from lazaretto.engine.outcome.dead_letter_operations import find_obstacle, letter_of, messages_of
from lazaretto.engine.outcome.rerouting import check_target
from lazaretto.engine.outcome.send_back import Reviver
from lazaretto.engine.outcome.session_holds import holding
from lazaretto.engine.repairs.advance import obstacle
from lazaretto.engine.repairs.course import Course, find_repair
from lazaretto.engine.repairs.letters import Edited
from lazaretto.engine.routing.deliver import revived
from lazaretto.engine.routing.router import Router
from lazaretto.errors import LazarettoError
from lazaretto.model.clock import check
from lazaretto.model.edits.difference import differences
from lazaretto.model.edits.edit import Edit, EditKind
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.headers import decode_headers
from lazaretto.model.keys import dead_key, main_key, subqueue_at
from lazaretto.model.messages import DeadLetter
from lazaretto.model.partitions import detection_key
from lazaretto.model.repairs import EditedLetter, Plan, RepairPreview
from lazaretto.store.records.messages import MessageRow, NewMessage, QueueRecord
from lazaretto.store.records.repairs import DeadLetterRecord, RepairRecord
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

#: Letters whose changes are shown.
_SHOWN = 5
#: Letters that are looked at in one read.
_AT_ONCE = 500

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


def places(letters: int, most: int | None) -> list[tuple[int, int]]:
    """Return which members to look at: all, or as many as wanted in a few runs spread over the whole set."""
    if most is None or most >= letters:
        spread = [(0, letters)]
    else:
        runs = min(10, most)
        size = most // runs
        spread = [(letters * run // runs, min(letters * run // runs + size, letters)) for run in range(runs)]
    return [
        (first, min(first + _AT_ONCE, end)) for start, end in spread for first in range(start, end, _AT_ONCE)
    ]


def preview(store: Store, name: str, editor: LetterEditor | None, most: int | None) -> RepairPreview:
    """Return what would become of the letters of a repair, or of some of them, if they were sent now.

    An edit is applied between two reads, because a function may take its time.
    """
    record = look(store, lambda tx: find_repair(tx, name))
    sample = _Look(record)
    look(store, sample.begin)
    for first, last in places(record.letters, most):
        while first < last:
            # Without an edit nobody asks what the messages are.
            read = functools.partial(
                letters_at, record=record, first=first, last=last, messages=editor is not None
            )
            queue, keys, letters = look(store, read)
            edits = None if editor is None or queue is None else edit_letters(editor, queue, keys, letters)
            if edits is not None:
                sample.show(letters, edits)
            look(store, functools.partial(sample.at, keys=keys, edits=edits))
            first += len(keys)
    return sample.result()


class _Look:
    """Gathers what is found of letters."""

    def __init__(self, record: RepairRecord) -> None:
        self._record = record
        self._subqueue = subqueue_at(record.subqueue)
        self._stops: str | None = None
        self._to = ""
        self._looked = self._bytes = self._unchanged = self._duplicates = self._placed = 0
        self._skipped: Counter[str] = Counter()
        self._sessions: set[str] = set()
        self._changed = 0
        self._shown: list[EditedLetter] = []

    def begin(self, tx: Transaction) -> None:
        """Find out whether anything can be sent, and where it goes."""
        course = Course.of(tx, self._record)
        self._stops = obstacle(course)
        target = self._target(course)
        self._to = "" if target is None else target.path

    def _target(self, course: Course) -> QueueRecord | None:
        to, queue = course.plan.to, course.queue
        if to is None or queue is None or self._stops is not None:
            return queue
        return check_target(course.tx, EntityPath(queue.path, self._subqueue), EntityPath.parse(to))

    def show(self, letters: Mapping[int, DeadLetter], edits: Mapping[int, Edited]) -> None:
        """Keep how the edit changes the first letters."""
        for key, letter in letters.items():
            new = edits.get(key)
            if len(self._shown) >= _SHOWN:
                return
            if isinstance(new, NewMessage) and letter.message is not None:
                lines = differences(letter.message, message_of(new))
                self._shown.append(EditedLetter(letter.sequence_number, tuple(lines)))

    def at(self, tx: Transaction, keys: Sequence[int], edits: Mapping[int, Edited] | None) -> None:
        """Look at some letters."""
        course = Course.of(tx, self._record)
        queue, target = course.queue, self._target(course)
        self._looked += len(keys)
        if queue is None or target is None:
            return
        rows = tx.rows([dead_key(key, self._subqueue) for key in keys])
        letters = tx.history.some_dead_letters(keys)
        self._placed += len(holding(tx, queue, {main_key(row.key): row for row in rows.values()}))
        reviver, router = Reviver(tx, queue), Router(tx)
        excluded = {item.key: item.why for item in tx.repairs.items(self._record.repair, keys)}
        self._bytes += sum(tx.sizes_of(list(rows)).values())
        for key in keys:
            row = rows.get(dead_key(key, self._subqueue))
            edited = None if edits is None else edits.get(key)
            why = excluded.get(key) or find_obstacle(row, letters.get(key), course.plan.frozen_at)
            if why is None and isinstance(edited, str):
                why = edited
            if why is None:
                assert row is not None
                assert not isinstance(edited, str)
                why = self._why_not(course, row, edited, target, reviver, router)
            if why is not None:
                self._skipped[why] += 1
            elif edits is not None:
                self._changed += edited is not None
                self._unchanged += edited is None

    def _why_not(
        self,
        course: Course,
        row: MessageRow,
        edited: NewMessage | None,
        target: QueueRecord,
        reviver: Reviver,
        router: Router,
    ) -> str | None:
        """Return why a letter would be skipped; note what else is to be known of it."""
        headers = decode_headers(row.headers if edited is None else edited.headers)
        if headers.session_id is not None and target.options.requires_session:
            self._sessions.add(headers.session_id)
        if target.options.requires_duplicate_detection:
            partition = detection_key(headers.partition_key, target.partitions)
            self._duplicates += (
                course.tx.message_ids.find(target.queue_id, row.message_id, partition) is not None
            )
        if course.plan.to is not None:
            trouble = router.find_obstacle(target.path, revived(course.tx, row))
            return None if trouble is None else trouble.text
        try:
            reviver.live(row, edited)
        except LazarettoError as error:
            return str(error)
        return None

    def result(self) -> RepairPreview:
        """Return what was found."""
        return RepairPreview(
            looked_at=self._looked,
            letters=self._record.letters,
            stops=self._stops,
            to=self._to,
            bytes=self._bytes,
            sessions=len(self._sessions),
            held_places=self._placed,
            duplicates=self._duplicates,
            skipped=dict(self._skipped.most_common()),
            changed=self._changed,
            unchanged=self._unchanged,
            examples=tuple(self._shown),
        )


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
