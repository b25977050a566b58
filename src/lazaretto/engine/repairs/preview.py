"""Previews a repair: what would become of its letters if they were sent now. It only reads."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from lazaretto.engine.messages.prepare import message_of
from lazaretto.engine.outcome.dead_letter_operations import find_obstacle
from lazaretto.engine.outcome.rerouting import check_target
from lazaretto.engine.outcome.send_back import Reviver
from lazaretto.engine.outcome.session_holds import holding
from lazaretto.engine.repairs.advance import obstacle
from lazaretto.engine.repairs.course import Course, find_repair
from lazaretto.engine.repairs.editing import LetterEditor, edit_letters, letters_at
from lazaretto.engine.repairs.letters import Edited
from lazaretto.engine.routing.deliver import revived
from lazaretto.engine.routing.router import Router
from lazaretto.errors import LazarettoError
from lazaretto.model.edits.difference import differences
from lazaretto.model.entities import EntityPath
from lazaretto.model.headers import decode_headers
from lazaretto.model.keys import dead_key, main_key, subqueue_at
from lazaretto.model.messages import DeadLetter
from lazaretto.model.partitions import detection_key
from lazaretto.model.repairs import EditedLetter, RepairPreview
from lazaretto.store.records.messages import MessageRow, NewMessage, QueueRecord
from lazaretto.store.records.repairs import RepairRecord
from lazaretto.store.sql.transaction import Transaction

#: Letters whose changes are shown.
_SHOWN = 5
#: Letters that are looked at in one read.
_AT_ONCE = 500


def places(letters: int, wanted: int | None) -> list[tuple[int, int]]:
    """Return which members to look at: all, or as many as wanted in a few runs spread over the whole set."""
    if wanted is None or wanted >= letters:
        spread = [(0, letters)]
    else:
        runs = min(10, wanted)
        size = wanted // runs
        spread = [(letters * run // runs, min(letters * run // runs + size, letters)) for run in range(runs)]
    return [
        (first, min(first + _AT_ONCE, end)) for start, end in spread for first in range(start, end, _AT_ONCE)
    ]


_R = TypeVar("_R")


class Look(Protocol):
    """Reads the store in one snapshot."""

    def __call__(self, read: Callable[[Transaction], _R], /) -> _R:
        """Return what a function reads."""
        ...


def preview(look: Look, name: str, editor: LetterEditor | None, wanted: int | None) -> RepairPreview:
    """Return what would become of the letters of a repair, or of some of them, if they were sent now.

    An edit is applied between two reads, because a function may take its time.
    """
    record = look(lambda tx: find_repair(tx, name))
    sample = _Look(record)
    look(sample.begin)
    for first, last in places(record.letters, wanted):
        while first < last:
            # Without an edit nobody asks what the messages are.
            read = functools.partial(
                letters_at, record=record, first=first, last=last, messages=editor is not None
            )
            queue, keys, letters = look(read)
            edits = None if editor is None or queue is None else edit_letters(editor, queue, keys, letters)
            if edits is not None:
                sample.show(letters, edits)
            look(functools.partial(sample.at, keys=keys, edits=edits))
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
