"""Previews a repair: what would become of its letters if they were sent now. It only reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lazaretto.edits.edit import Edit
from lazaretto.engine.outcome.dead_letter_operations import find_obstacle
from lazaretto.engine.outcome.rerouting import check_target
from lazaretto.engine.outcome.send_back import Reviver
from lazaretto.engine.repairs.advance import obstacle
from lazaretto.engine.repairs.course import Course
from lazaretto.engine.repairs.editing import edited_letters
from lazaretto.engine.repairs.key_list import PART
from lazaretto.engine.routing.deliver import revived
from lazaretto.engine.routing.router import Router
from lazaretto.errors import LazarettoError
from lazaretto.model.entities import EntityPath
from lazaretto.model.headers import decode_headers
from lazaretto.model.keys import dead_key, subqueue_at
from lazaretto.model.repairs import EditedLetter, RepairPreview
from lazaretto.store.contract.records import MessageRow, NewMessage, QueueRecord
from lazaretto.store.contract.repair_contract import RepairRecord
from lazaretto.store.contract.transaction_contract import Transaction

#: Letters whose changes are shown.
_SHOWN = 5


def places(letters: int, wanted: int | None) -> list[tuple[int, int]]:
    """Return which members to look at: all, or as many as wanted in a few runs spread over the whole set."""
    if wanted is None or wanted >= letters:
        return [(start, min(start + PART, letters)) for start in range(0, letters, PART)]
    runs = min(10, wanted)
    size = wanted // runs
    return [(letters * run // runs, min(letters * run // runs + size, letters)) for run in range(runs)]


def preview(tx: Transaction, record: RepairRecord, edit: Edit | None, wanted: int | None) -> RepairPreview:
    """Return what would become of the letters, or of some of them, if they were sent now."""
    look = _Look(Course.of(tx, record), edit)
    for first, last in places(record.letters, wanted):
        keys = look.course.members(first, last)
        for start in range(0, len(keys), 500):
            look.at(keys[start : start + 500])
    return look.result()


class _Look:
    """Gathers what is found of letters."""

    def __init__(self, course: Course, edit: Edit | None) -> None:
        self.course = course
        self._edit = edit
        self._tx = course.tx
        self._subqueue = subqueue_at(course.record.subqueue)
        self._stops = obstacle(course)
        self._queue = course.queue
        self._target = self._find_target()
        self._looked = self._bytes = self._unchanged = self._duplicates = self._placed = 0
        self._skipped: Counter[str] = Counter()
        self._sessions: set[str] = set()
        self._changed = 0
        self._shown: list[EditedLetter] = []

    def _find_target(self) -> QueueRecord | None:
        to, queue = self.course.plan.to, self._queue
        if to is None or queue is None or self._stops is not None:
            return queue
        return check_target(self._tx, EntityPath(queue.path, self._subqueue), EntityPath.parse(to))

    def at(self, keys: Sequence[int]) -> None:
        """Look at some letters."""
        queue, target, tx = self._queue, self._target, self._tx
        self._looked += len(keys)
        if queue is None or target is None:
            return
        rows = tx.rows([dead_key(key, self._subqueue) for key in keys])
        letters = tx.history.some_dead_letters(keys)
        held = tx.sessions.held_by(keys) if queue.options.requires_session else {}
        self._placed += len(held)
        edits, shown = (
            ({}, [])
            if self._edit is None
            else edited_letters(tx, queue, keys, self._subqueue, self._edit, _SHOWN - len(self._shown))
        )
        self._shown += shown
        reviver, router = Reviver(tx, queue), Router(tx)
        for message in tx.peek_keys(list(rows)):
            self._bytes += len(message.body) + len(message.encoded_headers or b"")
        for key in keys:
            row = rows.get(dead_key(key, self._subqueue))
            edited = edits.get(key)
            why = find_obstacle(row, letters.get(key), self.course.plan.frozen_at)
            if why is None and isinstance(edited, str):
                why = edited
            if why is None:
                assert row is not None
                assert not isinstance(edited, str)
                why = self._why_not(row, edited, target, reviver, router)
            if why is not None:
                self._skipped[why] += 1
            elif self._edit is not None:
                self._changed += edited is not None
                self._unchanged += edited is None

    def _why_not(
        self,
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
            partition = headers.partition_key or ""
            self._duplicates += (
                self._tx.message_ids.find(target.queue_id, row.message_id, partition) is not None
            )
        if self.course.plan.to is not None:
            trouble = router.find_obstacle(target.path, revived(self._tx, row))
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
            letters=self.course.record.letters,
            stops=self._stops,
            to="" if self._target is None else self._target.path,
            bytes=self._bytes,
            sessions=len(self._sessions),
            held_places=self._placed,
            duplicates=self._duplicates,
            skipped=dict(self._skipped.most_common()),
            changed=self._changed,
            unchanged=self._unchanged,
            examples=tuple(self._shown),
        )
