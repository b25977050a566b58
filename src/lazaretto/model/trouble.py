"""Troubles of a queue: decided in one place, for `status` and `doctor` alike. Pure."""

from __future__ import annotations

import dataclasses
import shlex
from datetime import datetime
from typing import NamedTuple

from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.descriptions import BreakerDescription, Culprit
from lazaretto.model.entities import QueueOptions, QueueStatus


@dataclasses.dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is wrong with a queue.

    `kind`: a fixed word. `severe`: messages stand still until somebody acts. `text`: what is wrong, in a
    sentence with what to do. `since`: None if nobody knows. `command`: what to type next.
    """

    kind: str
    severe: bool
    text: str
    since: datetime | None
    command: str


class ClientFailures(NamedTuple):
    """Different messages that failed at clients of AMQP and HTTP lately. `expired`: by locks that ran out."""

    messages: int
    expired: int
    since: datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """The standing of a queue that may be wrong. `died`: when the oldest of its dead letters came.

    `waits_since`: since when messages wait of which nobody takes any. `attended`: whether somebody is there
    who would take them.
    """

    path: str
    status: QueueStatus
    updated: datetime
    halted_by: Culprit | None
    dead_letter_halted_by: Culprit | None
    breaker: BreakerDescription
    held_sessions: int
    dead_letters: int
    died: datetime | None
    options: QueueOptions
    waits_since: datetime | None = None
    attended: bool = False
    client_failures: ClientFailures | None = None


#: Seconds for which messages wait, and nobody takes one, until that is a trouble.
UNATTENDED = 300
#: Seconds in which failures at clients belong together; how many different messages must have failed in them,
#: and how many locks must have run out, until options that would have helped are worth a trouble.
CLIENTS_WINDOW = 86_400
_FAILED, _EXPIRED = 10, 5


def find_troubles(queue: Standing) -> tuple[Trouble, ...]:
    """Return what is wrong with a queue, what makes messages stand still first."""
    troubles = [*_held(queue), *_breaker(queue), *_status(queue), *_halted(queue)]
    # What stands still for another reason is not taken by anybody either.
    troubles += [] if troubles else _unattended(queue)
    troubles += _dead_letters(queue)
    advice = advise_for_clients(queue.path, queue.options, queue.client_failures)
    troubles += [] if advice is None else [advice]
    return tuple(sorted(troubles, key=lambda trouble: not trouble.severe))


def _held(queue: Standing) -> list[Trouble]:
    if not queue.held_sessions:
        return []
    path, number = queue.path, _plural(queue.held_sessions, "session")
    command = _line("session", "list", path, "--held")
    text = (
        f"queue {path} has {number} held back by a poison message; "
        f"see {command}, then lazaretto session resume"
    )
    return [Trouble("held_sessions", True, text, None, command)]


def _breaker(queue: Standing) -> list[Trouble]:
    breaker = queue.breaker
    if breaker.status not in (BreakerStatus.OPEN, BreakerStatus.HELD_OPEN):
        return []
    held_open = breaker.status is BreakerStatus.HELD_OPEN
    command = _line("breaker", "resume" if held_open else "show", queue.path)
    why = "kept open by an operator" if held_open else f"open, for an outage: {breaker.error}"
    what = "nothing is handed out" if held_open else "only probes are handed out"
    text = f"the breaker of {queue.path} is {why}; {what}: {command}"
    return [Trouble("breaker_open", True, text, breaker.since, command)]


def _status(queue: Standing) -> list[Trouble]:
    path, status = queue.path, queue.status
    if status in (QueueStatus.SEND_DISABLED, QueueStatus.RECEIVE_DISABLED):
        command = _line("queue", "status", path, "active")
        text = f"queue {path} is {status.value.replace('_', '-')}; switch it on: {command}"
        return [Trouble(status.value, True, text, queue.updated, command)]
    if status is QueueStatus.DISABLED:
        command = _line("queue", "resume", path)
        text = f"queue {path} is disabled; see `lazaretto events --queue {path}`, then {command}"
        return [Trouble("disabled", True, text, queue.updated, command)]
    return []


def _halted(queue: Standing) -> list[Trouble]:
    troubles, path = [], queue.path
    if queue.halted_by is not None:
        culprit = queue.halted_by
        command = _line("queue", "resume", path, "--verdict", "retry")
        text = (
            f"queue {path} is halted by message {culprit.sequence_number} ({_why(culprit)}); "
            f"give a verdict (retry, move, drop or reject): {command}"
        )
        troubles.append(Trouble("halted", True, text, culprit.time, command))
    if queue.dead_letter_halted_by is not None:
        culprit = queue.dead_letter_halted_by
        command = _line("queue", "resume", f"{path};poison", "--verdict", "retry")
        text = (
            f"the dead letters of {path} are halted by number {culprit.sequence_number} ({_why(culprit)}); "
            f"give a verdict (retry, drop or reject): {command}"
        )
        troubles.append(Trouble("dead_letters_halted", True, text, culprit.time, command))
    return troubles


def _dead_letters(queue: Standing) -> list[Trouble]:
    if not queue.dead_letters:
        return []
    number = _plural(queue.dead_letters, "dead letter")
    text = f"queue {queue.path} has {number}; see `lazaretto dead-letter groups {queue.path}`"
    return [Trouble("dead_letters", False, text, queue.died, _line("triage", queue.path))]


def advise_for_clients(path: str, options: QueueOptions, failures: ClientFailures | None) -> Trouble | None:
    """Return what clients' failures cost a queue, and the options that spare it; None if none would help."""
    if failures is None:
        return None
    breaker = options.breaker is not None and options.breaker.clients
    flags = [
        flag
        for flag, helps in (
            ("--breaker-clients", not breaker and failures.messages >= _FAILED),
            ("--blame-clients", not options.blame_clients and failures.expired >= _EXPIRED),
        )
        if helps
    ]
    if not flags:
        return None
    command = _line("queue", "update", path, *flags)
    text = (
        f"clients failed with {_plural(failures.messages, 'message')} of {path} in a day, with "
        f"{failures.expired:,} by locks that expired; an outage and a killed process need not cost any "
        f"attempts: {command}"
    )
    return Trouble("client_failures", False, text, failures.since, command)


def _line(*words: str) -> str:
    """Return what to type: a line of the shell."""
    return shlex.join(["lazaretto", *words])


def _unattended(queue: Standing) -> list[Trouble]:
    if queue.waits_since is None:
        return []
    command = _line("worker", "list", "--queue", queue.path)
    minutes = f"{UNATTENDED // 60} minutes"
    if queue.attended:
        # They may be stuck, or at work on what came before: others would know.
        kind, what = "stalled", f"those who take its messages have taken none for {minutes}"
    else:
        kind, what = "unattended", f"nobody has taken one for {minutes}"
    text = f"messages wait in {queue.path}, and {what}; see {command}"
    return [Trouble(kind, not queue.attended, text, queue.waits_since, command)]


def _why(culprit: Culprit) -> str:
    return culprit.reason if culprit.error is None else f"{culprit.reason}: {culprit.error}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
