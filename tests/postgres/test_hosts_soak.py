"""Hosts join, leave, die, lose their network for a while: nothing is lost, nothing is settled twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import BinaryIO

from servers import Server, new_store

import lazaretto
from lazaretto import Broker, Message, PoisonPolicy, QueueOptions, StoreError

from .test_silence import Proxy

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
SECONDS = float(os.environ.get("LAZARETTO_SOAK_SECONDS", "600")) if SOAK else 4.0
#: The shortest and the longest time that a host's network is frozen, and that passes between two blows.
FREEZE = (5.0, 40.0) if SOAK else (0.5, 2.0)
PAUSE = (1.0, 6.0) if SOAK else (0.3, 1.0)
HOSTS = 4
CHILD = Path(__file__).with_name("serving_child.py")
PLACES = ("work", "news/subscriptions/a", "chats")
PATIENCE = 120.0


class Host:
    """A host behind a proxy of its own."""

    def __init__(self, server: Server, url: str, isolation: str, log: BinaryIO) -> None:
        self.proxy = Proxy(server)
        words = [sys.executable, str(CHILD), f"{self.proxy.url(url)}&connect_timeout=5", isolation]
        self.process = subprocess.Popen(words, stderr=log, stdout=log)
        self.thaw_at: float | None = None

    def freeze(self, seconds: float) -> None:
        self.thaw_at = time.monotonic() + seconds
        self.proxy.frozen.set()

    def thaw(self) -> None:
        self.thaw_at = None
        self.proxy.frozen.clear()

    def end(self, number: int) -> None:
        """End it, in good order or at once."""
        self.thaw()
        self.process.send_signal(number)
        self.left = True
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.left = False
        self.process.kill()
        self.process.wait()
        self.proxy.stop()


class Blows:
    """What befalls the hosts, at random."""

    def __init__(self, server: Server, url: str, log: BinaryIO) -> None:
        self._where = server, url, log
        self._draw = random.Random(4)
        self.hosts = [self.start() for _ in range(2)]
        self.counts: Counter[str] = Counter()

    def start(self) -> Host:
        server, url, log = self._where
        return Host(server, url, self._draw.choice(["inline", "process"]), log)

    def strike(self) -> None:
        for host in self.hosts:
            if host.thaw_at is not None and time.monotonic() > host.thaw_at:
                host.thaw()
        blow = self._draw.choice(["join", "join", "leave", "kill", "freeze", "freeze"])
        host = self._draw.choice(self.hosts)
        if blow == "join" and len(self.hosts) < HOSTS:
            self.hosts.append(self.start())
        elif blow == "freeze" and host.thaw_at is None:
            host.freeze(self._draw.uniform(*FREEZE))
        elif blow in ("leave", "kill") and len(self.hosts) > 1:
            self.hosts.remove(host)
            host.end(signal.SIGTERM if blow == "leave" else signal.SIGKILL)
            self.counts["killed when it did not leave"] += not host.left
        else:
            return
        self.counts[blow] += 1

    def end(self) -> None:
        """End all of them, in good order."""
        for host in self.hosts:
            host.thaw()
        for host in self.hosts:
            host.end(signal.SIGTERM)


class Senders:
    """Threads that send until told to stop, and keep what was accepted."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._over = threading.Event()
        self.sent: dict[str, list[str]] = {place: [] for place in PLACES}
        #: The longest time that a send took, and how many were refused for now.
        self.longest, self.refused = 0.0, 0
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(3)]
        for thread in self._threads:
            thread.start()

    def _run(self, which: int) -> None:
        place = PLACES[which]
        number = 0
        try:
            while not self._over.is_set():
                ids = [f"{number + n}" for n in range(5)]
                number += 5
                session = f"s{number // 5 % 7}" if place == "chats" else None
                self._send(
                    place.partition("/")[0], [Message(b"x", message_id=i, session_id=session) for i in ids]
                )
                self.sent[place] += ids
                time.sleep(0.02)
        except BaseException as error:
            self.errors.append(error)

    def _send(self, path: str, messages: list[Message]) -> None:
        while True:
            begun = time.monotonic()
            try:
                self._broker.sender(path).send(messages)
            except StoreError:
                # Whoever is frozen may hold the store for a while. Nothing was sent.
                self.refused += 1
            else:
                return
            finally:
                self.longest = max(self.longest, time.monotonic() - begun)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)


def test_nothing_is_lost_and_nothing_settled_twice(postgres: Server, tmp_path: Path) -> None:
    with (
        new_store(postgres.url) as url,
        lazaretto.connect(url, timeout=60) as broker,
        (tmp_path / "hosts.log").open("ab") as log,
    ):
        policy = PoisonPolicy(receive_retry_count=2, max_retry_cycles=2, retry_cycle_delay=0.2)
        for path, sessions in (("work", False), ("chats", True)):
            broker.create_queue(path, QueueOptions(policy=policy, lock_duration=5, requires_session=sessions))
        broker.create_queue("passed")
        broker.create_topic("news")
        broker.create_subscription("news", "a", QueueOptions(policy=policy, lock_duration=5))
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE ledger (id BIGSERIAL, place TEXT, message_id TEXT)")
        senders = Senders(broker)
        blows = Blows(postgres, url, log)
        try:
            draw = random.Random(7)
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(draw.uniform(*PAUSE))
                blows.strike()
            senders.stop()
            assert not senders.errors
            for host in blows.hosts:
                host.thaw()
            # Whoever is left works all of it off.
            blows.hosts.append(blows.start())
            end = time.monotonic() + PATIENCE + SECONDS
            while left := [c for c in (broker.queue(p).counts for p in PLACES) if c.total != c.dead_letter]:
                assert time.monotonic() < end, left
                time.sleep(0.2)
        except BaseException:
            for host in blows.hosts:
                host.end(signal.SIGKILL)
            raise
        blows.end()
        with broker.transaction() as tx:
            rows = tx.execute("SELECT place, message_id FROM ledger ORDER BY id").fetchall()
        done: dict[str, list[str]] = {place: [i for p, i in rows if p == place] for place in PLACES}
        for place in PLACES:
            dead = [d.message.message_id for d in broker.dead_letters(place) if d.message]
            assert Counter([*done[place], *dead]) == Counter(senders.sent[place])
            counts = broker.queue(place).counts
            assert (counts.total, counts.dead_letter) == (len(dead), len(dead))
        passed = [m.message_id for m in _all(broker, "passed")]
        assert Counter(passed) == Counter(done["work"])
        for session in range(7):
            order = [int(i) for i in done["chats"] if (int(i) // 5 + 1) % 7 == session]
            assert order == sorted(order), session
        assert broker.check() == []
        print(
            f"\n{SECONDS:g} s: {dict(blows.counts)}; sent {[len(s) for s in senders.sent.values()]}, "
            f"dead {[len(senders.sent[p]) - len(done[p]) for p in PLACES]}; "
            f"longest send {senders.longest:.1f} s, refused for now {senders.refused}"
        )


def _all(broker: Broker, path: str) -> list[lazaretto.PeekedMessage]:
    found: list[lazaretto.PeekedMessage] = []
    while some := broker.peek(path, 1000, found[-1].sequence_number + 1 if found else 0):
        found += some
    return found
