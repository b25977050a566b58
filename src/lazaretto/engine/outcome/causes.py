"""Groups dead letters into causes, reads causes, and applies operators' changes to them.

Causes are compared with marks in time, such as a release.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from lazaretto.engine.command import CommandOf, OfPath
from lazaretto.engine.log import AuditEntry, audit
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterGroup, holder, known_cause
from lazaretto.engine.redaction import redaction_of
from lazaretto.model.causes import (
    DAYS,
    HOURS,
    LAST_CAUSE,
    LONGEST_MARK,
    MARK,
    CauseDifference,
    CauseState,
    TimeMark,
    state_of,
)
from lazaretto.model.checks import text, whole
from lazaretto.model.clock import to_datetime
from lazaretto.model.edits.named_fields import filter_names
from lazaretto.model.edits.redact import Redaction
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import Failure
from lazaretto.model.fingerprint import OTHER_TEXTS, fingerprint_of, shown_fingerprint
from lazaretto.model.grants import Permission
from lazaretto.model.keys import SEQUENCE_BITS, lower_bound, sequence_of
from lazaretto.model.shape import HOLE, is_value, templates
from lazaretto.model.shown_text import html_table
from lazaretto.store.records.repairs import CauseRecord, FingerprintRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")

_replace = msgspec.structs.replace

HOUR = 3_600_000_000
#: How many dead letters without a fingerprint get one in one commit.
_ADOPTED = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Alike:
    """Dead letters of a cause with one fingerprint: what they share, and how many are unresolved."""

    fingerprint: str
    reason: str | None
    error_type: str | None
    site: str | None
    shape: str | None
    letters: int


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Dead letters with one cause, and the number of the cause within the queue.

    `letters`: how many are unresolved; `total`: how many there ever were. Reason, error type and site are
    those of the majority. `template`: their text, with ✱ in place of what differs. `first`, `last`: when the
    first and last arrived; `hours`: how many in each of the last 24 hours, the current hour last. `example`:
    the sequence number of an unresolved one. `difference`: what distinguishes them from good messages, once
    `explain` has looked for it.
    """

    number: int
    state: CauseState
    letters: int
    total: int
    reason: str | None
    error_type: str | None
    site: str | None
    template: str | None
    first: datetime
    last: datetime
    hours: tuple[int, ...]
    example: int | None
    fingerprints: tuple[Alike, ...]
    note: str | None = None
    acknowledged_until: datetime | None = None
    split_from: int | None = None
    difference: CauseDifference | None = None

    @property
    def is_of_values(self) -> bool:
        """Whether its texts are several values and nothing else, such as the keys of a KeyError."""
        return self.template == HOLE and len(self.fingerprints) > 1

    @property
    def to_explain(self) -> bool:
        """Whether nothing explains it yet, or only what half or twice as many letters had in common."""
        difference = self.difference
        return self.letters > 0 and (difference is None or difference.outdated(self.letters))


@dataclasses.dataclass(frozen=True, slots=True)
class Triage:
    """The causes of a queue's dead letters, the largest first. `time`: when it was read.

    `left`: the numbers of the causes that there was no time to explain.
    """

    queue: str
    time: datetime
    letters: int
    causes: tuple[Cause, ...]
    left: tuple[int, ...] = ()

    def _repr_html_(self) -> str:
        rows = [
            (
                cause.number, cause.letters, f"{100 * cause.letters / max(self.letters, 1):.0f} %",
                cause.state.value, cause.reason, cause.error_type, cause.template,
                None if cause.difference is None else cause.difference.filter,
            )
            for cause in self.causes
        ]  # fmt: skip
        columns = ("cause", "letters", "share", "state", "reason", "error type", "text", "difference")
        return html_table(f"{self.letters:,} dead letters of {self.queue}", columns, rows)


def place_at(tx: Transaction, path: EntityPath) -> int:
    """Return the place of a queue's dead letters. Raises EntityNotFound, NotAllowed."""
    return lower_bound(holder(tx, path).queue_id, path.subqueue) >> SEQUENCE_BITS


def group_dead_letters(tx: Transaction, path: EntityPath) -> list[DeadLetterGroup] | None:
    """Return unresolved dead letters by reason and error type; None if GroupCauses must run first."""
    place = place_at(tx, path)
    if tx.causes.unknown_letters(place, 1):
        return None
    groups: dict[tuple[str | None, str | None], list[FingerprintRecord]] = defaultdict(list)
    for print_ in tx.causes.fingerprints(place):
        if print_.waiting > 0:
            groups[print_.reason, print_.error_type].append(print_)
    ordered = [
        DeadLetterGroup(
            reason,
            error_type,
            sum(p.waiting for p in prints),
            to_datetime(min(p.since for p in prints)),
            to_datetime(max(p.last for p in prints)),
            min(sequence_of(p.key) for p in prints if p.key is not None),
        )
        for (reason, error_type), prints in groups.items()
    ]
    return sorted(ordered, key=lambda g: (-g.count, g.reason or "", g.error_type or ""))


def read_causes(tx: Transaction, path: EntityPath, since: int | None, *, over: bool) -> Triage | None:
    """Return the causes of a queue's dead letters; None if GroupCauses must run first.

    `since`: causes that begin after this time are new; default: 24 hours ago. `over`: include causes without
    unresolved letters.
    """
    place = place_at(tx, path)
    prints = tx.causes.fingerprints(place)
    if any(p.cause is None for p in prints) or tx.causes.unknown_letters(place, 1):
        return None
    this_hour = tx.now // HOUR
    mark = tx.now - HOURS * HOUR if since is None else since
    hours: dict[int, list[int]] = defaultdict(lambda: [0] * (HOURS + 1))
    hours_of = {p.fingerprint: hours[p.cause or 0] for p in prints}
    oldest = this_hour - HOURS
    for fingerprint, hour, letters in tx.causes.hours(place, oldest):
        if hour <= this_hour:
            hours_of[fingerprint][hour - oldest] += letters
    members: dict[int, list[FingerprintRecord]] = defaultdict(list)
    for print_ in prints:
        assert print_.cause is not None
        members[print_.cause].append(print_)
    redaction, key = redaction_of(tx, str(path)), tx.access.fingerprint_key()
    causes = [
        _cause_of(record, members[record.number], hours[record.number], mark, redaction, key)
        for record in tx.causes.all(place)
        if record.number in members
    ]
    shown_ = [cause for cause in causes if over or cause.letters]
    shown_.sort(key=lambda cause: (-cause.letters, cause.number))
    return Triage(str(path), to_datetime(tx.now), sum(cause.letters for cause in causes), tuple(shown_))


def cause_days(tx: Transaction, path: EntityPath, number: int) -> tuple[int, ...]:
    """Return how many dead letters a cause got on each of the last 28 days, today last."""
    place = place_at(tx, path)
    members = {print_.fingerprint for print_ in tx.causes.fingerprints(place) if print_.cause == number}
    today = tx.now // HOUR // 24
    days = [0] * DAYS
    for fingerprint, hour, letters in tx.causes.hours(place, (today - DAYS + 1) * 24):
        if fingerprint in members and hour // 24 <= today:
            days[hour // 24 - today - 1] += letters
    return tuple(days)


def _cause_of(
    record: CauseRecord,
    prints: Sequence[FingerprintRecord],
    hours: Sequence[int],
    mark: int,
    redaction: Redaction,
    key: bytes,
) -> Cause:
    waiting = [p for p in prints if p.waiting > 0]
    first = min(p.first for p in prints)
    began = min((p.since for p in waiting), default=first)
    before = [p for p in prints if p.first < began]
    was_over = bool(before) and all(p.emptied is not None and p.emptied <= began for p in before)
    letters = sum(p.waiting for p in waiting)
    chief = max(prints, key=lambda p: (p.waiting, p.total))
    keys = [p.key for p in prints if p.key is not None]
    until = record.acknowledged_until
    return Cause(
        number=record.number,
        state=state_of(letters, first, began, hours, mark, was_over=was_over),
        letters=letters,
        total=sum(p.total for p in prints),
        reason=chief.reason,
        error_type=chief.error_type,
        site=chief.site,
        template=record.template,
        first=to_datetime(first),
        last=to_datetime(max(p.last for p in prints)),
        hours=tuple(hours[1:]),
        example=sequence_of(min(keys)) if keys else None,
        fingerprints=tuple(
            Alike(
                shown_fingerprint(p.fingerprint, key),
                p.reason,
                p.error_type,
                p.site,
                p.shape,
                max(0, p.waiting),
            )
            for p in sorted(prints, key=lambda p: (-p.waiting, -p.total, p.fingerprint))
        ),
        note=record.note,
        acknowledged_until=None if until is None else to_datetime(until),
        split_from=record.split_from,
        difference=_difference(record, redaction),
    )


def _difference(record: CauseRecord, redaction: Redaction) -> CauseDifference | None:
    """Return what explains a cause, unless it names a field that has been redacted since."""
    if record.difference is None:
        return None
    difference = msgspec.json.decode(record.difference, type=CauseDifference)
    filters = (*difference.also, *(() if difference.filter is None else (difference.filter,)))
    return None if redaction and any(filter_names(redaction, one) for one in filters) else difference


# -- grouping ------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class GroupCauses(Operation[bool]):
    """Assign a cause to each fingerprint, and a fingerprint to each dead letter of an older version.

    Returns whether there is more to do.
    """

    path: EntityPath

    durable = False

    def run(self, tx: Transaction) -> bool:
        place = place_at(tx, self.path)
        letters = tx.causes.unknown_letters(place, _ADOPTED)
        for letter in letters:
            failure = None
            if letter.error_type is not None:
                # The latest error may belong to a later generation; then it does not show this one's site.
                latest = tx.history.last_error(letter.key)
                same = latest is not None and (latest.type, latest.message) == (
                    letter.error_type,
                    letter.error_message,
                )
                stack = latest.stack if same and latest is not None else None
                failure = Failure(letter.error_type, letter.error_message, stack)
            tx.causes.set_fingerprint(
                place, letter, fingerprint_of(letter.reason, letter.description, failure)
            )
        tx.causes.save_counts()
        _group(tx, place)
        return len(letters) == _ADOPTED


def _group(tx: Transaction, place: int) -> None:
    prints = tx.causes.fingerprints(place)
    families: dict[int, list[FingerprintRecord]] = defaultdict(list)
    for print_ in prints:
        families[print_.family].append(print_)
    causes = {cause.number: cause for cause in tx.causes.all(place)}
    sizes = Counter(p.cause for p in prints)
    for family in families.values():
        if any(p.cause is None for p in family):
            _group_family(tx, place, family, causes, sizes)


def _texts_of(family: Sequence[FingerprintRecord]) -> dict[str, str]:
    """Return the template of each shape of a family. At one place in the code, all values are one text."""
    counts = {p.shape or "": max(1, p.total) for p in family if p.shape != OTHER_TEXTS}
    values = [one for one in counts if family[0].site is not None and is_value(one)]
    if len(values) < 2:
        return templates(counts)
    return {
        **templates({one: count for one, count in counts.items() if one not in values}),
        **dict.fromkeys(values, HOLE),
        # What came when there were too many values is values, too, if there is nothing else.
        **({OTHER_TEXTS: HOLE} if len(values) == len(counts) else {}),
    }


def _group_family(
    tx: Transaction,
    place: int,
    family: Sequence[FingerprintRecord],
    causes: dict[int, CauseRecord],
    sizes: Counter[int | None],
) -> None:
    """Put fingerprints that share a template into one cause, the oldest existing one if any.

    Fingerprints that an operator assigned stay where they are. `sizes`: how many fingerprints each cause has.
    """
    texts = _texts_of(family)
    groups: dict[str, list[FingerprintRecord]] = defaultdict(list)
    for print_ in family:
        groups[texts.get(print_.shape or "", OTHER_TEXTS)].append(print_)
    for template, prints in groups.items():
        theirs = sorted({p.cause for p in prints if p.cause is not None and not p.kept})
        kept = sorted({p.cause for p in prints if p.cause is not None and p.kept})
        number = (theirs or kept or [max(causes, default=0) + 1])[0]
        moved = [p for p in prints if p.cause != number and not p.kept]
        if not moved:
            continue
        record = causes.get(number) or CauseRecord(number, None, tx.now)
        if number not in kept:
            record = _replace(record, template=template or None)
        tx.causes.assign(place, [p.fingerprint for p in moved], number, kept=False)
        for other in theirs[1:]:
            sizes[other] -= sum(p.cause == other for p in moved)
            record = _replace(record, note=record.note or causes[other].note)
            if not sizes[other]:
                _save(tx, place, causes, _replace(causes[other], merged_into=number))
        _save(tx, place, causes, record)


def _save(tx: Transaction, place: int, causes: dict[int, CauseRecord], cause: CauseRecord) -> None:
    causes[cause.number] = cause
    tx.causes.save(place, cause)


# -- what operators do ---------------------------------------------------------------------------


class OfCause(OfPath[T], frozen=True, kw_only=True):
    """A change of one cause of a queue's dead letters."""

    number: int

    def cause(self, tx: Transaction) -> tuple[int, CauseRecord]:
        """Return the place of the letters and the cause. Raises InvalidOption, MessageNotFound."""
        number, path = whole("number", self.number, 1, LAST_CAUSE), self.place
        place = place_at(tx, path)
        return place, known_cause(tx, place, number, str(path))


@dataclasses.dataclass(slots=True)
class ExplainCauses(Operation[None]):
    """Store the explanations of causes, by number. One that was merged meanwhile gets none."""

    path: EntityPath
    found: Mapping[int, CauseDifference]

    durable = False

    def run(self, tx: Transaction) -> None:
        place = place_at(tx, self.path)
        for cause in tx.causes.all(place):
            difference = self.found.get(cause.number)
            if difference is not None and cause.merged_into is None:
                encoded = msgspec.json.encode(difference).decode()
                tx.causes.save(place, _replace(cause, difference=encoded, explained=tx.now))


class RecountCauses(OfPath[None], frozen=True, kw_only=True):
    """Count the letters of all causes of a queue anew.

    `lazaretto store check` says when: a count may be wrong after workers of an older version ran beside newer
    ones.
    """

    action = "recount_causes"

    def run(self, tx: Transaction, actor: str) -> None:
        tx.causes.save_counts()
        tx.causes.recount(place_at(tx, self.place))
        audit(tx, actor, self.action, str(self.place))


#: The most marks that causes are compared with, the newest.
MOST_MARKS: Final = 200


def marks_of(entries: Iterable[AuditEntry]) -> list[TimeMark]:
    """Return the marks that entries of the audit log tell of."""
    return [TimeMark(one.time, str(one.detail.get("text", "")), one.actor) for one in entries]


class Mark(CommandOf[None], frozen=True, kw_only=True):
    """Mark this moment, such as a release, so that causes tell after which one they came."""

    permission = Permission.OPERATE
    action = MARK
    text: str

    def run(self, tx: Transaction, actor: str) -> None:
        audit(tx, actor, self.action, "", text=text("text", self.text, LONGEST_MARK))
