"""A message's history: under which numbers it was stored, and what happened to it under each."""

from __future__ import annotations

import dataclasses
from datetime import datetime

from lazaretto.model.failure import shown_reason
from lazaretto.model.messages import Attempt, DeadLetter, PeekedMessage

#: The state of a message of which the store has kept nothing.
GONE = "gone"


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """A message under one sequence number. A dead letter that is sent back gets another one.

    `state`: that of a message that is stored, as `peek` has it; "dead_lettered"; how the dead letter was
    resolved, which is "resubmitted", "moved", "forwarded", "purged" or "completed"; "dropped" or "rejected",
    as a recent event says; or "gone": it was completed, or discarded, or deleted, and the store has kept
    nothing of it. `subqueue`: where it lies, "" for the queue
    itself. `attempts`: those under this number, without the completed one.
    """

    queue: str
    subqueue: str
    sequence_number: int
    state: str
    message_id: str | None = None
    generation: int | None = None
    enqueued: datetime | None = None
    attempts: tuple[Attempt, ...] = ()
    dead_lettered: datetime | None = None
    reason: str | None = None
    description: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    fingerprint: str | None = None
    resolved: datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to a message. `attempt`: what it is about, if it is one."""

    time: datetime
    queue: str
    sequence_number: int
    what: str
    attempt: Attempt | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class MessageHistory:
    """The history of a message: its generations, the oldest first, and those that came of it.

    `queue`, `sequence_number`: those that were asked for. `message`: it as it is stored there, or None.
    `complete`: False if there are more generations than are told.
    """

    queue: str
    sequence_number: int
    generations: tuple[Generation, ...]
    message: PeekedMessage | None
    complete: bool = True

    @property
    def asked(self) -> Generation:
        """The generation that was asked for."""
        asked = (self.queue, self.sequence_number)
        return next(one for one in self.generations if (one.queue, one.sequence_number) == asked)

    @property
    def latest(self) -> Generation:
        """The last generation: what became of the message."""
        return self.generations[-1]

    def moments(self) -> list[Moment]:
        """Return what happened, the oldest first."""
        moments: list[Moment] = []
        for number, one in enumerate(self.generations):
            place = one.queue, one.sequence_number
            if one.enqueued is not None:
                came = number and self.generations[number - 1].state == "forwarded"
                what = "arrived" if came else "sent back" if number or one.generation else "sent"
                moments.append(Moment(one.enqueued, *place, what))
            moments += [Moment(a.ended, *place, a.outcome.value, a) for a in one.attempts]
            if one.dead_lettered is not None:
                moments.append(
                    Moment(one.dead_lettered, *place, f"dead-lettered: {shown_reason(one.reason)}")
                )
            if one.resolved is not None:
                why = one.reason if one.dead_lettered is None else None
                moments.append(Moment(one.resolved, *place, f"{one.state}: {why}" if why else one.state))
        return moments


def generation_of(letter: DeadLetter, subqueue: str, attempts: tuple[Attempt, ...]) -> Generation:
    """Return a dead letter as a generation of a message."""
    return Generation(
        letter.queue,
        subqueue,
        letter.sequence_number,
        letter.resolution or "dead_lettered",
        letter.message_id,
        letter.generation,
        letter.enqueued,
        attempts,
        letter.dead_lettered,
        letter.reason,
        letter.description,
        letter.error_type,
        letter.error_message,
        letter.fingerprint,
        letter.resolved,
    )
