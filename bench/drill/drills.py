"""The drills: which messages are offered, what goes wrong, and what is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from zoo import BAD_ZOO

from bench.drill import measures
from bench.drill.measures import Measure
from bench.drill.work import Kind, Message
from lazaretto import PoisonSession

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
ZOO_MESSAGES = 10_000
_ZOO_DEADLINE = 0.5
_ZOO_SECONDS = 300.0
_SESSIONS, _SESSION_LENGTH, _POISON_PLACE, _SESSION_WORK_SECONDS = 500, 10, 4, 0.005
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
    started until nothing more is waited for. `sessions`: what becomes of a session with a poison message,
    None for a queue without; `retries`, `at_once`: as in the terms. `systems`: the systems that it is
    for; None for all.
    """

    key: str
    title: str
    messages: Sequence[Message]
    measures: Sequence[Measure]
    kills: Sequence[int] = ()
    deadline: float | None = None
    outage: Outage | None = None
    limit: float = LIMIT_SECONDS
    sessions: str | None = None
    retries: int = RETRIES
    at_once: int = 1
    systems: frozenset[str] | None = None

    def runs_on(self, system: str) -> bool:
        """Return whether the drill is for this system."""
        return self.systems is None or system in self.systems


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
            measures.DEATHS if count == 1 else dataclasses.replace(measures.DEATHS, target=""),
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


def _poison() -> Drill:
    bad = range(50, 2_001, 100)
    return Drill(
        key="g",
        title=f"1 % poison in 2,000 messages, {RETRIES} retries",
        messages=tuple(
            Message(number, Kind.POISON if number in bad else Kind.GOOD) for number in range(1, 2_001)
        ),
        measures=(measures.GOOD, measures.BAD, measures.ALL_SETTLED),
    )


def _zoo(total: int) -> Drill:
    bad = {number: index % len(BAD_ZOO) for index, number in enumerate(range(50, total + 1, 100))}
    return Drill(
        key="z",
        title=f"{total:,} messages, 1 % of them a zoo of {len(BAD_ZOO)} kinds of crashes, hangs and errors",
        messages=tuple(
            Message(number, Kind.ZOO, bad[number]) if number in bad else Message(number, Kind.GOOD)
            for number in range(1, total + 1)
        ),
        measures=(
            dataclasses.replace(measures.GOOD, target=f"{total - len(bad):,}"),
            measures.REPEATED,
            dataclasses.replace(measures.BAD, target=f"{len(bad):,}"),
            measures.ALL_SETTLED,
        ),
        deadline=_ZOO_DEADLINE,
        limit=_ZOO_SECONDS,
        systems=frozenset({"lazaretto"}),
    )


def _sessions(mode: str, *, poison: bool = True) -> Drill:
    """One message in the middle of every fifth session is poison."""
    bad = frozenset(range(5, _SESSIONS + 1, 5))
    messages = tuple(
        Message(
            place * _SESSIONS + session,
            Kind.POISON if poison and place == _POISON_PLACE and session in bad else Kind.GOOD,
            _SESSION_WORK_SECONDS,
            session,
        )
        for place in range(_SESSION_LENGTH)
        for session in range(1, _SESSIONS + 1)
    )
    what = f"one poison in each of {len(bad)}, on_poison_session {mode}" if poison else "no poison"
    others = measures.rate_of_sessions(frozenset(range(1, _SESSIONS + 1)) - bad)
    return Drill(
        key=f"s-{mode}" if poison else "s",
        title=f"{_SESSIONS} sessions of {_SESSION_LENGTH} messages of 5 ms, 4 sessions at once: {what}",
        messages=messages,
        measures=(measures.order_of_sessions(bad, mode), others) if poison else (others,),
        sessions=mode,
        retries=1,
        at_once=4,
        systems=frozenset({"lazaretto"}),
    )


def drills(outage_seconds: float = OUTAGE_SECONDS) -> dict[str, Drill]:
    """Return all drills by their keys, in the order of the table.

    A drill for some systems only names them in `systems`.
    """
    found = (
        _killers("a", 1),
        _killers("a3", 3),
        _hang(),
        _restarts(),
        _outage(outage_seconds),
        _poison(),
        _zoo(ZOO_MESSAGES),
        _sessions("skip", poison=False),
        *(_sessions(mode.value) for mode in PoisonSession),
    )
    return {drill.key: drill for drill in found}
