"""Edits the letters of a repair ahead of their turn; functions in a thread of their own, as they may hang."""

from __future__ import annotations

import functools
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait

from lazaretto.edits.edit import Edit, EditKind
from lazaretto.engine.repairs.course import plan_of
from lazaretto.engine.repairs.editing import LetterEditor, MakeEditor, edit_letters, letters_at
from lazaretto.engine.repairs.letters import Edited
from lazaretto.model.repair_phases import Phase
from lazaretto.store.records.repairs import RepairRecord
from lazaretto.store.sql.store import Store

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
        #: Edited letters by key, with the place behind their last one.
        self._known: deque[tuple[int, dict[int, Edited]]] = deque()
        self._asked: tuple[int, Future[dict[int, Edited]]] | None = None

    def take(self, record: RepairRecord, number: int, seconds: float) -> dict[int, Edited]:
        """Return what is known of the next letters; wait so long if nothing is.

        Raises HandlerError, SandboxError: the edit cannot be applied to any letter.
        """
        end = plan_of(record).canary if record.phase == Phase.CANARY.value else record.letters
        while self._known and self._known[0][0] <= record.position:
            self._known.popleft()
        self._collect(record, number, end)
        if not self._known and self._asked is not None:
            wait([self._asked[1]], seconds)
            self._collect(record, number, end)
        return {key: edited for _, some in self._known for key, edited in some.items()}

    def covers(self, record: RepairRecord, number: int) -> bool:
        """Return whether so many of the next letters are edited."""
        return bool(self._known) and self._known[-1][0] >= record.position + number

    def _collect(self, record: RepairRecord, number: int, end: int) -> None:
        """Take what was edited meanwhile, and have more edited."""
        if self._asked is not None and self._asked[1].done():
            (behind, future), self._asked = self._asked, None
            self._known.append((behind, future.result()))
        start = self._known[-1][0] if self._known else record.position
        if not self._calls:
            # Not beside a commit: the two threads would take turns, and the commit hold its lock longer.
            behind = min(end, record.position + number)
            if start < behind:
                self._known.append((behind, self._edit(record, start, behind)))
        elif self._asked is None and start < min(end, record.position + 2 * max(number, _CALLED)):
            behind = min(end, start + _CALLED)
            self._asked = behind, self._pool.submit(self._edit, record, start, behind)

    def _edit(self, record: RepairRecord, first: int, last: int) -> dict[int, Edited]:
        read = functools.partial(letters_at, record=record, first=first, last=last)
        queue, keys, letters = self._store.read(read)
        if queue is None:
            return dict.fromkeys(keys)
        with self._lock:
            if self._editor is None and not self._closed:
                self._editor = self._make()
            editor = self._editor
        return dict.fromkeys(keys) if editor is None else edit_letters(editor, queue, keys, letters)

    def close(self) -> None:
        """End the edit that is at work, and give up what it holds."""
        with self._lock:
            self._closed = True
            if self._editor is not None:
                self._editor.stop()
        self._pool.shutdown(cancel_futures=True)
        if self._editor is not None:
            self._editor.close()
