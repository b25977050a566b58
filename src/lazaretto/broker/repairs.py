"""Repairs: frozen sets of dead letters that are sent back, watched, and taken back if need be."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from types import EllipsisType
from typing import Any

from msgspec import UNSET

from lazaretto.broker.editing import Editor
from lazaretto.commands.methods import RepairMethods
from lazaretto.commands.repair_commands import (
    ApplyRepair,
    PlanRepair,
    checked_edit,
)
from lazaretto.engine.command import CommandOf, check_numbers
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.log import acting
from lazaretto.engine.maintenance import look
from lazaretto.engine.outcome.dead_letter_operations import (
    DeadLetterFilter,
)
from lazaretto.engine.repairs.course import find_repair, plan_of
from lazaretto.engine.repairs.operators import (
    MOST_IN_FLIGHT,
    PaceRepair,
    repair_status,
    repaired_letters,
)
from lazaretto.engine.repairs.preview import edit_of, letters_at, preview
from lazaretto.engine.repairs.runner import Runner
from lazaretto.model.checks import flag, function, seconds, text, whole
from lazaretto.model.edits.edit import Edit
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import DeadLetter
from lazaretto.model.repairs import (
    RUNNING,
    Phase,
    RepairedLetter,
    RepairPreview,
    RepairStatus,
)
from lazaretto.observe.traces.letters import around_steps, directed
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

#: Dead letters that are read at once.
_PAGE = 1_000


class Repair(RepairMethods):
    """A repair of a broker, by its name.

    `apply`, `canary` and `undo` return at once. Whoever runs repairs does the work: a service host,
    `lazaretto repair run`, or `run` here. `actor` is the name for the audit log. Raises
    RepairNotFound, RepairError.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    @property
    def name(self) -> str:
        """The repair's name."""
        return self._name

    def status(self) -> RepairStatus:
        """Return how the repair stands: its phase, its plan, and what became of its letters."""
        return look(self._store, lambda tx: repair_status(tx, find_repair(tx, self._name)))

    def preview(self, *, letters: int | None = 1000) -> RepairPreview:
        """Return what would become of the letters if they were sent now: how many would be skipped, and why.

        It looks at so many `letters`, spread over the set; None means all. It changes nothing.
        """
        most = None if letters is None else whole("letters", letters, 1, MOST_IN_FLIGHT)

        edit = self.edit()
        with Editor(edit) if edit is not None else contextlib.nullcontext() as editor:
            return preview(self._store, self._name, editor, most)

    def progress(self) -> tuple[int, int]:
        """Return how many letters were dealt with, or taken back while it is undone, and of how many."""
        record = look(self._store, lambda tx: find_repair(tx, self._name))
        if record.phase in (Phase.UNDOING.value, Phase.UNDONE.value):
            return record.position - (record.taken_back or 0), record.position
        return record.position, record.letters

    def apply(
        self,
        *,
        in_flight: int | EllipsisType | None = ...,
        rate: float | EllipsisType | None = ...,
        actor: str | None = None,
    ) -> None:
        """Send all letters that are left.

        `in_flight`: the most letters that may be sent and not processed yet. The number grows from 1 while
        letters are processed, and is halved when one fails again; None sends all at once. `rate`: the most
        letters a second. By default as planned.
        """
        chosen = {"in_flight": in_flight, "rate": rate}
        limits: Any = {name: limit for name, limit in chosen.items() if limit is not ...}
        self._make(ApplyRepair(name=self._name, limits=limits), actor)

    def set_pace(
        self,
        *,
        in_flight: int | EllipsisType | None = ...,
        rate: float | EllipsisType | None = ...,
        actor: str | None = None,
    ) -> None:
        """Change how fast it goes, also while it runs; None means no limit. By default as it is."""
        command = PaceRepair(
            name=self._name,
            in_flight=UNSET if isinstance(in_flight, EllipsisType) else in_flight,
            rate=UNSET if isinstance(rate, EllipsisType) else rate,
        )
        self._store.run(command.by(acting(actor)))

    def _make(self, command: CommandOf[Any], actor: str | None) -> Any:
        made = functools.partial(super()._make, command, actor)
        return directed(self._store, command.command_name, made)

    def letters(self, *, skipped: bool = False, failed: bool = False) -> Iterator[RepairedLetter]:
        """Yield what became of each letter that was dealt with, by sequence number.

        `skipped`: only those that were not sent, with the reason. `failed`: only those that failed again.
        """
        flag("skipped", skipped)
        flag("failed", failed)
        number = look(self._store, lambda tx: find_repair(tx, self._name).repair)
        after = 0
        while True:
            read = functools.partial(
                repaired_letters, repair=number, after=after, limit=_PAGE, skipped=skipped, failed=failed
            )
            page, after = look(self._store, read)
            yield from page
            if len(page) < _PAGE:
                return

    def left(self, *, messages: bool = False) -> Iterator[DeadLetter]:
        """Yield the dead letters that are left to send, in their order, without those that are gone.

        `messages`: with their messages, as they are before the edit.
        """
        flag("messages", messages)
        record = look(self._store, lambda tx: find_repair(tx, self._name))
        first = record.position
        while first < record.letters:
            last = min(first + _PAGE, record.letters)
            read = functools.partial(letters_at, record=record, first=first, last=last, messages=messages)
            _, keys, letters = look(self._store, read)
            yield from letters.values()
            first += len(keys)

    def edit(self) -> Edit | None:
        """Return the edit of its letters, as it was planned."""
        return edit_of(plan_of(look(self._store, lambda tx: find_repair(tx, self._name))))

    def run(self, *, until: Callable[[], bool] | None = None) -> RepairStatus:
        """Run this repair in this thread while it has something to do; return how it stands then.

        If another process is at work on it, wait for it. `until` is called every now and then, and ends it
        by returning True.
        """
        function("until", until)
        number = look(self._store, lambda tx: find_repair(tx, self._name).repair)
        runner = Runner(self._store, Editor, around_steps(self._store), number)
        with _asking(runner, until):
            runner.run(lambda: self._is_over())
        return self.status()

    def _is_over(self) -> bool:
        phase_now = self._store.read(lambda tx: find_repair(tx, self._name).phase)
        return phase_now not in {phase.value for phase in RUNNING}


class _asking:  # noqa: N801
    """Asks a function a few times a second, in a thread of its own, whether a runner shall stop."""

    def __init__(self, runner: Runner, until: Callable[[], bool] | None) -> None:
        self._runner, self._until = runner, until
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="lazaretto-repair", daemon=True)

    def _ask(self) -> None:
        assert self._until is not None
        while not self._over.wait(0.1):
            if self._until():
                self._runner.stop()
                return

    def __enter__(self) -> None:
        if self._until is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._until is not None:
            self._thread.join()


class RepairDesk:
    """Plans and finds repairs."""

    _store: Store

    def plan_repair(
        self,
        path: str,
        which: DeadLetterFilter | int | Iterable[int],
        *,
        everything: bool = False,
        name: str | None = None,
        limit: int | None = None,
        to: str | None = None,
        edit: Edit | str | None = None,
        order: str | None = None,
        canary: int = 10,
        canary_failures: int = 0,
        canary_wait: float | timedelta = 600.0,
        in_flight: int | None = 1000,
        rate: float | None = None,
        actor: str | None = None,
    ) -> Repair:
        """Freeze a set of dead letters, to be sent back to their queue; nothing is sent yet.

        The set is what a filter selects now, or the given sequence numbers; an empty filter is refused
        unless `everything` is True. `limit`: only the first so many. `to`: another queue to send them to.
        `edit`: what to change of each: a JSON merge patch, a JSON Patch, an action such as
        "SET body.region = 'eu'", or "module:function", which a sandbox calls with each DeadLetter and which
        returns the Message to send, or None to leave it as it is. `order`: "number", or "session" to send
        each session's letters together, which is the default where sessions are required.
        `canary`: how many letters `Repair.canary` sends first, of which `canary_failures` may fail again,
        and for which it waits `canary_wait` seconds. `in_flight`, `rate`: see `Repair.apply`.
        """
        filtered = which if isinstance(which, DeadLetterFilter) else None
        chosen = filtered or DeadLetterFilter(sequence_numbers=tuple(check_numbers(which)))
        change = None if edit is None else checked_edit(edit)
        command = PlanRepair(
            path=path, everything=everything, name=name, limit=limit, to=to,
            edit=None if change is None else change.text, order=order, canary=canary,
            canary_failures=canary_failures, canary_wait=seconds("canary_wait", canary_wait),
            in_flight=in_flight, rate=rate,
        )  # fmt: skip
        operation = command.planned(self._store, chosen, change, acting(actor))
        record = directed(self._store, command.command_name, functools.partial(self._store.run, operation))
        return Repair(self._store, record.name)

    def repair(self, name: str) -> Repair:
        """Return a repair by its name. Raises RepairNotFound."""
        checked = text("name", name, 64)
        look(self._store, lambda tx: find_repair(tx, checked))
        return Repair(self._store, checked)

    def repairs(self, path: str | None = None, *, limit: int = 100) -> list[RepairStatus]:
        """Return the repairs, or those of a queue, newest first."""
        parsed = None if path is None else EntityPath.parse(path)
        whole("limit", limit, 1, 10_000)

        def read(tx: Transaction) -> list[RepairStatus]:
            queue_id = None if parsed is None else require_queue(tx, parsed).queue_id
            return [repair_status(tx, record) for record in tx.repairs.all(limit, queue_id)]

        return look(self._store, read)

    def run_repairs(self, *, until: Callable[[], bool] | None = None) -> None:
        """Run repairs in this thread, those of other processes too, until `until` returns True."""
        function("until", until)
        runner = Runner(self._store, Editor, around_steps(self._store))
        with _asking(runner, until):
            runner.run()
