"""The phases of a repair and what leads from one to the next, as a table."""

from __future__ import annotations

import enum
from typing import Final


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
