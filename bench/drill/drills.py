"""The drills: which messages are offered, what goes wrong, and what is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bench.drill import measures
from bench.drill.measures import Measure
from bench.drill.work import Kind, Message

#: How many messages one worker holds, where the system lets it.
HELD = 50
#: Retries of a message whose task raises.
RETRIES = 5
#: Seconds that a task may take, in the systems that have a limit.
DEADLINE = 1.0
LIMIT_SECONDS = 60.0
OUTAGE_SECONDS = 20.0
FULL_OUTAGE_SECONDS = 60.0
#: Seconds that a system gets after the outage.
_RECOVERY_SECONDS = 40.0
_WORK_SECONDS = 0.01
#: Places of the killers, from 1: neither first nor last, so that innocents stand on both sides.
_KILLERS = (25, 10, 40)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The dependency fails for every message for `seconds`.

    One message is offered every `every` seconds: for `before` seconds, during the outage, and for `after`
    seconds when it is over.
    """

    seconds: float
    before: float = 2.0
    after: float = 5.0
    every: float = 0.005

    def messages(self) -> tuple[Message, ...]:
        """Return the messages that are offered, in their order."""
        count = round((self.before + self.seconds + self.after) / self.every)
        return tuple(Message(number, Kind.DEPENDENT) for number in range(1, count + 1))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A disaster. `title` says what it is, for the table.

    `messages` are all sent before the worker starts, unless there is an `outage`. `kills`: when that many
    messages are done, the worker and all its processes get SIGKILL while the next task runs.
    `deadline`: seconds that a task may take, None for no limit. `limit`: seconds after the first task
    started until nothing more is waited for.
    """

    key: str
    title: str
    messages: Sequence[Message]
    measures: Sequence[Measure]
    kills: Sequence[int] = ()
    deadline: float | None = None
    outage: Outage | None = None
    limit: float = LIMIT_SECONDS


def _among(total: int, villains: Sequence[int], kind: Kind) -> tuple[Message, ...]:
    return tuple(
        Message(number, kind) if number in villains else Message(number, Kind.GOOD, _WORK_SECONDS)
        for number in range(1, total + 1)
    )


def _killers(key: str, count: int) -> Drill:
    killers = "one killer" if count == 1 else f"{count} killers"
    return Drill(
        key=key,
        title=f"{killers} among {HELD} messages held by one worker",
        messages=_among(HELD, _KILLERS[:count], Kind.KILLER),
        measures=(
            measures.INNOCENTS_GONE,
            measures.REPEATED,
            measures.DEATHS if count == 1 else measures.DEATHS._replace(target=""),
            measures.INNOCENTS_DONE,
        ),
    )


def _hang() -> Drill:
    return Drill(
        key="c",
        title=f"one hang among {HELD} messages, a deadline of {DEADLINE:g} s where there is one",
        messages=_among(HELD, _KILLERS[:1], Kind.HANG),
        measures=(measures.INNOCENTS_GONE, measures.REPEATED, measures.HANGS, measures.INNOCENTS_DONE),
        deadline=DEADLINE,
    )


def _restarts() -> Drill:
    return Drill(
        key="f",
        title="rolling restart: three SIGKILLs of the worker while 200 messages of 10 ms run",
        messages=_among(200, (), Kind.GOOD),
        measures=(
            measures.INNOCENTS_GONE,
            measures.REPEATED,
            measures.CHARGED_UNSTARTED,
            measures.INNOCENTS_DONE,
        ),
        kills=(40, 80, 120),
    )


def _outage(seconds: float) -> Drill:
    outage = Outage(seconds=seconds)
    return Drill(
        key="e",
        title=f"outage: the dependency is down for {seconds:g} s, {1 / outage.every:g} messages/s offered",
        messages=outage.messages(),
        measures=(
            measures.INNOCENTS_GONE,
            measures.FAILED_TRIES,
            measures.CHARGED,
            measures.FULL_RATE,
            measures.DRAINED,
        ),
        outage=outage,
        limit=outage.before + seconds + _RECOVERY_SECONDS,
    )


def drills(outage_seconds: float = OUTAGE_SECONDS) -> dict[str, Drill]:
    """Return all drills by their keys, in the order of the table."""
    found = (_killers("a", 1), _killers("a3", 3), _hang(), _restarts(), _outage(outage_seconds))
    return {drill.key: drill for drill in found}
