"""Lists sessions that a poison message holds, and resumes them with an operator's verdict."""

from __future__ import annotations

from collections import Counter

import msgspec

from lazaretto.engine.command import SESSION, OfPath
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.log import audit
from lazaretto.engine.outcome.dispositions import destination_of, dispose
from lazaretto.engine.outcome.send_back import resubmit
from lazaretto.engine.outcome.session_holds import held_decoder, release_sessions
from lazaretto.errors import EntityError, InvalidOption, MessageNotFound
from lazaretto.model.checks import shown, text
from lazaretto.model.clock import to_datetime
from lazaretto.model.descriptions import HeldSession, SessionDescription
from lazaretto.model.entities import EntityPath, PoisonSession, Subqueue
from lazaretto.model.headers import LONGEST_ID
from lazaretto.model.keys import lower_bound, upper_bound
from lazaretto.model.policy import DISPOSITIONS
from lazaretto.store.records.messages import STATES
from lazaretto.store.sql.transaction import Transaction

#: An operator's possible decisions on the poison message of a held session, and on a parked session.
BLOCK_VERDICTS = ("retry", "move", "drop", "reject")
PARK_VERDICTS = ("retry", "skip")


def held_session(session_id: str, held_by: str) -> HeldSession:
    """Return a held session as users see it."""
    hold = held_decoder.decode(held_by)
    since = to_datetime(hold.time)
    return HeldSession(session_id, hold.mode, hold.sequence_number, hold.reason, since, hold.error)


def held_sessions(tx: Transaction, path: EntityPath, limit: int) -> list[HeldSession]:
    """Return a queue's held sessions, in the order of their poison messages."""
    queue = require_queue(tx, path)
    bounds = lower_bound(queue.queue_id), upper_bound(queue.queue_id)
    return [held_session(s.session_id, s.held_by) for s in tx.sessions.held(*bounds, limit)]


def describe_session(tx: Transaction, path: EntityPath, session_id: str) -> SessionDescription:
    """Return the state of a session. Raises MessageNotFound if it has no messages, lock or state."""
    queue = require_queue(tx, path)
    record = tx.sessions.find(queue.queue_id, session_id)
    keys = tx.sessions.messages(queue.queue_id, session_id)
    if record is None and not keys:
        raise MessageNotFound(f"no session {session_id!r} in {queue.path!r}")
    states = Counter(STATES[message.state].value for message in keys)
    locked = record is not None and record.is_locked(tx.now)
    return SessionDescription(
        queue=queue.path,
        session_id=session_id,
        messages=dict(states),
        locked_until=to_datetime(record.locked_until) if record and locked and record.locked_until else None,
        locked_by=record.locked_by if record and locked else None,
        has_state=record is not None and record.state is not None,
        held=held_session(session_id, record.held_by) if record and record.held_by else None,
    )


class ResumeSession(OfPath[None], frozen=True, kw_only=True):
    """Resume a held session with a verdict on its poison message.

    `verdict`: for a blocked session "retry", "move", "drop" or "reject"; for a parked one "retry" (the dead
    letter returns to its place) or "skip" (the session continues without it). Raises EntityError if the
    session is not held.
    """

    action = "resume_session"
    former = SESSION
    session_id: str
    verdict: str

    def destination(self, tx: Transaction) -> str | None:
        queue = require_queue(tx, EntityPath.parse(self.path))
        record = tx.sessions.find(queue.queue_id, self.session_id)
        if record is None or record.held_by is None:
            return None
        hold = held_decoder.decode(record.held_by)
        if hold.mode is PoisonSession.PARK:
            # A retry sends it back to where it failed.
            return queue.path if self.verdict == "retry" else None
        row = tx.row(lower_bound(queue.queue_id) + hold.sequence_number)
        return None if row is None else destination_of(tx, queue, row, self.verdict)

    def run(self, tx: Transaction, actor: str) -> None:
        path, session = EntityPath.parse(self.path), text("session_id", self.session_id, LONGEST_ID, 0)
        queue = require_queue(tx, path)
        record = tx.sessions.find(queue.queue_id, session)
        if record is None or record.held_by is None:
            raise EntityError(f"session {session!r} of {queue.path!r} is not held")
        hold = held_decoder.decode(record.held_by)
        allowed = BLOCK_VERDICTS if hold.mode is PoisonSession.BLOCK else PARK_VERDICTS
        verdict = next((one for one in allowed if one == self.verdict), None)
        if verdict is None:
            raise InvalidOption(
                f"expected a verdict on a session in mode {hold.mode.value} of {', '.join(allowed)}, "
                f"got {shown(self.verdict)}"
            )
        key = lower_bound(queue.queue_id) + hold.sequence_number
        if hold.mode is PoisonSession.BLOCK:
            row = tx.row(key)
            release_sessions(tx, [key])
            if row is not None and verdict == "retry":
                tx.save_row(msgspec.structs.replace(row, cycle_attempts=0, cycle=0))
            elif row is not None:
                dispose(tx, queue, row, DISPOSITIONS[verdict], hold.reason)
        elif verdict == "retry":
            dead = EntityPath(path.queue, Subqueue.DEAD_LETTER)
            report = resubmit(tx, dead, [hold.sequence_number], actor)
            if report.skipped:
                raise EntityError(
                    f"message {hold.sequence_number} cannot be resubmitted: {report.skipped[0].why}"
                )
        else:
            release_sessions(tx, [key])
        audit(tx, actor, self.action, queue.path, session=session, verdict=verdict)
