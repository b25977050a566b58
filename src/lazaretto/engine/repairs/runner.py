"""Runs repairs: takes the lease of one, and takes it on step by step until nothing is left to do.

Letters are edited ahead of their turn; functions run in a thread of their own, as they may hang.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from lazaretto.engine.repairs.advance import (
    LEASE,
    Advance,
    GiveUpRepair,
    Step,
    TakeRepair,
    divides_units,
    is_free,
    next_letters,
    would_advance,
)
from lazaretto.engine.repairs.course import Course, pace_of, plan_of
from lazaretto.engine.repairs.letters import Edited
from lazaretto.engine.repairs.preview import (
    ROOM_OF_LETTERS,
    LetterEditor,
    MakeEditor,
    edit_letters,
    edit_of,
    letters_at,
)
from lazaretto.errors import BrokerClosed, HandlerError, LazarettoError, SandboxError
from lazaretto.model.edits.edit import Edit, EditKind
from lazaretto.model.messages import DeadLetter
from lazaretto.model.repairs import MOST_CHUNK, Allowance, Phase, next_chunk
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


_log = logging.getLogger(__name__)

#: How long a runner sleeps while there is nothing to send, in seconds: at first, and at most.
_NAP, _LONGEST_NAP = 0.01, 0.1
#: How often it looks for a repair to run, in seconds.
_LOOK = 0.5
#: How soon it tries again after an error, in seconds.
_AGAIN = 1.0
#: The letters of the first commit.
_FIRST_CHUNK = 200


#: Calls what takes a repair a step further, with the repair and the most letters of the step.
Around = Callable[[RepairRecord, int, Callable[[], Step]], Step]


class Runner:
    """Runs the repairs of a store, one at a time, in the thread that calls `run`. `stop` ends it.

    `make_editor`: makes what applies a repair's edit. `only`: the number of the repair to run, if no others.
    `around`: calls each step, such as to trace it.
    Any number of runners can work on one store: each repair has one at a time. What a killed one has left
    undone, another goes on with.
    """

    def __init__(
        self, store: Store, make_editor: MakeEditor, around: Around, only: int | None = None
    ) -> None:
        self._store = store
        self._make_editor = make_editor
        self._only = only
        self._around = around
        self._stopping = threading.Event()
        self._chunk = _FIRST_CHUNK

    def stop(self) -> None:
        """Let `run` end after the current commit."""
        self._stopping.set()

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Run until `stop`, or until `until` returns True when no repair is left to be run."""
        while not self._stopping.is_set():
            try:
                taken = self._take()
                if taken is not None:
                    self._run_one(*taken)
                    continue
            except BrokerClosed:
                return
            except LazarettoError as error:
                # The store may be busy or out of reach for a while; nothing is lost, and the lease runs out.
                with suppress(Exception):
                    _log.warning("repairs will be retried soon: %s", error)
                self._stopping.wait(_AGAIN)
                continue
            if until is not None and until():
                return
            self._stopping.wait(_LOOK)

    def _take(self) -> tuple[int, int] | None:
        if not self._store.read(self._is_any_free):
            return None
        return self._store.run(TakeRepair(self._only))

    def _is_any_free(self, tx: Transaction) -> bool:
        return any(
            self._only in (None, record.repair) and is_free(tx, record.runner, record.lease_until)
            for record in tx.repairs.running()
        )

    def _run_one(self, repair: int, token: int) -> None:
        record = self._store.read(lambda tx: tx.repairs.find(repair))
        if record is None:
            return
        edit = None if record.phase == Phase.UNDOING.value else edit_of(plan_of(record))
        ahead = None if edit is None else Ahead(self._store, edit, self._make_editor)
        try:
            self._go_on(repair, token, ahead)
        finally:
            if ahead is not None:
                ahead.close()
            if self._stopping.is_set():
                with suppress(LazarettoError):
                    self._store.run(GiveUpRepair(repair, token))

    def _go_on(self, repair: int, token: int, ahead: Ahead | None) -> None:
        allowance, nap, renewed, looked = Allowance(), _NAP, time.monotonic(), 0.0
        while not self._stopping.is_set():
            record = self._store.read(lambda tx: tx.repairs.find(repair))
            if record is None or record.token != token:
                return
            limit, edits, trouble = self._limit(record, allowance), None, None
            if ahead is not None:
                read = functools.partial(_letters_of_step, record=record, limit=limit, edits=ahead.known)
                number = self._store.read(read)
                edits, trouble = _edits(ahead, record, number, nap)
                # What is not edited yet cannot be sent; and a unit not at all while a part of it is not.
                limit = min(limit, len(edits)) if number <= limit or ahead.covers(record, number) else 0
            idle = trouble is None and not self._store.read(
                functools.partial(would_advance, record=record, limit=limit)
            )
            if idle and time.monotonic() - renewed < LEASE / 3:
                self._stopping.wait(nap)
                nap = min(_LONGEST_NAP, 2 * nap)
                continue
            # Without a window, outcomes do not decide what is sent next.
            looks = _has_window(record) or time.monotonic() - looked > _LOOK
            looked = time.monotonic() if looks else looked
            operation = Advance(repair, token, limit, edits, looks, trouble)
            step = self._around(record, limit, functools.partial(self._store.run, operation))
            renewed, nap = time.monotonic(), _NAP if step.letters or step.finished else nap
            if record.phase == Phase.APPLYING.value:
                allowance.spend(step.letters)
            self._adapt(step)
            if not step.runs:
                return

    def _limit(self, record: RepairRecord, allowance: Allowance) -> int:
        """Return how many letters the next commit may deal with."""
        if record.phase != Phase.APPLYING.value:
            return self._chunk
        return min(self._chunk, allowance.allow(pace_of(record).rate, time.monotonic()))

    def _adapt(self, step: Step) -> None:
        # A short last commit says nothing of how long a full one takes.
        if step.letters * 2 >= self._chunk:
            self._chunk = min(MOST_CHUNK, next_chunk(step.letters, step.seconds))


def _letters_of_step(tx: Transaction, record: RepairRecord, limit: int, edits: Mapping[int, Edited]) -> int:
    """Return how many letters a step goes over: more than its limit if its last ones belong together."""
    course = Course.of(tx, record)
    if not limit or not divides_units(course):
        return limit
    if course.phase is Phase.CANARY:
        return max(limit, course.plan.canary - record.position)
    return max(limit, len(next_letters(course, limit, record.letters, edits)))


def _edits(
    ahead: Ahead, record: RepairRecord, number: int, seconds: float
) -> tuple[dict[int, Edited], str | None]:
    """Return what the edit makes of the next letters, and why it cannot be applied to any."""
    try:
        return ahead.take(record, number, seconds), None
    except (HandlerError, SandboxError) as error:
        return {}, str(error)


def _has_window(record: RepairRecord) -> bool:
    if record.phase == Phase.APPLYING.value:
        return pace_of(record).in_flight is not None
    return record.phase == Phase.CANARY.value
