"""Edits the letters of a repair ahead of their turn; functions in a thread of their own, as they may hang."""

from __future__ import annotations

import functools
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait

from lazaretto.engine.repairs.advance import divides_units
from lazaretto.engine.repairs.course import Course, plan_of
from lazaretto.engine.repairs.letters import Edited
from lazaretto.engine.repairs.preview import (
    ROOM_OF_LETTERS,
    LetterEditor,
    MakeEditor,
    edit_letters,
    letters_at,
)
from lazaretto.model.edits.edit import Edit, EditKind
from lazaretto.model.messages import DeadLetter
from lazaretto.model.repairs import Phase
from lazaretto.store.records.messages import NewMessage, QueueRecord
from lazaretto.store.records.repairs import RepairRecord
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

#: Letters for which a function is called at once.
_CALLED = 50


class Ahead:
    """Edits the next letters of a repair: as many as may be sent soon, so that memory stays flat.

    `take` may be called again and again, and takes no longer than it is told to, however long an edit takes.
    """

    def __init__(self, store: Store, edit: Edit, make: MakeEditor) -> None:
        self._store = store
        self._make = functools.partial(make, edit)
        self._calls = edit.kind is EditKind.FUNCTION
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lazaretto-edits")
        self._lock = threading.Lock()
        self._editor: LetterEditor | None = None
        self._closed = False
        #: Whether a step must ask where it may end.
        self._divides = False
        #: Edited letters by key, with the place behind their last one.
        self._known: deque[tuple[int, dict[int, Edited]]] = deque()
        self._asked: Future[tuple[int, dict[int, Edited]]] | None = None

    def take(self, record: RepairRecord, number: int, seconds: float) -> dict[int, Edited]:
        """Return what is known of the next letters; wait so long if nothing is.

        Raises HandlerError, SandboxError: the edit cannot be applied to any letter.
        """
        end = plan_of(record).canary if record.phase == Phase.CANARY.value else record.letters
        while self._known and self._known[0][0] <= record.position:
            self._known.popleft()
        self._collect(record, number, end)
        if not self._known and self._asked is not None:
            wait([self._asked], seconds)
            self._collect(record, number, end)
        return self.known

    @property
    def known(self) -> dict[int, Edited]:
        """Letters that are edited and not sent, by key."""
        return {key: edited for _, some in self._known for key, edited in some.items()}

    def covers(self, record: RepairRecord, number: int) -> bool:
        """Return whether so many of the next letters are edited."""
        return bool(self._known) and self._known[-1][0] >= record.position + number

    def _collect(self, record: RepairRecord, number: int, end: int) -> None:
        """Take what was edited meanwhile, and have more edited."""
        if self._asked is not None and self._asked.done():
            edited, self._asked = self._asked, None
            self._known.append(edited.result())
        start = self._known[-1][0] if self._known else record.position
        if not self._calls:
            # Not beside a commit: the two threads would take turns, and the commit hold its lock longer.
            behind = min(end, record.position + number)
            if start < behind and self._has_room():
                self._known.append(self._edit(record, start, behind))
        elif (
            self._asked is None
            and start < min(end, record.position + 2 * max(number, _CALLED))
            and self._has_room()
        ):
            self._asked = self._pool.submit(self._edit, record, start, min(end, start + _CALLED))

    def _has_room(self) -> bool:
        """Return whether more may be edited: it is in memory until it is sent. A unit is sent as one."""
        return (
            self._divides
            or sum(
                len(one.body)
                for _, some in self._known
                for one in some.values()
                if isinstance(one, NewMessage)
            )
            < ROOM_OF_LETTERS
        )

    def _edit(self, record: RepairRecord, first: int, last: int) -> tuple[int, dict[int, Edited]]:
        """Return what the edit makes of those letters that there is room for, and the place behind them."""

        def read(tx: Transaction) -> tuple[bool, tuple[QueueRecord | None, list[int], dict[int, DeadLetter]]]:
            divides = divides_units(Course.of(tx, record))
            room = None if divides else ROOM_OF_LETTERS
            return divides, letters_at(tx, record, first, last, room=room)

        self._divides, (queue, keys, letters) = self._store.read(read)
        behind = first + len(keys)
        if queue is None:
            return behind, dict.fromkeys(keys)
        with self._lock:
            if self._editor is None and not self._closed:
                self._editor = self._make()
            editor = self._editor
        return behind, dict.fromkeys(keys) if editor is None else edit_letters(editor, queue, keys, letters)

    def close(self) -> None:
        """End the edit that is at work, and give up what it holds."""
        with self._lock:
            self._closed = True
            if self._editor is not None:
                self._editor.stop()
        self._pool.shutdown(cancel_futures=True)
        if self._editor is not None:
            self._editor.close()
