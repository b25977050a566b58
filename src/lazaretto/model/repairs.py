"""Repairs: their phases, how one stands, and the pace at which it sends letters back."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from lazaretto.model.shown_text import html_table

#: The orders in which letters are sent back: by number, or one session after the other.
BY_NUMBER, BY_SESSION = "number", "session"
ORDERS: Final = (BY_NUMBER, BY_SESSION)

#: The steps that the window takes while what was sent is processed: 1, 2, 5, 10, 20, 50 …
_STEPS: Final = (1, 2, 5)
#: How many of the latest outcomes the stop rule looks at.
RECENT: Final = 200
#: The share of letters that fail again above which a repair stops.
MOST_FAILING: Final = 0.05
#: 95 %, both sides.
_Z: Final = 1.96
#: What a chunk may take of the writer's time, in seconds; its commit comes on top.
CHUNK_SECONDS: Final = 0.012
_LEAST_CHUNK, MOST_CHUNK = 10, 2_000
#: Without a window, the outcomes of so many letters are watched at a time.
WATCHED: Final = 300


class Phase(enum.Enum):
    """The phase of a repair."""

    #: The set is frozen; nothing was sent.
    PLANNED = "planned"
    #: The first letters are sent, and their outcome is awaited.
    CANARY = "canary"
    PASSED = "passed"
    FAILED = "failed"
    #: The canary was not processed in time.
    INCONCLUSIVE = "inconclusive"
    APPLYING = "applying"
    PAUSED = "paused"
    #: The stop rule has paused it.
    STOPPED = "stopped"
    #: Every letter was sent or skipped.
    DONE = "done"
    #: The rest is not sent any more.
    CANCELLED = "cancelled"
    UNDOING = "undoing"
    UNDONE = "undone"


class RepairEvent(enum.Enum):
    """An event of a repair."""

    TRY_FEW = "canary"
    CANARY_PASSES = "canary processed"
    CANARY_FAILS = "canary fails again"
    CANARY_WAITS = "canary not processed in time"
    EXCLUDE = "what failed is taken out"
    APPLY = "apply"
    PAUSE = "pause"
    STOP = "stop rule"
    RESUME = "resume"
    FINISH = "nothing left to send"
    CANCEL = "cancel"
    UNDO = "undo"
    TAKEN_BACK = "nothing left to take back"


_P, _E = Phase, RepairEvent

#: What follows; what is not here is refused.
TRANSITIONS: Final[dict[tuple[Phase, RepairEvent], Phase]] = {
    (_P.PLANNED, _E.TRY_FEW): _P.CANARY,
    (_P.PLANNED, _E.APPLY): _P.APPLYING,
    (_P.PLANNED, _E.CANCEL): _P.CANCELLED,
    (_P.CANARY, _E.CANARY_PASSES): _P.PASSED,
    (_P.CANARY, _E.CANARY_FAILS): _P.FAILED,
    (_P.CANARY, _E.CANARY_WAITS): _P.INCONCLUSIVE,
    (_P.CANARY, _E.STOP): _P.INCONCLUSIVE,
    (_P.CANARY, _E.CANCEL): _P.CANCELLED,
    (_P.CANARY, _E.UNDO): _P.UNDOING,
    (_P.PASSED, _E.APPLY): _P.APPLYING,
    (_P.PASSED, _E.CANCEL): _P.CANCELLED,
    (_P.PASSED, _E.UNDO): _P.UNDOING,
    # What failed was taken out of the repair; the others are waited for.
    (_P.FAILED, _E.EXCLUDE): _P.CANARY,
    (_P.FAILED, _E.CANCEL): _P.CANCELLED,
    (_P.FAILED, _E.UNDO): _P.UNDOING,
    # The letters that were sent are waited for once more.
    (_P.INCONCLUSIVE, _E.TRY_FEW): _P.CANARY,
    (_P.INCONCLUSIVE, _E.APPLY): _P.APPLYING,
    (_P.INCONCLUSIVE, _E.CANCEL): _P.CANCELLED,
    (_P.INCONCLUSIVE, _E.UNDO): _P.UNDOING,
    (_P.APPLYING, _E.PAUSE): _P.PAUSED,
    (_P.APPLYING, _E.STOP): _P.STOPPED,
    (_P.APPLYING, _E.FINISH): _P.DONE,
    (_P.APPLYING, _E.CANCEL): _P.CANCELLED,
    (_P.APPLYING, _E.UNDO): _P.UNDOING,
    (_P.PAUSED, _E.RESUME): _P.APPLYING,
    (_P.PAUSED, _E.CANCEL): _P.CANCELLED,
    (_P.PAUSED, _E.UNDO): _P.UNDOING,
    (_P.STOPPED, _E.RESUME): _P.APPLYING,
    (_P.STOPPED, _E.CANCEL): _P.CANCELLED,
    (_P.STOPPED, _E.UNDO): _P.UNDOING,
    (_P.DONE, _E.UNDO): _P.UNDOING,
    (_P.CANCELLED, _E.UNDO): _P.UNDOING,
    (_P.UNDOING, _E.TAKEN_BACK): _P.UNDONE,
}

#: The phases in which a runner has something to do.
RUNNING: Final = frozenset({_P.CANARY, _P.APPLYING, _P.UNDOING})
#: The phases that no runner leads out of: nothing more is sent unless an operator asks for it.
ENDED: Final = frozenset({_P.DONE, _P.CANCELLED, _P.UNDONE})

#: What operators do, by the names that they use.
VERBS: Final = {
    "canary": _E.TRY_FEW,
    "apply": _E.APPLY,
    "pause": _E.PAUSE,
    "resume": _E.RESUME,
    "cancel": _E.CANCEL,
    "undo": _E.UNDO,
}


@dataclasses.dataclass(frozen=True, slots=True)
class RepairedLetter:
    """The outcome of a letter.

    `outcome`: waiting, processed, failed, skipped or undone. `why`: of one that was skipped.
    `sent_as`: its new sequence number, in `queue`; None if it was skipped.
    """

    sequence_number: int
    outcome: str
    why: str | None
    sent_as: int | None
    queue: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class EditedLetter:
    """How an edit changes a letter: lines that begin with "- " for what was, and "+ " for what is new."""

    sequence_number: int
    difference: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class RepairPreview:
    """The outcome of a repair's letters if they were sent now.

    `looked_at`: how many of `letters` it is about. `stops`: why nothing can be sent at present. `to`: the
    queue they go to. `bytes`: of bodies and headers. `sessions`: how many they belong to; `held_places`: how
    many letters return to their place in a session that waits for them. `duplicates`: how many have an id
    that was sent within the queue's window; they are sent all the same. `skipped`: how many would be skipped,
    by the reason. `changed`, `unchanged`: what the edit would do with the others. `examples`: the first ones
    that it would change.
    """

    looked_at: int
    letters: int
    stops: str | None
    to: str
    bytes: int
    sessions: int
    held_places: int
    duplicates: int
    skipped: Mapping[str, int]
    changed: int
    unchanged: int
    examples: tuple[EditedLetter, ...]


def after(phase: Phase, event: RepairEvent) -> Phase | None:
    """Return the phase that follows, None if the event cannot happen in this phase."""
    return TRANSITIONS.get((phase, event))


def next_verbs(phase: Phase) -> tuple[str, ...]:
    """Return what an operator can do in a phase, the usual thing first."""
    return tuple(verb for verb, event in VERBS.items() if (phase, event) in TRANSITIONS)


def diagram() -> str:
    """Return the table of phases as a Mermaid diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {_P.PLANNED.value}: plan"]
    lines += [
        f"    {before.value} --> {then.value}: {event.value}" for (before, event), then in TRANSITIONS.items()
    ]
    return "\n".join(lines)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a repair. It never changes. Times in microseconds.

    `which`: the filter's parts, as text. `members`: a hash of the frozen set in its order. `frozen_at`:
    letters that were set aside later are not in it. `first`, `last`: its lowest and highest sequence number.
    `fingerprints`: letters by fingerprint. `sessions`: how many, where they matter. `edit_source`: of a
    function, a hash of its module. `canary`: how many letters are sent first. `canary_failures`: how many of
    them may fail again. `canary_wait`: seconds. `planners`: all who may be behind whoever planned it.
    """

    which: dict[str, Any]
    members: str
    frozen_at: int
    first: int
    last: int
    fingerprints: dict[str, int]
    order: str = BY_NUMBER
    sessions: int | None = None
    to: str | None = None
    edit: str | None = None
    edit_digest: str | None = None
    edit_source: str | None = None
    canary: int = 0
    canary_failures: int = 0
    canary_wait: float = 600.0
    planners: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of what will be done: to which letters, in which order, how edited, and where they go."""
        parts = (self.members, self.order, self.to, self.edit_digest, self.canary)
        return hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class RepairCounts:
    """How many letters of a repair stand how; together they are all of its letters.

    `left`: not dealt with yet. `waiting`: sent, and still in the queue. `processed`: sent, and gone without
    becoming dead letters again. `failed`: dead letters again. `skipped`: not sent, with a reason. `undone`:
    taken back.
    """

    left: int
    waiting: int = 0
    processed: int = 0
    failed: int = 0
    skipped: int = 0
    undone: int = 0

    @property
    def sent(self) -> int:
        """The letters that were sent and not taken back."""
        return self.waiting + self.processed + self.failed


@dataclasses.dataclass(frozen=True, slots=True)
class RepairStatus:
    """How a repair stands.

    `which`: the filter's parts. `digest`: a hash of what will be done. `fingerprints`: letters by
    fingerprint. `why`: why it is in its phase, if nobody asked for it. `window`: how many letters may be in
    flight now, of at most `in_flight`. `rate`: the most letters a second. `runner`: the process at work on
    it. `next_verbs`: what can be done with it now. `subqueue`: where the letters are. `estimate`: seconds
    until all letters are sent, at its speed so far; None if that is not known.
    """

    name: str
    queue: str
    phase: Phase
    why: str | None
    letters: int
    counts: RepairCounts
    which: Mapping[str, Any]
    digest: str
    fingerprints: Mapping[str, int]
    first: int
    last: int
    frozen_at: datetime
    order: str
    sessions: int | None
    to: str | None
    edit: str | None
    canary: int
    in_flight: int | None
    window: int | None
    rate: float | None
    actor: str
    created: datetime
    changed: datetime
    ended: datetime | None
    runner: str | None
    next_verbs: tuple[str, ...]
    subqueue: str
    estimate: float | None

    def _repr_html_(self) -> str:
        counts = dataclasses.asdict(self.counts)
        why = "" if self.why is None else f" ({self.why})"
        return html_table(
            f"repair {self.name} of {self.queue}: {self.phase.value}{why}, {self.letters:,} letters",
            list(counts),
            [list(counts.values())],
        )


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Pace of sending letters. Both limits can be changed while the repair runs.

    `in_flight`: the most letters that may be sent and not yet processed; None: any number, without a ramp.
    `rate`: the most letters a second; None: any number. `window`: how many may be in flight at present.
    `streak`: how many were processed since the window changed. `recent`: the latest outcomes, the newest
    last: p (processed) or f (failed again). `start`: how many had been dealt with when it last began to run.
    """

    in_flight: int | None = 1_000
    rate: float | None = None
    window: int = 1
    streak: int = 0
    recent: str = ""
    start: int = 0

    def after(self, outcomes: Iterable[bool]) -> Pace:
        """Return the pace after more outcomes, in order: True for processed, False for failed again."""
        window, streak, recent = self.window, self.streak, []
        most = self.in_flight or 1
        for processed in outcomes:
            recent.append("p" if processed else "f")
            if not processed:
                window, streak = max(1, window // 2), 0
                continue
            streak += 1
            if streak >= window:
                window, streak = min(most, wider(window)), 0
        latest = (self.recent + "".join(recent))[-RECENT:]
        return msgspec.structs.replace(self, window=min(window, most), streak=streak, recent=latest)

    def room(self, open_: int) -> int:
        """Return how many more letters may be sent while the outcome of `open_` is not known."""
        return MOST_CHUNK if self.in_flight is None else max(0, min(self.window, self.in_flight) - open_)

    def changed(self, in_flight: int | None, rate: float | None) -> Pace:
        """Return the pace with other limits."""
        window = self.window if in_flight is None else min(self.window, in_flight)
        return msgspec.structs.replace(self, in_flight=in_flight, rate=rate, window=window)

    def afresh(self) -> Pace:
        """Return the pace at which a repair begins anew after the stop rule has stopped it."""
        return msgspec.structs.replace(self, window=1, streak=0, recent="")


def wider(window: int) -> int:
    """Return the next step of the ramp: 1, 2, 5, 10, 20, 50 …"""
    power = 10 ** int(math.log10(window)) if window > 0 else 1
    return next((step * power for step in _STEPS if step * power > window), 10 * power)


def least_share(failed: int, number: int) -> float:
    """Return the lower end of Wilson's 95 % interval of a share: what it is at least, very likely."""
    if not number:
        return 0.0
    share, z2 = failed / number, _Z * _Z
    centre = share + z2 / (2 * number)
    spread = _Z * math.sqrt(share * (1 - share) / number + z2 / (4 * number * number))
    return max(0.0, (centre - spread) / (1 + z2 / number))


def why_stop(pace: Pace) -> str | None:
    """Return why a repair must not go on, by its latest outcomes; None if it may."""
    failed, number = pace.recent.count("f"), len(pace.recent)
    least = least_share(failed, number)
    if least <= MOST_FAILING:
        return None
    return (
        f"{failed} of the last {number} letters failed again: at least {100 * least:.0f} % of all will, "
        f"and {100 * MOST_FAILING:.0f} % are allowed"
    )


def next_chunk(size: int, seconds: float) -> int:
    """Return how many letters the next commit takes, given how long the latest one of `size` took."""
    ideal = size * CHUNK_SECONDS / max(seconds, 1e-6)
    # Slowly up, at once down: one long commit is felt, one short one is not.
    size = max(_LEAST_CHUNK, min(MOST_CHUNK, int(min(ideal, 2 * size))))
    # Round numbers are texts of SQL that are known already.
    return size - size % 100 if size > 100 else size


class Allowance(msgspec.Struct):
    """Letters that a rate allows now. Times in seconds, of any clock that never goes back."""

    left: float = 1.0
    at: float | None = None

    def allow(self, rate: float | None, now: float) -> int:
        """Return how many letters may be sent; what was not sent for a fifth of a second is lost."""
        if rate is None:
            return MOST_CHUNK
        if self.at is not None:
            self.left = min(max(1.0, rate / 5), self.left + (now - self.at) * rate)
        self.at = now
        return int(self.left)

    def spend(self, letters: int) -> None:
        """Note letters that were sent."""
        self.left -= letters
