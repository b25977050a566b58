"""The model of a transaction: a unit of work over the model's queues."""

from __future__ import annotations

import dataclasses

from lazaretto.model.policy import Outcome

from .records import COMPLETE, Draft, Handle, Refused, Settlement
from .reference import Model


class ModelTransaction:
    """A unit of work: nothing but its receives takes effect before the commit."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.received: dict[tuple[str, bool, int], Handle] = {}
        self.settled: dict[tuple[str, bool, int], tuple[Handle, Settlement]] = {}
        self.sends: list[tuple[str, list[Draft]]] = []
        self.rows: list[str] = []
        self.undone: set[Handle] = set()
        self.used_sql = False
        self._savepoints: list[ModelSavepoint] = []

    def receive(self, path: str, limit: int, *, dead: bool = False) -> list[Handle]:
        if self.used_sql:
            raise Refused("TransactionError")
        handles = self.model.receive(path, limit, dead=dead)
        self.received.update((handle.place, handle) for handle in handles)
        return handles

    def settle(self, handle: Handle, settlement: Settlement) -> None:
        if handle.place in self.settled:
            raise Refused("TransactionError")
        self.settled[handle.place] = (handle, settlement)

    def send(self, path: str, drafts: list[Draft]) -> None:
        self.sends.append((path, drafts))

    def write(self, row: str) -> None:
        """Run SQL that writes a row of the user's own."""
        self.used_sql = True
        self.rows.append(row)

    def savepoint(self) -> ModelSavepoint:
        point = ModelSavepoint(
            dict(self.received), dict(self.settled), len(self.sends), len(self.rows), self.used_sql
        )
        self._savepoints.append(point)
        return point

    def roll_back_to(self, point: ModelSavepoint) -> None:
        """Undo what was settled, sent and written since; what was received since will be given back."""
        if point not in self._savepoints:
            # A rollback to an earlier point has undone this one.
            raise Refused("TransactionError")
        del self._savepoints[self._savepoints.index(point) + 1 :]
        self.settled = dict(point.settled)
        del self.sends[point.sends :], self.rows[point.rows :]
        self.used_sql = point.used_sql
        self.undone |= set(self.received.values()) - set(point.received.values())

    def commit(self, told: str | None = None) -> None:
        """Make everything take effect, or roll back: what was received and not settled is completed.

        `told`: the error that the store gave. If there is more than one, a server may find that of a send
        before that of a settlement.
        """
        entries = dict(self.settled)
        for place, handle in self.received.items():
            if place not in entries:
                back = Settlement(Outcome.RELEASED) if handle in self.undone else COMPLETE
                entries[place] = (handle, back)

        def work() -> None:
            self.model.settle(list(entries.values()))
            for path, drafts in self.sends:
                self.model.send(path, drafts)
            self.model.rows += self.rows

        try:
            self.model.undoable(work)
        except Refused as refusal:
            error = told if told in self._refused_sends() else refusal.error
            self.roll_back(f"lazaretto.errors.{error}")
            raise Refused(error) from None

    def _refused_sends(self) -> set[str]:
        """Return the errors of the sends, each by itself."""
        found = set()
        for path, drafts in self.sends:

            def work(path: str = path, drafts: list[Draft] = drafts) -> None:
                self.model.send(path, drafts)
                # What it did is undone.
                raise Refused("")

            try:
                self.model.undoable(work)
            except Refused as refusal:
                found.add(refusal.error)
        return found - {""}

    def roll_back(self, error: str | None) -> None:
        """Charge one failure to each message that was received and is still held."""
        model = self.model
        noted: set[str] = set()
        for handle in self.received.values():
            if not model.held(handle):
                continue
            queue = model.queues[handle.queue]
            if not handle.dead and handle.queue not in noted:
                noted.add(handle.queue)
                model.count_rollback(queue)
            model.fail(queue, model.copy(handle), Settlement(Outcome.FAILED, error))


@dataclasses.dataclass(eq=False)
class ModelSavepoint:
    """How a transaction stood."""

    received: dict[tuple[str, bool, int], Handle]
    settled: dict[tuple[str, bool, int], tuple[Handle, Settlement]]
    sends: int
    rows: int
    used_sql: bool
