"""The rules of the state machine, and the comparison after every step."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from lazaretto import DeadLetterFilter, Message, PoisonPolicy
from lazaretto.broker.receiver import Receiver
from lazaretto.broker.settling import NEXT_SESSION
from lazaretto.model.clock import MICROSECONDS, to_datetime, to_micros
from lazaretto.model.messages import DeadLetter, ReceivedMessage
from lazaretto.model.policy import Disposition, Outcome

from .compare import compare_events, compare_queue
from .driver import (
    IDLE,
    OUTCOMES,
    QUEUES,
    SESSIONS,
    SUBSCRIPTIONS,
    TOPIC,
    Driver,
    be_broken,
    delays,
    draw_settlement,
    errors,
    leave_by_error,
    settle_by,
    to_send,
)
from .records import ACTIVE, DEFERRED, SCHEDULED, SYSTEM, Copy, Draft, Handle, SessionHandle, Settlement
from .unit import ModelSavepoint, ModelTransaction

index = st.integers(0, 5000)
few = st.integers(1, 5)
picked = st.lists(index, min_size=1, max_size=3)
spans = st.sampled_from((0, 1, 1, 5, 5, 10, 10, 12, 15, 20, 30, 31, 45, 61, 600, 90_000))
lifetimes = st.sampled_from((None,) * 6 + (7, 40, 1000))
names = st.sampled_from(("a", "a", "b"))
sender_queues = st.sampled_from((SYSTEM,) * 8 + ("returns",) * 3 + ("sessions", None, None, None, "missing"))
#: What a consumer does with what it receives; failing is what this is about.
consumers = st.sampled_from(("abandon",) * 8 + ("complete",) * 3 + tuple(OUTCOMES))
verdicts = st.sampled_from((None, "retry", "retry", "move", "drop", "reject"))


def _dead(one: Copy) -> bool:
    return one.dead


def _receivable(one: Copy) -> bool:
    return one.state is ACTIVE and not one.dead


def _deferred(one: Copy) -> bool:
    return one.state is DEFERRED


def _scheduled(one: Copy) -> bool:
    return one.state is SCHEDULED


class BrokerMachine(Driver):
    """Drives a broker and the model side by side."""

    #: Steps of all runs in this process.
    steps = 0

    @initialize(queues=st.lists(st.sampled_from(sorted(QUEUES)), min_size=1, max_size=2, unique=True))
    def choose(self, queues: list[str]) -> None:
        """Work on few queues, so that something happens to their messages."""
        self.focus = queues

    @invariant()
    def same(self) -> None:
        """Let both do what is due, and compare all that can be seen."""
        BrokerMachine.steps += 1
        self._catch_up()
        self.position = compare_events(self.broker, self.model, self.position)
        self.touched.update(("returns", SYSTEM))
        for path in self.touched:
            compare_queue(self.broker, self.model.queues[path])
        self.touched.clear()

    def _catch_up(self) -> None:
        """Let both do what is due now: the broker does so whenever anybody receives."""
        with self.broker.receiver(IDLE) as idle:
            assert idle.receive() == []
        self.model.pass_time()

    # -- sending --------------------------------------------------------------------------------

    def drafts(self, data: st.DataObject, most: int, path: str) -> list[Draft]:
        found = []
        for _ in range(data.draw(st.integers(1, most))):
            self.sent += 1
            unique = path == "unique"
            message_id = data.draw(st.sampled_from(("x", "y", None))) if unique else f"m{self.sent}"
            session = data.draw(names) if path in SESSIONS or data.draw(index) % 9 == 0 else None
            if data.draw(index) % 40 == 0:
                session = None
            body = b"%d" % self.sent if self.sent % 7 else b"%2000d" % self.sent
            ttl, back = data.draw(lifetimes), data.draw(sender_queues)
            found.append(Draft(body, message_id, session, ttl, None, back))
        return found

    @rule(n=index, data=st.data())
    def send(self, n: int, data: st.DataObject) -> None:
        path = self.queue(n) if n % 40 else SYSTEM
        drafts = self.drafts(data, 3, path)
        found = self.both(
            lambda: self.broker.sender(path).send([to_send(d) for d in drafts]),
            lambda: self.model.send(path, drafts),
        )
        assert found is None or found[0] == found[1]

    @precondition(lambda self: any(path in SUBSCRIPTIONS for path in self.focus))
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        drafts = self.drafts(data, 3, TOPIC)
        self.touched.update(SUBSCRIPTIONS)
        found = self.both(
            lambda: self.broker.sender(TOPIC).send([to_send(d) for d in drafts]),
            lambda: self.model.publish(drafts),
        )
        assert found is None or found[0] == found[1]

    @rule(n=index, data=st.data(), after=st.integers(-5, 60))
    def schedule(self, n: int, data: st.DataObject, after: int) -> None:
        path, at = self.queue(n), self.model.now + after
        drafts = self.drafts(data, 2, path)
        moment = to_datetime(at * MICROSECONDS)
        found = self.both(
            lambda: self.broker.sender(path).schedule([to_send(d) for d in drafts], moment),
            lambda: self.model.send(path, [dataclasses.replace(d, at=at) for d in drafts]),
        )
        assert found is None or found[0] == found[1]

    @precondition(lambda self: self.any(_scheduled))
    @rule(n=index, picks=picked)
    def cancel(self, n: int, picks: list[int]) -> None:
        path = self.queue_with(n, _scheduled)
        numbers = self.numbers(path, picks, _scheduled)
        self.both(lambda: self.broker.sender(path).cancel(numbers), lambda: self.model.cancel(path, numbers))

    # -- receiving ------------------------------------------------------------------------------

    def _receive(self, path: str, limit: int, *, dead: bool) -> int:
        """Receive, in the next session if need be; return how many there were."""
        before = len(self.held)
        if path in SESSIONS and not dead and self.sent % 12:
            self._accept_next(path, limit)
        else:
            with self.broker.receiver(path, subqueue="dead_letter" if dead else None) as receiver:
                self.got(
                    self.both(
                        lambda: receiver.receive(limit), lambda: self.model.receive(path, limit, dead=dead)
                    )
                )
        return len(self.held) - before

    @rule(n=index, limit=few)
    def receive(self, n: int, limit: int) -> None:
        self._receive(self.queue_with(n, _receivable), limit, dead=False)

    @precondition(lambda self: self.any(_dead))
    @rule(n=index, limit=few)
    def receive_dead(self, n: int, limit: int) -> None:
        self._receive(self.queue_with(n, _dead), limit, dead=True)

    @rule(n=index, limit=st.integers(1, 2), dead=st.sampled_from((False, False, True)))
    def receive_and_delete(self, n: int, limit: int, dead: bool) -> None:
        path = self.queue_with(n, _dead if dead else _receivable)
        subqueue = "dead_letter" if dead else None
        with self.broker.receiver(path, subqueue=subqueue, mode="receive_and_delete") as receiver:
            found = self.both(
                lambda: receiver.receive(limit), lambda: self.model.receive(path, limit, dead=dead)
            )
        self.got(found, keep=False)
        if found is not None:
            messages, handles = found
            self.model.take(handles)
            gone = [dataclasses.replace(handle, token=None) for handle in handles]
            self.held += zip(messages, gone, strict=True)

    @precondition(lambda self: self.any(_deferred))
    @rule(n=index, picks=picked)
    def receive_deferred(self, n: int, picks: list[int]) -> None:
        path = self.queue_with(n, _deferred)
        deferred = [c for c in self.model.queues[path].copies.values() if _deferred(c)]
        dead = bool(deferred) and deferred[n % len(deferred)].dead
        numbers = self.numbers(path, picks, lambda c: _deferred(c) and c.dead == dead)
        with self.broker.receiver(path, subqueue="dead_letter" if dead else None) as receiver:
            self.got(
                self.both(
                    lambda: receiver.receive_deferred(numbers),
                    lambda: self.model.receive_deferred(path, numbers, dead=dead),
                )
            )

    # -- settling -------------------------------------------------------------------------------

    def _settle(self, chosen: list[tuple[ReceivedMessage, Handle]], settlement: Settlement) -> None:
        self.touched.update(handle.queue for _, handle in chosen)
        self.both(
            lambda: settle_by(self._receiver(chosen), [m for m, _ in chosen], settlement),
            lambda: self.model.settle([(handle, settlement) for _, handle in chosen]),
        )

    def _receiver(self, chosen: list[tuple[ReceivedMessage, Handle]]) -> Receiver:
        """Return any receiver: a lock belongs to the entity."""
        message, handle = chosen[-1]
        path = handle.queue if message.sequence_number % 2 else IDLE
        return self.broker.receiver(path, subqueue="dead_letter" if handle.dead else None)

    @precondition(lambda self: self.held)
    @rule(verb=st.sampled_from(list(OUTCOMES)), picks=picked, data=st.data())
    def settle(self, verb: str, picks: list[int], data: st.DataObject) -> None:
        self._settle(self.pick(picks), draw_settlement(verb, data))

    @precondition(lambda self: self.held)
    @rule(n=index, delay=delays, error=errors)
    def abandon(self, n: int, delay: int | None, error: str | None) -> None:
        self._settle(self.pick([n]), Settlement(Outcome.FAILED, error, delay))

    @rule(n=index, limit=few, dead=st.sampled_from((False, False, False, True)), data=st.data())
    def consume(self, n: int, limit: int, dead: bool, data: st.DataObject) -> None:
        """Receive some messages and settle each of them."""
        path = self.queue_with(n, _dead if dead else _receivable)
        count = self._receive(path, limit, dead=dead)
        for pair in self.held[len(self.held) - count :]:
            self._settle([pair], draw_settlement(data.draw(consumers), data))

    @precondition(lambda self: self.any(_receivable))
    @rule(n=index, limit=few, rounds=st.integers(1, 4), error=errors, wait=st.sampled_from((0, 0, 12, 31)))
    def fail(self, n: int, limit: int, rounds: int, error: str | None, wait: int) -> None:
        """Receive and abandon, several times over."""
        path = self.queue_with(n, _receivable)
        for _ in range(rounds):
            count = self._receive(path, limit, dead=False)
            if count:
                self._settle(self.held[-count:], Settlement(Outcome.FAILED, error))
            for receiver, handle in [s for s in self.sessions if s[1].queue == path]:
                self.both(receiver.close, lambda handle=handle: self.model.close_session(handle))  # type: ignore[misc]
                self.sessions.remove((receiver, handle))
            self._advance(wait)

    @rule(n=index, limit=few, data=st.data())
    def consume_more(self, n: int, limit: int, data: st.DataObject) -> None:
        """The same again, so that it happens more often than other things."""
        self.consume(n, limit, False, data)

    @precondition(lambda self: self.any(_dead))
    @rule(n=index, limit=few, rounds=st.integers(1, 3), late=st.booleans())
    def fail_dead(self, n: int, limit: int, rounds: int, late: bool) -> None:
        """Receive dead letters and abandon them, or let their locks run out, several times over."""
        path = self.queue_with(n, _dead)
        for _ in range(rounds):
            count = self._receive(path, limit, dead=True)
            if late:
                self._advance(61)
            elif count:
                self._settle(self.held[-count:], Settlement(Outcome.FAILED))

    @precondition(lambda self: self.any(_receivable))
    @rule(n=index, limit=few, verb=st.sampled_from(("invalid", "defer", "dead_letter")), data=st.data())
    def set_aside(self, n: int, limit: int, verb: str, data: st.DataObject) -> None:
        """Receive some messages and have them set aside."""
        path = self.queue_with(n, _receivable)
        count = self._receive(path, limit, dead=False)
        if count:
            self._settle(self.held[-count:], draw_settlement(verb, data))

    @precondition(lambda self: self.held)
    @rule(picks=picked)
    def renew(self, picks: list[int]) -> None:
        chosen = self.pick(picks)
        found = self.both(
            lambda: self._receiver(chosen).renew_lock([m for m, _ in chosen]),
            lambda: self.model.renew([handle for _, handle in chosen]),
        )
        if found is not None:
            untils = [self.model.copy(handle).locked_until or 0 for _, handle in chosen]
            assert found[0] == to_datetime(min(untils) * MICROSECONDS)

    # -- time -----------------------------------------------------------------------------------

    def _advance(self, span: int) -> None:
        self._catch_up()
        self.clock.advance(span)
        self.model.now += span
        self.touched.update(q.path for q in self.model.queues.values() if q.copies or q.sessions)

    @rule(span=spans)
    def advance(self, span: int) -> None:
        self._advance(span)

    @precondition(lambda self: self.held)
    @rule(span=spans, verb=st.sampled_from(list(OUTCOMES)), picks=picked, data=st.data())
    def settle_late(self, span: int, verb: str, picks: list[int], data: st.DataObject) -> None:
        """Settle before anybody has noticed what time did to the locks."""
        chosen = self.pick(picks)
        self._advance(span)
        self._settle(chosen, draw_settlement(verb, data))

    @rule(span=spans, n=index, limit=few)
    def receive_late(self, span: int, n: int, limit: int) -> None:
        """Receive before anybody else has noticed what time did."""
        path = self.queue_with(n, _receivable)
        if path not in SESSIONS:
            self._advance(span)
            self._receive(path, limit, dead=False)

    # -- sessions -------------------------------------------------------------------------------

    @precondition(lambda self: any(path in SESSIONS for path in self.focus))
    @rule(n=index, name=names)
    def accept(self, n: int, name: str) -> None:
        paths = [p for p in self.focus if p in SESSIONS]
        path = paths[n % len(paths)] if n % 20 else "plain"
        found = self.both(
            lambda: self.broker.receiver(path, session=name), lambda: self.model.accept(path, name)
        )
        if found is not None and found[1] is not None:
            self.sessions.append((found[0], found[1]))

    def _accept_next(self, path: str, limit: int) -> None:
        receiver, known = self.broker.receiver(path, session=NEXT_SESSION), len(self.sessions)

        def expected() -> list[Handle]:
            handle = self.model.accept(path, None)
            if handle is None:
                return []
            self.sessions.append((receiver, handle))
            return self.model.receive(path, limit, session=handle)

        self.got(self.both(lambda: receiver.receive(limit), expected))
        assert receiver.session_id == (self.sessions[-1][1].name if len(self.sessions) > known else None)

    def _session(self, n: int) -> tuple[Receiver, SessionHandle]:
        receiver, handle = self.sessions[-1 - n % min(len(self.sessions), 3)]
        self.touched.add(handle.queue)
        return receiver, handle

    @precondition(lambda self: self.sessions)
    @rule(n=index, limit=few)
    def receive_session(self, n: int, limit: int) -> None:
        receiver, handle = self._session(n)
        self.got(
            self.both(
                lambda: receiver.receive(limit),
                lambda: self.model.receive(handle.queue, limit, session=handle),
            )
        )

    @precondition(lambda self: self.sessions and self.any(_deferred))
    @rule(n=index, picks=picked)
    def receive_deferred_session(self, n: int, picks: list[int]) -> None:
        receiver, handle = self._session(n)
        numbers = self.numbers(handle.queue, picks, lambda c: _deferred(c) and not c.dead)
        self.got(
            self.both(
                lambda: receiver.receive_deferred(numbers),
                lambda: self.model.receive_deferred(handle.queue, numbers, session=handle),
            )
        )

    @precondition(lambda self: self.sessions)
    @rule(n=index, state=st.sampled_from((None, b"", b"state")), what=st.sampled_from("gsr"))
    def use_session(self, n: int, state: bytes | None, what: str) -> None:
        receiver, handle = self._session(n)
        if what == "g":
            read = self.both(receiver.get_session_state, lambda: self.model.session_state(handle))
            assert read is None or read[0] == read[1]
        elif what == "s":
            self.both(
                lambda: receiver.set_session_state(state), lambda: self.model.set_session_state(handle, state)
            )
        else:
            until = self.both(receiver.renew_session_lock, lambda: self.model.renew_session(handle))
            assert until is None or to_micros(until[0]) == until[1] * MICROSECONDS

    @precondition(lambda self: "units" in self.focus)
    @rule(n=index, delay=delays, rounds=st.integers(1, 3), wait=st.sampled_from((0, 4, 12)))
    def fail_one_of_a_unit(self, n: int, delay: int | None, rounds: int, wait: int) -> None:
        """Let one message of a session that is one unit fail, several times over, and look for the rest."""
        self.touched.add("units")
        for _ in range(rounds):
            before = len(self.held)
            self._accept_next("units", 5)
            got = self.held[before:]
            if got:
                self._settle([got[n % len(got)]], Settlement(Outcome.FAILED, None, delay))
            for receiver, handle in [s for s in self.sessions if s[1].queue == "units"]:
                self.both(receiver.close, lambda handle=handle: self.model.close_session(handle))  # type: ignore[misc]
                self.sessions.remove((receiver, handle))
            self.accept(1, "a")
            if self.sessions and self.sessions[-1][1].queue == "units":
                self.receive_session(0, 5)
            self._advance(wait)

    @precondition(lambda self: self.sessions)
    @rule(n=index)
    def close_session(self, n: int) -> None:
        receiver, handle = self._session(n)
        self.both(receiver.close, lambda: self.model.close_session(handle))
        self.sessions.remove((receiver, handle))

    # -- transactions ---------------------------------------------------------------------------

    @rule(data=st.data(), end=st.sampled_from(("commit", "commit", "raise", "roll back")))
    def transact(self, data: st.DataObject, end: str) -> None:
        """Run a whole transaction; a failing commit rolls back too."""
        tx, expected = self.broker.transaction(), ModelTransaction(self.model)
        points: list[tuple[Any, ModelSavepoint]] = []
        verbs = ("receive",) * 3 + ("settle",) * 3 + ("send", "point", "back", "sql", "wait")
        for verb in data.draw(st.lists(st.sampled_from(verbs), min_size=1, max_size=7)):
            match verb:
                case "receive":
                    self._receive_in(data, tx, expected)
                case "settle" if self.held:
                    self._settle_in(data, tx, expected)
                case "send":
                    path = self.queue(data.draw(index))
                    drafts = self.drafts(data, 2, path)
                    tx.send(path, [to_send(d) for d in drafts])
                    expected.send(path, drafts)
                case "point":
                    points.append((tx.savepoint(), expected.savepoint()))
                case "back" if points:
                    real, point = points[data.draw(index) % len(points)]
                    self.both(real.rollback, lambda point=point: expected.roll_back_to(point))  # type: ignore[misc]
                case "sql":
                    self.sent += 1
                    tx.execute(f"INSERT INTO rows VALUES ({self.sent}, 'row {self.sent}')")
                    expected.write(f"row {self.sent}")
                case "wait" if not expected.used_sql:
                    self._advance(data.draw(st.sampled_from((1, 5, 25))))
        if end == "commit":
            self.both(tx.commit, lambda: expected.commit(self.told))
        elif end == "roll back":
            self.both(tx.rollback, lambda: expected.roll_back(None))
        else:
            self.both(lambda: leave_by_error(tx), lambda: be_broken(expected))
        if expected.used_sql:
            with self.broker.transaction() as reader:
                found = reader.execute("SELECT text FROM rows ORDER BY number").fetchall()
            assert [row for (row,) in found] == self.model.rows

    def _receive_in(self, data: st.DataObject, tx: Any, expected: ModelTransaction) -> None:
        n, limit, dead = data.draw(index), data.draw(few), data.draw(index) % 5 == 0
        path = self.queue_with(n, _dead if dead else _receivable)
        place = "dead_letter" if dead else None
        self.got(
            self.both(
                lambda: tx.receive(path, limit, subqueue=place),
                lambda: expected.receive(path, limit, dead=dead),
            )
        )

    def _settle_in(self, data: st.DataObject, tx: Any, expected: ModelTransaction) -> None:
        ((message, handle),) = self.pick([data.draw(index)])
        verb = data.draw(st.sampled_from([o for o in OUTCOMES if o != "invalid"]))
        settlement = draw_settlement(verb, data)
        self.both(lambda: settle_by(tx, message, settlement), lambda: expected.settle(handle, settlement))

    # -- operators ------------------------------------------------------------------------------

    @precondition(lambda self: self.any(_dead))
    @rule(n=index, picks=picked, edit=st.booleans(), named=st.booleans(), data=st.data())
    def resubmit(self, n: int, picks: list[int], edit: bool, named: bool, data: st.DataObject) -> None:
        path = self.queue_with(n, _dead)
        numbers = self.numbers(path, picks, _dead)
        draft = None
        if edit:
            self.sent += 1
            session = data.draw(names) if path in SESSIONS and data.draw(index) % 4 else None
            draft = Draft(b"edited %d" % self.sent, f"e{self.sent}" if named else None, session)

        def change(_letter: DeadLetter) -> Message | None:
            return None if draft is None else to_send(draft)

        found = self.both(
            lambda: self.broker.resubmit(path, numbers, edit=change if edit else None),
            lambda: self.model.resubmit(path, numbers, draft),
        )
        if found is not None:
            assert found[0].resubmitted == found[1]
            skipped = {s.sequence_number for s in found[0].skipped}
            assert skipped == set(numbers) - set(found[1])

    @precondition(lambda self: self.any(_dead))
    @rule(n=index)
    def resubmit_all(self, n: int) -> None:
        self.by_filter(n, False, None)

    @precondition(lambda self: self.any(_dead))
    @rule(n=index, picks=picked)
    def purge(self, n: int, picks: list[int]) -> None:
        path = self.queue_with(n, _dead)
        numbers = self.numbers(path, picks, _dead)
        found = self.both(lambda: self.broker.purge(path, numbers), lambda: self.model.purge(path, numbers))
        assert found is not None
        assert found[0] == found[1]

    @precondition(lambda self: self.any(_dead))
    @rule(n=index, purge=st.booleans(), reason=st.sampled_from((None, "MaxDeliveryCountExceeded", "mine")))
    def by_filter(self, n: int, purge: bool, reason: str | None) -> None:
        """Resubmit or purge what a filter means."""
        path, which = self.queue_with(n, _dead), DeadLetterFilter(reason=reason)
        meant = self.model.waiting(path, reason)
        if purge:
            deleted = self.both(
                lambda: self.broker.purge(path, which, everything=reason is None),
                lambda: self.model.purge(path, meant),
            )
            assert deleted is not None
            assert deleted[0] == deleted[1]
        elif meant:
            found = self.both(
                lambda: self.broker.resubmit(path, which), lambda: self.model.resubmit(path, meant)
            )
            assert found is None or found[0].resubmitted == found[1]

    @precondition(lambda self: self.any(lambda one: one.counts.deliveries > 0))
    @rule(
        n=index,
        retries=st.integers(0, 3),
        cycles=st.integers(0, 2),
        delay=st.sampled_from((0, 12)),
        how=st.sampled_from((None,) * 6 + tuple(Disposition)),
    )
    def update(self, n: int, retries: int, cycles: int, delay: int, how: Disposition | None) -> None:
        path = self.queue(n)
        old = self.model.queues[path].options.policy
        policy = PoisonPolicy(
            receive_retry_count=retries,
            max_retry_cycles=cycles,
            retry_cycle_delay=delay,
            on_poison=how or old.on_poison,
            on_invalid=how or old.on_invalid,
            disable_after_rollbacks=old.disable_after_rollbacks,
        )
        self.both(
            lambda: self.broker.update_queue(path, policy=policy),
            lambda: self.model.update(path, policy=policy),
        )

    def stopped(self) -> list[tuple[str, bool]]:
        """Return the queues, and the dead-letter subqueues, that nothing can be received from."""
        queues = self.model.queues.values()
        off = [(q.path, False) for q in queues if q.disabled or q.culprit]
        return off + [(q.path, True) for q in queues if q.dead_culprit]

    @precondition(lambda self: self.stopped())
    @rule(n=index, verdict=verdicts)
    def resume(self, n: int, verdict: str | None) -> None:
        stopped = self.stopped()
        path, dead = stopped[-1 - n % len(stopped)] if n % 15 else (self.queue(n), False)
        self.touched.update((path, "returns", "sessions"))
        self.both(
            lambda: self.broker.resume_queue(f"{path};poison" if dead else path, verdict),
            lambda: self.model.resume(path, verdict, dead=dead),
        )

    @rule()
    def restart(self) -> None:
        """Close the broker and open the same file again: locks go on, receivers do not."""
        self.broker.close()
        self.sessions.clear()
        self.broker = self.connect()
        self.model.restart()
