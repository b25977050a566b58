"""Commands on repairs: they plan one, and direct it."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import Any, ClassVar, Final

import msgspec
from msgspec import UNSET

from lazaretto.broker.editing import Editor, as_edit, refuse_changed_source
from lazaretto.engine.command import Command, Detail, OfPath, Options
from lazaretto.engine.maintenance import look
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter, holder
from lazaretto.engine.outcome.send_back import takes_units
from lazaretto.engine.repairs.course import find_repair, plan_of
from lazaretto.engine.repairs.freeze import freeze
from lazaretto.engine.repairs.operators import (
    OfRepair,
    SaveRepair,
    check_in_flight,
    check_rate,
    direct_repair,
    standing,
)
from lazaretto.engine.repairs.preview import edit_of
from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.checks import flag, refuse_unknown, seconds, shown, whole
from lazaretto.model.edits.edit import Edit
from lazaretto.model.edits.named_fields import may_change_session
from lazaretto.model.entities import EntityPath
from lazaretto.model.grants import Permission
from lazaretto.model.repairs import BY_NUMBER, BY_SESSION, ORDERS, Pace, Plan, RepairEvent
from lazaretto.store.records.repairs import RepairRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_MOST_CANARIES: Final = 1_000


def check_name(name: object) -> str:
    """Return a repair's name, else raise InvalidOption."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidOption(
            f"expected a repair's name of letters, digits, '_', '.' and '-', 1 to 64, got {shown(name)}"
        )
    return name


class PlanRepair(OfPath[RepairRecord], frozen=True, kw_only=True):
    """Freeze a set of dead letters and what will be done with them.

    The set is that of a filter: its parts are those of DeadLetterFilter. `edit`: the text of an action.
    """

    action = "repair: plan"
    touched = OfRepair.touched
    searches: ClassVar[bool] = True
    name: str | None = None
    filter: Options = msgspec.field(default_factory=dict)
    everything: bool = False
    limit: int | None = None
    to: str | None = None
    edit: str | None = None
    order: str | None = None
    canary: int = 10
    canary_failures: int = 0
    canary_wait: float = 600.0
    in_flight: int | None = 1000
    rate: float | None = None

    def operation(self, store: Store, actor: str) -> Operation[RepairRecord]:
        edit = None if self.edit is None else checked_edit(self.edit)
        return self.planned(store, _filter_of(self.filter), edit, actor)

    def planned(
        self, store: Store, which: DeadLetterFilter, change: Edit | None, actor: str
    ) -> Operation[RepairRecord]:
        """Freeze the letters of a filter, which takes long, and return what stores them as a repair."""
        parsed = self.place
        flag("everything", self.everything)
        if which.is_empty and not self.everything:
            raise InvalidOption(
                "an empty filter matches every dead letter; pass everything=True to repair them all"
            )
        order = self.order
        if order is not None and not (isinstance(order, str) and order in ORDERS):
            raise InvalidOption(
                f"expected order to be one of {', '.join(ORDERS)} or None, got {shown(order)}"
            )
        called = None if self.name is None else check_name(self.name)
        whole("canary", self.canary, 0, _MOST_CANARIES)
        whole("canary_failures", self.canary_failures, 0, _MOST_CANARIES)
        wait = seconds("canary_wait", self.canary_wait)
        pace = Pace(in_flight=check_in_flight(self.in_flight), rate=check_rate(self.rate))
        target = None if self.to is None else str(EntityPath.parse(self.to))
        by_session, units = look(store, functools.partial(_togetherness, path=parsed, to=self.to))
        if units and order == BY_NUMBER:
            raise InvalidOption(
                f"expected order={BY_SESSION!r}, got {order!r}: sessions of {target or parsed.queue!r} are "
                "units (on_poison_session=whole), so their letters must be sent together"
            )
        kept = order or (BY_SESSION if by_session or units else BY_NUMBER)
        most = None if self.limit is None else whole("limit", self.limit, 1, 1 << 62)
        moves = kept == BY_SESSION and change is not None and may_change_session(change)
        with Editor(change) if moves and change is not None else contextlib.nullcontext() as editor:
            frozen = look(store, lambda tx: freeze(tx, parsed, which, kept, self.canary, most, editor))
        plan = Plan(
            which=_told(which),
            members=frozen.digest,
            frozen_at=frozen.frozen_at,
            first=frozen.first,
            last=frozen.last,
            fingerprints=frozen.fingerprints,
            order=kept,
            sessions=frozen.sessions,
            to=target,
            edit=None if change is None else change.text,
            edit_digest=None if change is None else change.digest,
            edit_source=None if change is None else change.source,
            canary=frozen.canary,
            canary_failures=self.canary_failures,
            canary_wait=wait,
        )
        return SaveRepair(parsed, called, plan, frozen, pace, actor)

    def needs(self) -> list[tuple[Permission, str | None]]:
        needed: list[tuple[Permission, str | None]] = [(self.permission, self.path)]
        return needed if self.to is None else [*needed, (Permission.OPERATE, self.to)]

    def sends_to(self) -> str:
        return self.path if self.to is None else self.to

    def told(self, answer: Any) -> Any:
        return standing(answer)

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        return CancelRepair(name=detail["repair"])


def _filter_of(parts: Options) -> DeadLetterFilter:
    """Return the filter with these parts. Raises InvalidOption, FilterSyntaxError."""
    refuse_unknown(parts, DeadLetterFilter.__dataclass_fields__, "filter")
    try:
        return msgspec.convert(parts, DeadLetterFilter)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, LazarettoError):
            raise error.__cause__ from None
        raise InvalidOption(f"filter: {error}") from None


def _togetherness(tx: Transaction, path: EntityPath, to: str | None) -> tuple[bool, bool]:
    """Return whether a queue requires sessions, and whether its letters go where sessions are units."""
    queue = holder(tx, path)
    target = queue if to is None else tx.queues.by_path(EntityPath.parse(to).key)
    return queue.options.requires_session, target is not None and takes_units(tx, target)


def checked_edit(edit: object) -> Edit:
    """Return an edit that can be applied here. Raises InvalidOption, FilterSyntaxError, HandlerError."""
    with Editor(as_edit(edit)) as editor:
        editor.check()
        return editor.edit


def _told(which: DeadLetterFilter) -> dict[str, object]:
    """Return a filter's parts as they are kept: numbers only as how many there are."""
    parts = which.as_detail()
    numbers = parts.pop("sequence_numbers", None)
    shown = {name: value if isinstance(value, str | int) else str(value) for name, value in parts.items()}
    return {**shown, **({} if numbers is None else {"numbers": len(numbers)})}


class DirectingRepair(OfRepair, frozen=True, kw_only=True):
    """A change of what a repair does next."""

    event: ClassVar[RepairEvent]
    sends: ClassVar[bool] = False

    def run(self, tx: Transaction, actor: str) -> RepairRecord:
        return direct_repair(tx, self.name, self.event, actor)

    def operation(self, store: Store, actor: str) -> Operation[RepairRecord]:
        if self.sends:
            record = look(store, lambda tx: find_repair(tx, self.name))
            refuse_changed_source(edit_of(plan_of(record)))
        return self.by(actor)


class CanaryRepair(DirectingRepair, frozen=True, kw_only=True):
    """Send the first few letters of a repair, and wait for their outcome."""

    action = "repair: canary"
    event = RepairEvent.TRY_FEW
    sends = True


class ApplyRepair(DirectingRepair, frozen=True, kw_only=True):
    """Send all letters of a repair that are left.

    `limits`: `in_flight` and `rate`, null for no limit; what is left out is as planned.
    """

    action = "repair: apply"
    event = RepairEvent.APPLY
    sends = True
    limits: dict[str, float | None] = msgspec.field(default_factory=dict)

    def run(self, tx: Transaction, actor: str) -> RepairRecord:
        refuse_unknown(self.limits, ("in_flight", "rate"), "limits")
        limits: dict[str, Any] = dict(self.limits)
        in_flight = limits.get("in_flight", UNSET)
        if isinstance(in_flight, float) and in_flight.is_integer():
            # It is a number of JSON, which may be spelled 5.0.
            in_flight = int(in_flight)
        return direct_repair(tx, self.name, self.event, actor, (in_flight, limits.get("rate", UNSET)))

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        return UndoRepair(name=detail["repair"])


class PauseRepair(DirectingRepair, frozen=True, kw_only=True):
    """Send no more letters of a repair until it is resumed."""

    action = "repair: pause"
    event = RepairEvent.PAUSE

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        return ResumeRepair(name=detail["repair"])


class ResumeRepair(DirectingRepair, frozen=True, kw_only=True):
    """Go on with a repair where it was paused or stopped."""

    action = "repair: resume"
    event = RepairEvent.RESUME
    sends = True

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        return PauseRepair(name=detail["repair"])


class CancelRepair(DirectingRepair, frozen=True, kw_only=True):
    """Never send what is left of a repair."""

    action = "repair: cancel"
    event = RepairEvent.CANCEL


class UndoRepair(DirectingRepair, frozen=True, kw_only=True):
    """Take back what nobody was handed yet, newest first; what was handed out stays as it is."""

    action = "repair: undo"
    event = RepairEvent.UNDO
