"""A store, the processes that are killed at work on it, and what must be true afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Self

from forked import Forked

import lazaretto
from lazaretto import Broker, ManualClock, Message, Outcome, PoisonPolicy, QueueOptions, Rule, SqlFilter
from lazaretto.model.keys import PARTITION_SEQUENCE_BITS

from .child import BACKLOG, CLOSED, ONWARD, PAIR, QUEUE, SESSIONS, SUBSCRIPTIONS, TOPIC, main
from .told import Told

#: By then the locks of dead receivers have run out: an hour after everything that happens here.
LATER = 3600.0
ALL = 100_000


class Stage:
    """A store, a journal, and the processes at work on them."""

    def __init__(self, folder: Path, store: str) -> None:
        self.store = store
        self.journal = folder / "journal"
        self.journal.touch()
        self.kills = 0
        self._started = 0
        self._processes: list[Forked] = []
        policy = PoisonPolicy(receive_retry_count=400, max_worker_deaths=None)
        with lazaretto.connect(self.store) as broker:
            for path in (QUEUE, *PAIR):
                broker.create_queue(path, QueueOptions(lock_duration=1, policy=policy))
            in_sessions = QueueOptions(lock_duration=1, policy=policy, requires_session=True)
            broker.create_queue(SESSIONS, in_sessions)
            broker.create_topic(TOPIC)
            for path in (ONWARD[1], CLOSED, *BACKLOG):
                broker.create_queue(path)
            broker.create_queue(ONWARD[0], QueueOptions(forward_to=ONWARD[1]))
            broker.set_status(CLOSED, "send_disabled")
            for name, destination in (("onward", ONWARD[0]), ("stuck", CLOSED)):
                broker.create_subscription(TOPIC, name, QueueOptions(forward_to=destination))
            for name in SUBSCRIPTIONS:
                rules = [Rule("even", SqlFilter("n % 2 = 0"))] if name == "even" else None
                broker.create_subscription(TOPIC, name, rules=rules)
            with broker.transaction() as tx:
                tx.execute("CREATE TABLE results (name TEXT PRIMARY KEY)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End those that a test which failed has left at work."""
        for process in self._processes:
            process.kill()

    # -- the processes --------------------------------------------------------------------------

    def start(self, role: str, point: str = "none", count: int = 0) -> Forked:
        """Start a process, which kills itself at the `count`-th hit of a named point."""
        self._started += 1_000_000
        process = Forked(main, role, self.store, str(self.journal), point, count, self._started)
        self._processes.append(process)
        return process

    def wait_for_work(self, process: Forked, lines: int) -> None:
        """Wait until the journal has grown by so many lines, or the process is gone."""
        with self.journal.open("rb") as journal:
            # Only what is new: a long run's journal has millions of lines.
            journal.seek(0, os.SEEK_END)
            while process.returncode is None and lines > 0:
                lines -= journal.read().count(b"\n")
                time.sleep(0.002)

    def kill(self, process: Forked) -> None:
        """Kill a process; it must not have ended in any other way."""
        process.kill()
        self.await_death(process)

    def await_death(self, process: Forked) -> None:
        """Wait until a process is dead by SIGKILL, its own or ours."""
        assert process.wait(120) == -signal.SIGKILL
        self.kills += 1

    def fill(self, count: int) -> None:
        """Send as a process that lives."""
        self._fill(QUEUE, [Message(b"x", message_id=f"f{i}") for i in range(count)])

    def fill_sessions(self, names: list[str], each: int) -> None:
        """Send `each` messages to every one of some sessions, in turn."""
        ids = [(name, f"{name}-{i}") for i in range(each) for name in names]
        self._fill(SESSIONS, [Message(b"x", session_id=name, message_id=i) for name, i in ids])

    def _fill(self, path: str, messages: list[Message]) -> None:
        with lazaretto.connect(self.store) as broker, broker.sender(path) as sender:
            sender.send(messages)
        with self.journal.open("a") as file:
            file.writelines(f"sending {m.message_id}\nsent {m.message_id}\n" for m in messages)

    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self.journal.read_text().splitlines()]

    def _later(self) -> Broker:
        """Open the store when every lock has run out."""
        return lazaretto.connect(self.store, clock=ManualClock(time.time() + LATER))

    def _stored(self, sql: str) -> list[tuple[int, ...]]:
        """Return what a query finds in the broker's own tables."""
        with self._later() as broker, broker.transaction() as tx:
            found: list[tuple[int, ...]] = tx.execute(sql).fetchall()
        return found

    # -- what must be true ----------------------------------------------------------------------

    def check(self) -> None:
        """Compare what the processes were told with what the store holds."""
        told = Told(self._lines())
        with self._later() as broker:
            assert broker.check() == []
            counts = broker.queue(QUEUE).counts
            left = broker.peek(QUEUE, ALL)
            dead = list(broker.dead_letters(QUEUE))
            states = Counter(m.state.value for m in left)
            assert (counts.active, counts.locked) == (states["active"], states["locked"])
            assert (counts.dead_letter, counts.total) == (len(dead), len(left) + len(dead))
            buried = {d.message_id for d in dead}
            held = {m.message_id for m in left} | buried
            assert len(held) == len(left) + len(dead), "a message is there twice"
            assert held <= told.set("sending"), "a message is there that nobody sent"
            assert not held & told.set("completed"), "a completed message is there again"
            assert told.set("sent") - held <= told.set("completing"), "a message is lost"
            assert told.set("buried") <= buried <= told.set("burying")
            rows = _rows(broker)
            assert not rows & held, "a row was written whose message was not settled with it"
            assert told.set("written") <= rows <= told.set("completing"), "a row is lost"
            for letter in dead:
                whole = broker.dead_letter(QUEUE, letter.sequence_number)
                outcomes = {a.number: a.outcome for a in whole.attempts}
                told.check_history(letter.sequence_number, whole.counters.deliveries, outcomes)
                ends = list(outcomes.values())
                assert whole.counters.lock_expiries == ends.count(Outcome.LOCK_EXPIRED)
                assert whole.counters.worker_deaths <= ends.count(Outcome.LOST)
            _take_what_is_left(broker, told, [m.sequence_number for m in left])

    def check_pairs(self) -> None:
        """What was sent in one commit is there together, with the rows written in it, or not at all."""
        told = Told(self._lines())
        with self._later() as broker:
            assert broker.check() == []
            left, right = ([m.message_id for m in broker.peek(path, ALL)] for path in PAIR)
            assert left == right
            assert told.set("sent") <= set(left) <= told.set("sending")
            assert len(set(left)) == len(left)
            assert _rows(broker) == {name for name in left if int(name[1:]) % 2}

    def check_topic(self) -> None:
        """A message is in all subscriptions that it is for, and where they forward to, or nowhere.

        Bodies are there once.
        """
        told = Told(self._lines())
        with self._later() as broker:
            assert broker.check() == []
            found = {
                name: [(m.message_id, m.body) for m in broker.peek(f"{TOPIC}/subscriptions/{name}", ALL)]
                for name in SUBSCRIPTIONS
            }
            arrived = [(m.message_id, m.body) for m in broker.peek(ONWARD[1], ALL)]
            stuck = broker.peek(f"{TOPIC}/subscriptions/stuck", ALL, subqueue="transfer_dead_letter")
            for path in (ONWARD[0], CLOSED, f"{TOPIC}/subscriptions/onward"):
                assert broker.queue(path).counts.total == 0
        assert found["all"] == found["also"] == arrived == [(m.message_id, m.body) for m in stuck]
        names = [name for name, _ in found["all"]]
        assert len(set(names)) == len(names)
        assert told.set("sent") <= set(names) <= told.set("sending")
        assert found["even"] == [(name, body) for name, body in found["all"] if not int(name[1:]) % 2]
        uses = self._stored("SELECT uses FROM lazaretto_shared_bodies")
        ((bodies,),) = self._stored("SELECT count(*) FROM lazaretto_bodies")
        assert bodies == len(uses) == len(names)
        assert sum(count for (count,) in uses) == sum(map(len, found.values())) + len(arrived) + len(stuck)

    def fill_backlog(self, count: int) -> None:
        """Send messages to a queue that begins to forward then."""
        messages = [Message(b"x" * (n % 3_000), message_id=str(n)) for n in range(count)]
        with lazaretto.connect(self.store) as broker:
            broker.set_status(BACKLOG[0], "receive_disabled")
            broker.update_queue(BACKLOG[0], forward_to=BACKLOG[1])
            broker.sender(BACKLOG[0]).send(messages)

    def open_backlog(self) -> None:
        with lazaretto.connect(self.store, clock=ManualClock(time.time())) as broker:
            broker.set_status(BACKLOG[0], "active")

    def check_backlog(self, count: int) -> None:
        """All that waited went on, in order and once; nothing of it is left behind, bodies neither."""
        with self._later() as broker:
            for _ in range(1 + count // 200):
                # Each receive does a part of what is due.
                broker.receiver(QUEUE).receive()
            assert broker.check() == []
            assert broker.queue(BACKLOG[0]).counts.total == 0
            arrived = broker.peek(BACKLOG[1], ALL)
        assert [m.message_id for m in arrived] == [str(n) for n in range(count)]
        assert [len(m.body) for m in arrived] == [n % 3_000 for n in range(count)]
        ((bodies,),) = self._stored("SELECT count(*) FROM lazaretto_bodies")
        assert bodies == sum(m.body_id is not None for m in arrived)

    def check_sessions(self) -> None:
        """Each session was worked off in its order, by one at a time."""
        told = Told(self._lines())
        completed: dict[str, list[int]] = {}
        for name in told.names["completed"]:
            session, _, index = name.partition("-")
            completed.setdefault(session, []).append(int(index))
        for session, indexes in completed.items():
            assert indexes == sorted(indexes), f"session {session} was not worked off in order"
        left: dict[str, list[int]] = {}
        with self._later() as broker:
            assert broker.check() == []
            for message in broker.peek(SESSIONS, ALL):
                session, _, index = message.message_id.partition("-")
                left.setdefault(session, []).append(int(index))
            held = {f"{session}-{index}" for session, indexes in left.items() for index in indexes}
            assert not held & told.set("completed"), "a completed message is there again"
            assert told.set("sent") - held <= told.set("completing"), "a message is lost"
            for session, indexes in left.items():
                assert indexes == list(range(indexes[0], indexes[-1] + 1)), "a later one went first"
                assert max(completed.get(session, [-1])) < indexes[0], "a later one went first"
                with broker.receiver(SESSIONS, session=session) as receiver:
                    got = []
                    while batch := receiver.receive(ALL):
                        got += [m.message_id for m in batch]
                        receiver.complete(batch)
                    assert got == [f"{session}-{i}" for i in indexes]


def _rows(broker: Broker) -> set[str]:
    with broker.transaction() as tx:
        return {name for (name,) in tx.execute("SELECT name FROM results")}


def _take_what_is_left(broker: Broker, told: Told, numbers: list[int]) -> None:
    """What is left is handed over again, each partition in order, and nothing else is."""
    got = []
    with broker.receiver(QUEUE) as receiver:
        while batch := receiver.receive(100):
            for message in batch:
                got.append(message.sequence_number)
                history = broker.attempts(QUEUE, message.sequence_number)
                past = {attempt.number: attempt.outcome for attempt in history}
                told.check_history(message.sequence_number, message.attempt - 1, past)
            receiver.complete(batch)
    assert sorted(got, key=lambda number: number >> PARTITION_SEQUENCE_BITS) == numbers
    counts = broker.queue(QUEUE).counts
    assert counts.total == counts.dead_letter
