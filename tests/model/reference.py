"""A model of what the broker promises, in plain Python: no SQL, no threads, nothing stored.

Time is in whole seconds. Whatever the broker refuses, the model refuses with the same error's name.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lazaretto.model.entities import QueueOptions, TopicOptions
from lazaretto.model.keys import PARTITION_SEQUENCE_BITS
from lazaretto.model.partitions import partition_of
from lazaretto.model.policy import Backoff, Disposition, Growth, Outcome, PoisonPolicy

from .records import (
    ACTIVE,
    DEFERRED,
    DELAYED,
    LOCKED,
    SCHEDULED,
    SYSTEM,
    Copy,
    Culprit,
    Draft,
    Grave,
    Handle,
    Past,
    Queue,
    Refused,
    Session,
    SessionHandle,
    Settlement,
)


def cycle_delay(policy: PoisonPolicy, cycle: int) -> int:
    """Return the seconds before a retry cycle, counted from 1."""
    delay = policy.retry_cycle_delay
    if not isinstance(delay, Backoff):
        return int(delay)
    assert delay.jitter == 0
    factor = {Growth.CONSTANT: 1, Growth.LINEAR: cycle, Growth.EXPONENTIAL: 2 ** (cycle - 1)}[delay.growth]
    return int(min(delay.initial * factor, delay.maximum))


class Model:
    """All queues, at a time. `pass_time` does what is due; every receive begins with it."""

    def __init__(
        self,
        now: int,
        options: dict[str, QueueOptions],
        subscriptions: Mapping[str, Callable[[Draft], bool]],
        topic: TopicOptions,
    ) -> None:
        self.now = now
        self.queues = {path: Queue(path, o) for path, o in {SYSTEM: QueueOptions(), **options}.items()}
        self.events: list[tuple[str, str, int | None]] = []
        self.rows: list[str] = []
        self.rotation: dict[str, str] = {}
        self._tokens = 0
        #: What the broker handed out just now: from which partition it takes is its choice.
        self.taken: list[int] = []
        #: Finds the number above another one that the broker gave in a partition, which may leave some out.
        self.given: Callable[[str, int], int] | None = None
        #: Whether the broker still has a message that can be received: it may have looked at others, too.
        self.still_there: Callable[[str, int], bool] = lambda path, number: True
        #: One topic: what each subscription wants, and how many messages were sent to it.
        self.subscriptions = subscriptions
        self.topic = topic
        self.published = self.unmatched = 0

    def restart(self) -> None:
        """Forget what a broker keeps in memory only: where the round of the sessions stands."""
        self.rotation.clear()

    def undoable(self, work: Callable[[], None]) -> None:
        """Do `work`; if it is refused nothing has changed."""
        saved = copy.deepcopy(self.__dict__)
        try:
            work()
        except Refused:
            self.__dict__ = saved
            raise

    def _event(self, kind: str, queue: Queue, number: int | None) -> None:
        self.events.append((kind, queue.path, number))

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    # -- sending --------------------------------------------------------------------------------

    def send(self, path: str, drafts: Sequence[Draft]) -> list[int]:
        """Send all drafts or none; return their numbers, for a duplicate that of the first."""
        queue = self.queues[path]
        self._refuse_disabled(queue)
        if path == SYSTEM or path in self.subscriptions:
            raise Refused("NotAllowed")
        for draft in drafts:
            if queue.options.requires_session and draft.session_id is None:
                raise Refused("InvalidMessage")
            if draft.sender_queue is not None and draft.sender_queue not in self.queues:
                raise Refused("EntityNotFound")
        return [self._send_one(queue, draft) for draft in drafts]

    def publish(self, drafts: Sequence[Draft]) -> list[int]:
        """Send drafts to the topic: each subscription gets what it wants."""
        if any(d.sender_queue is not None and d.sender_queue not in self.queues for d in drafts):
            raise Refused("EntityNotFound")
        numbers = []
        for draft in drafts:
            self.published += 1
            numbers.append(self.published)
            wanted = [path for path, wants in self.subscriptions.items() if wants(draft)]
            for path in wanted:
                self._enter(self.queues[path], draft).came_from = self.published
            self.unmatched += not wanted
        return numbers

    def _send_one(self, queue: Queue, draft: Draft) -> int:
        detects = queue.options.requires_duplicate_detection and draft.message_id is not None
        if detects and draft.message_id in queue.sent_ids:
            number, until = queue.sent_ids[draft.message_id]
            if until > self.now:
                return number
        by_id = draft.message_id if detects and draft.session_id is None else None
        new = self._enter(queue, draft, by_id)
        if draft.at is not None and draft.at > self.now:
            new.state, new.wake = SCHEDULED, draft.at
        if detects and draft.message_id is not None:
            window = int(queue.options.duplicate_detection_window)
            queue.sent_ids[draft.message_id] = (new.number, self.now + window)
        return new.number

    def _enter(self, queue: Queue, draft: Draft, key: str | None = None) -> Copy:
        """Put a message at the end of a queue, or of the partition of its session or of another key."""
        above = self.topic.default_time_to_live if queue.path in self.subscriptions else None
        lives = [t for t in (draft.ttl, queue.options.default_time_to_live, above) if t is not None]
        expires = self.now + int(min(lives)) if lives else None
        number = self._next_number(queue, draft.session_id if key is None else key)
        new = Copy(number, draft, draft.message_id, self.now, expires, sender_queue=draft.sender_queue)
        queue.copies[False, new.number] = new
        return new

    def _next_number(self, queue: Queue, key: str | None) -> int:
        """Return the number of a new message; without a key it goes to the first partition."""
        partition = partition_of(key, queue.options.partitions) if key is not None else 0
        return self._number_in(queue, partition)

    def _number_in(self, queue: Queue, partition: int) -> int:
        first = partition << PARTITION_SEQUENCE_BITS
        last = queue.last.get(partition, first)
        if queue.options.partitions == 1 or self.given is None:
            queue.last[partition] = last + 1
        else:
            queue.last[partition] = self.given(queue.path, last)
        return queue.last[partition]

    def cancel(self, path: str, numbers: Sequence[int]) -> None:
        """Delete scheduled messages: all, or none."""
        queue = self.queues[path]
        found = [queue.copies.get((False, n)) for n in numbers]
        if any(c is None or c.state is not SCHEDULED for c in found):
            raise Refused("MessageNotFound")
        for number in numbers:
            gone = queue.copies.pop((False, number), None)
            if gone is not None and queue.sent_ids.get(gone.message_id or "", (0, 0))[0] == number:
                del queue.sent_ids[gone.message_id or ""]

    # -- receiving ------------------------------------------------------------------------------

    def receive(
        self, path: str, limit: int, *, dead: bool = False, session: SessionHandle | None = None
    ) -> list[Handle]:
        """Lock the first receivable messages by number."""
        queue = self._open(path, dead, session)
        if session is not None:
            self._session(session)
        if session is not None and queue.units:
            return self._hand_over(queue, self._unit(queue, session.name, limit), session)
        found: list[Copy] = []
        for one in queue.of_session(session.name) if session else self._offered(queue, dead):
            if session is not None and one.state is DELAYED:
                break
            if one.state is not ACTIVE:
                continue
            if self._exhausted(queue, one):
                self._judge(queue, one, None, None)
                self._refuse_stopped(queue, dead)
                if session is not None and one.state is DELAYED:
                    break
                if queue.copies.get((dead, one.number)) is not one or one.state is not ACTIVE:
                    continue
            found.append(one)
            if len(found) == limit:
                break
        return self._hand_over(queue, found, session)

    def _offered(self, queue: Queue, dead: bool) -> list[Copy]:
        """Return what is next in a queue, or in the partition from which the broker took.

        Before that it may have looked at others, where it found only messages to set aside.
        """
        copies = queue.part(dead)
        if dead or queue.options.partitions == 1 or not self.taken:
            return copies
        partitions = {number >> PARTITION_SEQUENCE_BITS for number in self.taken}
        return [
            one
            for one in copies
            if one.number >> PARTITION_SEQUENCE_BITS in partitions
            or (
                one.state is ACTIVE
                and self._exhausted(queue, one)
                and not self.still_there(queue.path, one.number)
            )
        ]

    def _unit(self, queue: Queue, name: str, limit: int) -> list[Copy]:
        """Return all of a session that is one unit, once none of it waits or is held."""
        while True:
            copies = queue.of_session(name)
            if any(c.state in (DELAYED, LOCKED) for c in copies):
                return []
            unit = [c for c in copies if c.state is ACTIVE]
            if len(unit) > limit:
                raise Refused("NotAllowed")
            over = next((c for c in unit if self._exhausted(queue, c)), None)
            if over is None:
                return unit
            self._judge(queue, over, None, None)
            self._refuse_stopped(queue, False)

    def _hand_over(self, queue: Queue, found: Iterable[Copy], session: SessionHandle | None) -> list[Handle]:
        token = session.token if session else self._token()
        handles = []
        for one in found:
            one.counts.deliveries += 1
            one.state, one.token, one.wake = LOCKED, token, None
            one.locked_until = None if session else self.now + int(queue.options.lock_duration)
            handles.append(Handle(queue.path, one.dead, one.number, token, session.name if session else None))
        return handles

    def take(self, handles: Sequence[Handle]) -> None:
        """Receive and delete: what was just handed over is gone, and the receive committed."""
        for handle in handles:
            self._remove(self.queues[handle.queue], self.copy(handle), "completed")
        if handles and not handles[0].dead:
            self.queues[handles[0].queue].rollbacks = 0

    def receive_deferred(
        self, path: str, numbers: Sequence[int], *, dead: bool = False, session: SessionHandle | None = None
    ) -> list[Handle]:
        """Lock deferred messages: all, or none."""
        queue = self._open(path, dead, session)
        while True:
            found = [queue.copies.get((dead, n)) for n in sorted(set(numbers))]
            ready = [c for c in found if c is not None and c.state is DEFERRED]
            strange = session and any(c.draft.session_id != session.name for c in ready)
            if len(ready) < len(found) or strange:
                raise Refused("MessageNotFound")
            # Deferring counts as an attempt, but is none that failed.
            over = [c for c in ready if self._exhausted(queue, c, c.failures_in_cycle)]
            if not over:
                break
            for one in over:
                self._judge(queue, one, None, None, tries=one.failures_in_cycle)
                self._refuse_stopped(queue, dead)
                if session is not None:
                    break
        if session is not None:
            self._session(session)
        return self._hand_over(queue, ready, session)

    def _open(self, path: str, dead: bool, session: SessionHandle | None) -> Queue:
        queue = self.queues[path]
        if not dead:
            self._refuse_disabled(queue)
        if not dead and queue.options.requires_session and session is None:
            raise Refused("NotAllowed")
        if session is not None and (dead or not queue.options.requires_session):
            raise Refused("NotAllowed")
        self.pass_time()
        self._refuse_stopped(queue, dead)
        return queue

    def _refuse_disabled(self, queue: Queue) -> None:
        if queue.disabled:
            raise Refused("QueueDisabled")

    def _refuse_stopped(self, queue: Queue, dead: bool) -> None:
        if not dead:
            self._refuse_disabled(queue)
        if queue.dead_culprit if dead else queue.culprit:
            raise Refused("PoisonMessageError")

    def _exhausted(self, queue: Queue, one: Copy, tries: int | None = None) -> bool:
        policy = queue.policy(one.dead)
        if policy is None:
            return False
        cycles = 0 if one.dead else policy.max_retry_cycles
        tries = one.counts.tries if tries is None else tries
        return tries > policy.receive_retry_count or one.counts.cycle > cycles

    # -- settling -------------------------------------------------------------------------------

    def copy(self, handle: Handle) -> Copy:
        """Return the message of a hand-over that was just made."""
        return self.queues[handle.queue].copies[handle.dead, handle.number]

    def held(self, handle: Handle) -> bool:
        """Return whether the message is locked by that hand-over, and the lock has not run out."""
        one = self.queues[handle.queue].copies.get((handle.dead, handle.number))
        if one is None or one.state is not LOCKED or one.token != handle.token:
            return False
        return one.locked_until is None or one.locked_until > self.now

    def settle(self, entries: Sequence[tuple[Handle, Settlement]]) -> None:
        """Settle messages: all, or none."""
        self._check_settle(entries)
        for handle, settlement in entries:
            # One that was poison may have taken its session along.
            if (handle.dead, handle.number) in self.queues[handle.queue].copies:
                self._settle_one(self.queues[handle.queue], self.copy(handle), settlement)
        for path in dict.fromkeys(h.queue for h, _ in entries if not h.dead):
            queue = self.queues[path]
            outcomes = {s.outcome for h, s in entries if h.queue == path and not h.dead}
            if outcomes & {Outcome.COMPLETED, Outcome.DEFERRED, Outcome.DEAD_LETTERED}:
                queue.rollbacks = 0
            elif Outcome.FAILED in outcomes:
                self.count_rollback(queue)

    def _check_settle(self, entries: Sequence[tuple[Handle, Settlement]]) -> None:
        if any(handle.token is None for handle, _ in entries):
            raise Refused("NotAllowed")
        groups: dict[tuple[str, bool, int | None], list[tuple[Handle, Settlement]]] = {}
        for handle, settlement in entries:
            groups.setdefault((handle.queue, handle.dead, handle.token), []).append((handle, settlement))
        for group in groups.values():
            first = group[0][0]
            if first.session is not None and first.token is not None:
                self._session(SessionHandle(first.queue, first.session, first.token))
            handles = [handle for handle, _ in group]
            if len(set(handles)) < len(handles) or not all(map(self.held, handles)):
                raise Refused("MessageLockLost")
            if first.dead and any(s.outcome is Outcome.DEAD_LETTERED for _, s in group):
                raise Refused("NotAllowed")
            if first.session is not None and self._leaves_part(self.queues[first.queue], group):
                raise Refused("NotAllowed")

    def _leaves_part(self, queue: Queue, group: Sequence[tuple[Handle, Settlement]]) -> bool:
        """Return whether some messages of a session that is one unit are completed, but not all."""
        outcomes = {settlement.outcome for _, settlement in group}
        if not queue.units or Outcome.COMPLETED not in outcomes:
            return False
        settled = {handle.number for handle, _ in group}
        others = [c for c in queue.of_session(group[0][0].session or "") if c.number not in settled]
        # What was sent meanwhile was never tried.
        left = [c for c in others if c.state in (LOCKED, DELAYED) or (c.state is ACTIVE and c.past.attempts)]
        return bool(left or outcomes - {Outcome.COMPLETED, Outcome.DEFERRED})

    def _settle_one(self, queue: Queue, one: Copy, settlement: Settlement) -> None:
        match settlement.outcome:
            case Outcome.COMPLETED:
                self._remove(queue, one, "completed")
            case Outcome.RELEASED:
                self._close_attempt(one, settlement)
                self._put_back(one)
            case Outcome.DEFERRED:
                self._close_attempt(one, settlement)
                one.counts.delivery_count += 1
                one.counts.tries += 1
                one.deferred = True
                self._put_back(one)
            case Outcome.DEAD_LETTERED:
                self._close_attempt(one, settlement)

                def bury(one: Copy) -> None:
                    self._bury(queue, one, settlement.reason, settlement.description, settlement.error)

                self._set_aside(queue, one, bury, Disposition.MOVE, settlement.reason)
            case _:
                self.fail(queue, one, settlement)

    def renew(self, handles: Sequence[Handle]) -> None:
        """Prolong the locks: all, or none."""
        if any(handle.token is None or handle.session is not None for handle in handles):
            raise Refused("NotAllowed")
        if not all(map(self.held, handles)):
            raise Refused("MessageLockLost")
        for handle in handles:
            duration = int(self.queues[handle.queue].options.lock_duration)
            self.copy(handle).locked_until = self.now + duration

    # -- what becomes of a failed message -------------------------------------------------------

    def _close_attempt(self, one: Copy, settlement: Settlement) -> None:
        one.past.attempts.append((one.counts.deliveries, settlement.outcome, settlement.error))

    def fail(self, queue: Queue, one: Copy, settlement: Settlement) -> None:
        self._close_attempt(one, settlement)
        if queue.policy(one.dead) is None:
            # A dead-letter subqueue without a policy counts nothing.
            self._put_back(one, settlement.delay)
            return
        if settlement.outcome is Outcome.LOCK_EXPIRED:
            one.counts.lock_expiries += 1
        else:
            one.counts.failures += 1
        if settlement.outcome is not Outcome.INVALID:
            one.counts.delivery_count += 1
            one.counts.tries += 1
        self._judge(queue, one, settlement.outcome, settlement.error, settlement.delay)

    def _judge(
        self,
        queue: Queue,
        one: Copy,
        outcome: Outcome | None,
        error: str | None,
        delay: int | None = None,
        tries: int | None = None,
    ) -> None:
        policy = queue.policy(one.dead)
        assert policy is not None
        cycles = 0 if one.dead else policy.max_retry_cycles
        if outcome is Outcome.INVALID:
            text = "The message can never be processed."
            self._dispose(queue, one, policy.on_invalid, "InvalidMessage", text, error)
        elif not self._exhausted(queue, one, tries):
            self._put_back(one, delay)
        elif one.counts.cycle < cycles:
            one.counts.cycle += 1
            one.counts.tries = 0
            wait = cycle_delay(policy, one.counts.cycle) if delay is None else delay
            if not wait and not one.deferred:
                one.counts.moves += 2
            self._put_back(one, wait)
        else:
            text = f"Message could not be consumed after {one.counts.delivery_count} delivery attempts."
            self._dispose(queue, one, policy.on_poison, "MaxDeliveryCountExceeded", text, error)

    def _set_aside(
        self, queue: Queue, one: Copy, act: Callable[[Copy], None], shared: Disposition, reason: str | None
    ) -> None:
        """Set a message aside; what else there is of a session that is one unit shares its fate, in order."""
        if not queue.units or one.dead or one.draft.session_id is None:
            act(one)
            return
        text = f"Message {one.number} of its session was poison: {reason}."
        for other in queue.of_session(one.draft.session_id):
            if other is one:
                act(one)
            elif other.state is not SCHEDULED:
                if other.state is LOCKED:
                    self._close_attempt(other, Settlement(Outcome.RELEASED))
                self._dispose_one(queue, other, shared, "SessionPoisoned", text, None)

    def _dispose(
        self, queue: Queue, one: Copy, how: Disposition, reason: str, text: str, error: str | None
    ) -> None:
        def act(one: Copy) -> None:
            self._dispose_one(queue, one, how, reason, text, error)

        if how is Disposition.FAULT:
            act(one)
        else:
            self._set_aside(queue, one, act, how, reason)

    def _dispose_one(
        self, queue: Queue, one: Copy, how: Disposition, reason: str, text: str, error: str | None
    ) -> None:
        sender_queue = self._sender_queue(queue, one)
        match how:
            case Disposition.MOVE:
                self._bury(queue, one, reason, text, error)
            case Disposition.FAULT:
                self._put_back(one)
                self._halt(queue, one, reason)
            case Disposition.DROP:
                queue.dropped += 1
                self._event("dropped", queue, one.number)
                if one.expires is not None and one.expires <= self.now and sender_queue is not None:
                    self._return(queue, one, sender_queue)
                else:
                    self._remove(queue, one, "dropped")
            case Disposition.REJECT:
                if sender_queue is None and one.dead:
                    sender_queue = self.queues[SYSTEM]
                if sender_queue is None:
                    self._bury(queue, one, "Rejected", text, error)
                else:
                    self._return(queue, one, sender_queue)

    def _sender_queue(self, queue: Queue, one: Copy) -> Queue | None:
        target = None if one.sender_queue is None else self.queues[one.sender_queue]
        return None if target is queue else target

    def _put_back(self, one: Copy, delay: int | None = None) -> None:
        one.token = one.locked_until = one.wake = None
        if one.deferred:
            one.state = DEFERRED
        elif delay:
            one.state, one.wake = DELAYED, self.now + delay
            one.counts.moves += 1
        else:
            one.state = ACTIVE

    def _bury(self, queue: Queue, one: Copy, reason: str | None, text: str | None, error: str | None) -> None:
        """Move a message to the dead-letter subqueue."""
        if error is None:
            errors = [e for _, _, e in one.past.attempts if e is not None]
            error = errors[-1] if errors else None
        one.counts.moves += 1
        queue.graves[one.number] = Grave(
            one.message_id, reason, text, error, self.now, one.enqueued, copy.copy(one.counts),
            one.generation, one.past,
        )  # fmt: skip
        del queue.copies[False, one.number]
        one.dead, one.deferred, one.expires = True, False, None
        one.counts.tries = one.counts.cycle = 0
        self._put_back(one)
        queue.copies[True, one.number] = one
        self._event("dead_lettered", queue, one.number)

    def _remove(self, queue: Queue, one: Copy, resolution: str) -> None:
        del queue.copies[one.dead, one.number]
        if one.dead:
            queue.graves[one.number].resolution = resolution
            if resolution not in ("completed", "purged"):
                queue.graves[one.number].past.attempts.clear()

    def _return(self, queue: Queue, one: Copy, target: Queue) -> None:
        """Put a message into its sender's dead-letter queue, with its history."""
        del queue.copies[one.dead, one.number]
        if one.dead:
            grave = queue.graves[one.number]
            grave.resolution, grave.past = "rejected", Past([], one.past.before)
        self._event("rejected", queue, one.number)
        one.came_from, one.returned_by = one.number, (queue.path, one.number)
        one.number, one.dead, one.deferred = self._next_number(target, one.draft.session_id), False, False
        one.sender_queue = None if target.path == SYSTEM else SYSTEM
        one.enqueued, one.expires = self.now, None
        one.counts.delivery_count = one.counts.tries = one.counts.cycle = 0
        self._put_back(one)
        target.copies[False, one.number] = one
        if target.options.requires_session and one.draft.session_id is None:
            text = "Session enabled entity doesn't allow a message whose session identifier is null."
            self._bury(target, one, "Session ID is null.", text, None)

    def _halt(self, queue: Queue, one: Copy, reason: str) -> None:
        """Stop a queue, or its dead-letter subqueue; the first culprit stays the culprit."""
        culprit = Culprit(one.number, one.counts.delivery_count, one.counts.cycle, reason, self.now)
        if one.dead and queue.dead_culprit is None:
            queue.dead_culprit = culprit
        elif not one.dead and queue.culprit is None:
            queue.culprit = culprit
        else:
            return
        self._event("queue_halted", queue, one.number)

    def count_rollback(self, queue: Queue) -> None:
        limit = queue.options.policy.disable_after_rollbacks
        if limit is None:
            return
        queue.rollbacks += 1
        if queue.rollbacks >= limit:
            queue.rollbacks = 0
            if not queue.disabled:
                queue.disabled = True
                self._event("queue_disabled", queue, None)

    # -- time -----------------------------------------------------------------------------------

    def pass_time(self) -> None:
        """Do what is due, the earliest first, until nothing is."""
        while True:
            copies = [(q, c) for q in self.queues.values() for c in q.copies.values()]
            due = [(c.due, list(self.queues).index(q.path), c.dead, c.number, q, c) for q, c in copies
                   if c.due is not None and c.due <= self.now]  # fmt: skip
            lost: set[tuple[str, int | None]] = set()
            for *_, queue, one in sorted(due, key=lambda d: d[:4]):
                self._come_due(queue, one, lost)
            sessions = [(s.until, q, name) for q in self.queues.values() for name, s in q.sessions.items()
                        if s.token is not None and s.until <= self.now]  # fmt: skip
            for _, queue, name in sorted(sessions, key=lambda s: s[0]):
                self._free_session(queue, name, Outcome.LOCK_EXPIRED)
            if not due and not sessions:
                return

    def _come_due(self, queue: Queue, one: Copy, lost: set[tuple[str, int | None]]) -> None:
        if one.state is LOCKED:
            # All locks of one hand-over that run out together are one rolled-back receive.
            if not one.dead and (queue.path, one.token) not in lost:
                lost.add((queue.path, one.token))
                self.count_rollback(queue)
            self.fail(queue, one, Settlement(Outcome.LOCK_EXPIRED))
        elif one.expires is not None and one.expires <= self.now:
            if queue.options.dead_letter_on_expiration:
                text = "The message expired and was dead lettered."
                self._bury(queue, one, "TTLExpiredException", text, None)
            else:
                del queue.copies[False, one.number]
                queue.expired += 1
        elif one.state is SCHEDULED:
            del queue.copies[False, one.number]
            partition = one.number >> PARTITION_SEQUENCE_BITS
            one.came_from, one.number, one.enqueued = one.number, self._number_in(queue, partition), self.now
            one.state, one.wake = ACTIVE, None
            queue.copies[False, one.number] = one
        else:
            one.state, one.wake = ACTIVE, None
            one.counts.moves += 1

    # -- sessions -------------------------------------------------------------------------------

    def accept(self, path: str, name: str | None) -> SessionHandle | None:
        """Lock a session: a named one, or the next, going round by name, that has something to receive."""
        queue = self.queues[path]
        if not queue.options.requires_session:
            raise Refused("NotAllowed")
        self._refuse_disabled(queue)
        self.pass_time()
        self._refuse_stopped(queue, False)
        if name is None:
            name = self._next_session(queue)
            if name is None:
                return None
        elif queue.sessions.get(name, Session()).token is not None:
            raise Refused("SessionCannotBeLocked")
        session = queue.sessions.setdefault(name, Session())
        session.token, session.until = self._token(), self.now + int(queue.options.lock_duration)
        self.rotation[path] = name
        return SessionHandle(path, name, session.token)

    def _next_session(self, queue: Queue) -> str | None:
        last = self.rotation.get(queue.path, "")
        names = queue.session_names()
        for name in [n for n in names if n > last] + [n for n in names if n <= last]:
            first = next((c for c in queue.of_session(name) if c.state in (ACTIVE, DELAYED)), None)
            free = queue.sessions.get(name, Session()).token is None
            waits = queue.units and any(c.state is DELAYED for c in queue.of_session(name))
            if free and first is not None and first.state is ACTIVE and not waits:
                return name
        return None

    def _session(self, handle: SessionHandle) -> Session:
        session = self.queues[handle.queue].sessions.get(handle.name)
        if session is None or session.token != handle.token or session.until <= self.now:
            raise Refused("SessionLockLost")
        return session

    def renew_session(self, handle: SessionHandle) -> int:
        session = self._session(handle)
        session.until = self.now + int(self.queues[handle.queue].options.lock_duration)
        return session.until

    def session_state(self, handle: SessionHandle) -> bytes | None:
        return self._session(handle).state

    def set_session_state(self, handle: SessionHandle, state: bytes | None) -> None:
        self._session(handle).state = state

    def close_session(self, handle: SessionHandle) -> None:
        """Give a session up; what its receiver held is receivable again, uncharged."""
        try:
            self._session(handle)
        except Refused:
            return
        self._free_session(self.queues[handle.queue], handle.name, Outcome.RELEASED)

    def _free_session(self, queue: Queue, name: str, outcome: Outcome) -> None:
        held = [c for c in queue.of_session(name) if c.state is LOCKED]
        if held and outcome is Outcome.LOCK_EXPIRED:
            self.count_rollback(queue)
        for one in held:
            if queue.copies.get((False, one.number)) is one and one.state is LOCKED:
                self._settle_one(queue, one, Settlement(outcome))
        session = queue.sessions[name]
        session.token = None
        if session.state is None:
            del queue.sessions[name]

    # -- operators ------------------------------------------------------------------------------

    def update(self, path: str, **changes: Any) -> None:
        """Change a queue's options."""
        queue = self.queues[path]
        options = dataclasses.replace(queue.options, **changes)
        if options != queue.options:
            queue.options = options
            self._event("queue_updated", queue, None)

    def resume(self, path: str, verdict: str | None, *, dead: bool = False) -> None:
        """Let a stopped queue go on; a halted one with a verdict on its culprit."""
        queue = self.queues[path]
        culprit = queue.dead_culprit if dead else queue.culprit
        if culprit is None and (dead or not queue.disabled):
            raise Refused("EntityError")
        if culprit is not None and (verdict is None or (dead and verdict == "move")):
            raise Refused("InvalidOption")
        if dead:
            queue.dead_culprit = None
        else:
            queue.culprit, queue.disabled, queue.rollbacks = None, False, 0
        one = None if culprit is None else queue.copies.get((dead, culprit.number))
        if one is not None and culprit is not None and one.state is not LOCKED:
            if verdict == "retry":
                one.counts.tries = one.counts.cycle = 0
            else:
                how = Disposition(verdict)
                self._dispose(queue, one, how, culprit.reason, "By an operator's verdict.", None)
        self._event("queue_resumed", queue, culprit.number if culprit else None)

    def waiting(self, path: str, reason: str | None = None) -> list[int]:
        """Return the numbers of the dead letters that wait, with that reason if one is given."""
        graves = self.queues[path].graves
        return [
            n
            for n, g in sorted(graves.items())
            if g.resolution is None and (reason is None or g.reason == reason)
        ]

    def _can_leave(self, queue: Queue, number: int) -> bool:
        one = queue.copies.get((True, number))
        return one is not None and one.state is not LOCKED

    def resubmit(self, path: str, numbers: Sequence[int], edit: Draft | None = None) -> dict[int, int]:
        """Send dead letters back; return old and new numbers. One that cannot be sent back stays."""
        queue = self.queues[path]
        self._refuse_disabled(queue)
        done: dict[int, int] = {}
        for number in dict.fromkeys(numbers):
            if not self._can_leave(queue, number):
                continue
            dead = queue.copies[True, number]
            draft = dead.draft if edit is None else edit
            if queue.options.requires_session and draft.session_id is None:
                continue
            del queue.copies[True, number]
            new = self._enter(queue, draft)
            new.past, new.came_from = Past([], dead.past), number
            new.generation, new.counts = dead.generation + 1, dead.counts
            new.counts.delivery_count = new.counts.tries = new.counts.cycle = 0
            new.message_id, new.edited = dead.message_id, dead.edited
            if edit is None:
                new.returned_by, new.sender_queue = dead.returned_by, dead.sender_queue
            else:
                new.edited = True
                if edit.message_id is not None and edit.message_id != dead.message_id:
                    new.message_id = edit.message_id
                elif dead.message_id is not None:
                    new.message_id = f"{dead.message_id}.{new.generation}"
            grave = queue.graves[number]
            grave.resolution, grave.resubmitted_as = "resubmitted", new.number
            done[number] = new.number
            self._event("resubmitted", queue, number)
        return done

    def purge(self, path: str, numbers: Sequence[int]) -> list[int]:
        """Take dead letters away, to be restored if wanted; return which."""
        queue = self.queues[path]
        done = [n for n in dict.fromkeys(numbers) if self._can_leave(queue, n)]
        for number in done:
            self._remove(queue, queue.copies[True, number], "purged")
            self._event("purged", queue, number)
        return done
