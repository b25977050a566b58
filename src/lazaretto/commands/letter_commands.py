"""Changes of dead letters, of their causes, and of repairs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lazaretto.commands.command import Administering, Command, OfPath, Options
from lazaretto.engine.outcome import set_aside
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter, dead_letter_path
from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.causes import LAST_CAUSE
from lazaretto.model.checks import moment, refuse_unknown, whole
from lazaretto.model.entities import EntityPath, split_subscription
from lazaretto.model.permissions import Permission

if TYPE_CHECKING:
    from lazaretto.broker import Broker

#: The most dead letters of one command, which is one commit. A repair takes any number.
_MOST: Final = 500

Numbers = Annotated[tuple[int, ...], Meta(min_length=1, max_length=_MOST)]


class OfLetters(OfPath, frozen=True, kw_only=True):
    """A change of up to 500 dead letters, by their numbers. A repair takes any number."""

    most: ClassVar[int] = _MOST
    sequence_numbers: Numbers


class Resubmit(OfLetters, frozen=True, kw_only=True):
    """Send dead letters back to their queue."""

    def apply(self, broker: Broker, actor: str) -> None:
        broker.resubmit(self.path, self.sequence_numbers, actor=actor)

    def sends_to(self) -> str:
        return self.path


class MoveDeadLetters(OfLetters, frozen=True, kw_only=True):
    """Move dead letters to another queue."""

    to: str

    def apply(self, broker: Broker, actor: str) -> None:
        broker.move_dead_letters(self.path, self.sequence_numbers, self.to, actor=actor)

    def needs(self) -> list[tuple[Permission, str | None]]:
        return [(self.permission, self.path), (Permission.OPERATE, self.to)]

    def sends_to(self) -> str:
        return self.to


class Republish(OfLetters, frozen=True, kw_only=True):
    """Publish dead letters to a topic again; null: that of their subscription."""

    topic: str | None = None

    def apply(self, broker: Broker, actor: str) -> None:
        broker.republish(self.path, self.sequence_numbers, topic=self.topic, actor=actor)

    def needs(self) -> list[tuple[Permission, str | None]]:
        return [(self.permission, self.path), (Permission.OPERATE, self.sends_to())]

    def sends_to(self) -> str:
        of = split_subscription(EntityPath.parse(self.path))
        return self.topic if self.topic is not None else self.path if of is None else of[0]


class Purge(OfLetters, frozen=True, kw_only=True):
    """Set dead letters aside for 7 days."""

    def apply(self, broker: Broker, actor: str) -> None:
        broker.purge(self.path, self.sequence_numbers, actor=actor)


class Restore(OfLetters, frozen=True, kw_only=True):
    """Bring purged dead letters back as they were."""

    def apply(self, broker: Broker, actor: str) -> None:
        broker.restore(self.path, self.sequence_numbers, actor=actor)


class PurgeCause(OfPath, frozen=True, kw_only=True):
    """Set the dead letters of a cause aside for 7 days, up to 10,000 at once.

    The answer has how many these were, and how many remain for another time.
    """

    number: int

    def apply(self, broker: Broker, actor: str) -> None:
        number = whole("number", self.number, 1, LAST_CAUSE)
        path = dead_letter_path(EntityPath.parse(self.path))
        broker._store.run(set_aside.PurgeCause(path, number, actor))


class RestorePurged(OfPath, frozen=True, kw_only=True):
    """Bring back what was set aside at a time, or all that was set aside for null, up to 10,000 at once."""

    at: datetime | None = None

    def apply(self, broker: Broker, actor: str) -> None:
        path = dead_letter_path(EntityPath.parse(self.path))
        broker._store.run(set_aside.RestorePurged(path, moment("at", self.at), actor))


class DeletePurged(Administering, frozen=True, kw_only=True):
    """Delete all purged dead letters of a queue for good. `count`: how many these are."""

    final: ClassVar[bool] = True
    path: str
    count: int

    def apply(self, broker: Broker, actor: str) -> None:
        broker.delete_purged(self.path, self.count, actor=actor)


class MergeCauses(OfPath, frozen=True, kw_only=True):
    """Make several causes one."""

    numbers: Numbers

    def apply(self, broker: Broker, actor: str) -> None:
        broker.merge_causes(self.path, self.numbers, actor=actor)


class UnmergeCauses(OfPath, frozen=True, kw_only=True):
    """Part causes that were merged into one again. `parts`: by number, the fingerprints that each had."""

    number: int
    parts: dict[int, tuple[str, ...]]

    def apply(self, broker: Broker, actor: str) -> None:
        broker.unmerge_causes(self.path, self.number, self.parts, actor=actor)


class SplitCause(OfPath, frozen=True, kw_only=True):
    """Make some of a cause's fingerprints a cause of their own."""

    number: int
    fingerprints: tuple[str, ...]

    def apply(self, broker: Broker, actor: str) -> None:
        broker.split_cause(self.path, self.number, self.fingerprints, actor=actor)


class RecountCauses(OfPath, frozen=True, kw_only=True):
    """Count the letters of all causes of a queue anew."""

    def apply(self, broker: Broker, actor: str) -> None:
        broker.recount_causes(self.path, actor=actor)


class NoteCause(OfPath, frozen=True, kw_only=True):
    """Keep a note with a cause; null removes it."""

    number: int
    note: str | None

    def apply(self, broker: Broker, actor: str) -> None:
        broker.note_cause(self.path, self.number, self.note, actor=actor)


class AcknowledgeCause(OfPath, frozen=True, kw_only=True):
    """Note until when a cause is known; null withdraws that."""

    number: int
    until: datetime | None

    def apply(self, broker: Broker, actor: str) -> None:
        broker.acknowledge_cause(self.path, self.number, self.until, actor=actor)


class PlanRepair(OfPath, frozen=True, kw_only=True):
    """Freeze a set of dead letters and what will be done with them.

    The set is that of a filter: its parts are those of DeadLetterFilter. `edit`: the text of an action.
    """

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

    def apply(self, broker: Broker, actor: str) -> None:
        broker.plan_repair(
            self.path, _filter_of(self.filter), everything=self.everything,
            name=self.name, limit=self.limit, to=self.to, edit=self.edit, order=self.order,
            canary=self.canary, canary_failures=self.canary_failures, canary_wait=self.canary_wait,
            in_flight=self.in_flight, rate=self.rate, actor=actor,
        )  # fmt: skip

    def needs(self) -> list[tuple[Permission, str | None]]:
        found: list[tuple[Permission, str | None]] = [(self.permission, self.path)]
        return found if self.to is None else [*found, (Permission.OPERATE, self.to)]

    def sends_to(self) -> str:
        return self.path if self.to is None else self.to

    def told(self, answer: Any) -> Any:
        return _standing(answer)


def _filter_of(given: Options) -> DeadLetterFilter:
    """Return the filter with these parts. Raises InvalidOption, FilterSyntaxError."""
    refuse_unknown(given, DeadLetterFilter.__dataclass_fields__, "filter")
    try:
        return msgspec.convert(given, DeadLetterFilter)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, LazarettoError):
            raise error.__cause__ from None
        raise InvalidOption(f"filter: {error}") from None


class OfRepair(Command, frozen=True, kw_only=True):
    """A change of a repair."""

    permission = Permission.OPERATE
    name: str

    def told(self, answer: Any) -> Any:
        return _standing(answer)


def _standing(answer: Any) -> dict[str, Any]:
    return {name: answer[name] for name in ("name", "path", "phase", "letters")}


class CanaryRepair(OfRepair, frozen=True, kw_only=True):
    """Send the first few letters of a repair, and wait for their outcome."""

    def apply(self, broker: Broker, actor: str) -> None:
        broker.repair(self.name).canary(actor=actor)


class ApplyRepair(OfRepair, frozen=True, kw_only=True):
    """Send all letters of a repair that are left.

    `limits`: `in_flight` and `rate`, null for no limit; what is left out is as planned.
    """

    limits: dict[str, float | None] = msgspec.field(default_factory=dict)

    def apply(self, broker: Broker, actor: str) -> None:
        refuse_unknown(self.limits, ("in_flight", "rate"), "limits")
        limits: Any = dict(self.limits)
        in_flight = limits.get("in_flight")
        if isinstance(in_flight, float) and in_flight.is_integer():
            limits["in_flight"] = int(in_flight)
        broker.repair(self.name).apply(**limits, actor=actor)


class PauseRepair(OfRepair, frozen=True, kw_only=True):
    """Send no more letters of a repair until it is resumed."""

    def apply(self, broker: Broker, actor: str) -> None:
        broker.repair(self.name).pause(actor=actor)


class ResumeRepair(OfRepair, frozen=True, kw_only=True):
    """Go on with a repair where it was paused or stopped."""

    def apply(self, broker: Broker, actor: str) -> None:
        broker.repair(self.name).resume(actor=actor)


class CancelRepair(OfRepair, frozen=True, kw_only=True):
    """Never send what is left of a repair."""

    def apply(self, broker: Broker, actor: str) -> None:
        broker.repair(self.name).cancel(actor=actor)


class UndoRepair(OfRepair, frozen=True, kw_only=True):
    """Take back what nobody was handed yet."""

    def apply(self, broker: Broker, actor: str) -> None:
        broker.repair(self.name).undo(actor=actor)


class PaceRepair(OfRepair, frozen=True, kw_only=True):
    """Change how fast a repair goes; null means no limit, and what is left out stays as it is."""

    in_flight: int | UnsetType | None = UNSET
    rate: float | UnsetType | None = UNSET

    def apply(self, broker: Broker, actor: str) -> None:
        in_flight = ... if isinstance(self.in_flight, UnsetType) else self.in_flight
        rate = ... if isinstance(self.rate, UnsetType) else self.rate
        broker.repair(self.name).set_pace(in_flight=in_flight, rate=rate, actor=actor)
