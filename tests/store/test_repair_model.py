"""Repairs against a small model: whatever is done in whatever order, no letter is lost, or sent twice."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from lazaretto import Broker, DeadLetterFilter, ManualClock, Message, Repair, RepairError, RepairPhase
from lazaretto.broker.broker import store_of
from lazaretto.engine.repairs.advance import LEASE, Advance, TakeRepair
from lazaretto.model.repairs import VERBS, after

from .actions import create

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
STEPS = 600 if SOAK else 80


class Walk:
    """Random steps on one queue with repairs, each checked against what is known."""

    def __init__(self, broker: Broker, clock: ManualClock, seed: int, *, sessions: bool) -> None:
        self.broker, self.clock, self.draw = broker, clock, random.Random(seed)
        self.sessions = sessions
        create(broker, "w", receive_retry_count=0, requires_session=sessions)
        self.made = 0
        self.gone: list[bytes] = []
        self.repairs: list[Repair] = []
        self.tokens: dict[str, tuple[int, int]] = {}
        self.store = store_of(broker)

    def die(self) -> None:
        """Make dead letters."""
        count = self.draw.randrange(1, 8)
        bodies = [b"%d" % n for n in range(self.made, self.made + count)]
        self.made += count
        self.broker.sender("w").send(
            [Message(body, session_id=self._session(body), message_id=body.decode()) for body in bodies]
        )
        self.take(fails=1.0)

    def _session(self, body: bytes) -> str | None:
        return f"s{int(body) % 3}" if self.sessions else None

    def take(self, fails: float | None = None) -> None:
        """Receive what there is; some of it fails again."""
        share = self.draw.choice((0.0, 0.1, 1.0)) if fails is None else fails
        for session in self.broker.sessions("w") if self.sessions else [None]:
            with self.broker.receiver("w", session=session) as receiver:
                for message in receiver.receive(self.draw.choice((1, 3, 100)) if fails is None else 100):
                    if self.draw.random() < share:
                        receiver.dead_letter(message, reason=self.draw.choice("ab"))
                    else:
                        self.gone.append(message.body)
                        receiver.complete(message)

    def plan(self) -> None:
        """Freeze some letters."""
        which = self.draw.choice((DeadLetterFilter(), DeadLetterFilter(reason="a")))
        self.repairs.append(
            self.broker.plan_repair(
                "w", which, everything=True, canary=self.draw.choice((0, 2)),
                in_flight=self.draw.choice((None, 3, 50)),
            )
        )  # fmt: skip

    def direct(self) -> None:
        """Ask for anything, which the table allows or not."""
        if not self.repairs:
            return
        repair, verb = self.draw.choice(self.repairs), self.draw.choice([*VERBS, "apply", "resume"])
        status = repair.status()
        following = after(status.phase, VERBS[verb])
        if verb == "canary" and not status.canary:
            following = None
        if following is None:
            with pytest.raises(RepairError):
                getattr(repair, verb)()
            following = status.phase
        else:
            getattr(repair, verb)()
        assert repair.status().phase is following

    def step(self) -> None:
        """Let a runner go on; sometimes another one, after the lease of the first is over."""
        taken = self.store.run(TakeRepair())
        if taken is not None:
            self.tokens[str(taken[0])] = taken
        elif self.draw.random() < 0.2:
            self.clock.advance(LEASE + 1)
        for taken in self.tokens.values():
            self.store.run(Advance(*taken, self.draw.choice((1, 4, 100))))

    def interfere(self) -> None:
        """Do what other operators do meanwhile, or the clock."""
        letters = [letter.sequence_number for letter in self.broker.dead_letters("w", messages=False)]
        what = self.draw.randrange(4)
        if letters and what == 0:
            self.broker.resubmit("w", [self.draw.choice(letters)])
        elif letters and what == 1:
            number = self.draw.choice(letters)
            letter = self.broker.dead_letter("w", number)
            assert letter.message is not None
            self.gone.append(letter.message.body)
            self.broker.purge("w", [number])
        elif letters and what == 2:
            with self.broker.receiver("w", subqueue="dead_letter") as receiver:
                for message in receiver.receive(1):
                    receiver.release(message)
        else:
            self.clock.advance(self.draw.choice((-3600.0, 0.5, 3600.0)))

    def check(self) -> None:
        """Check that every body is in one place, and every letter of a repair counted once."""
        here = [m.body for m in self.broker.peek("w", 10_000)]
        dead = [m.body for m in self.broker.peek("w;poison", 10_000)]
        assert Counter(here + dead + self.gone) == Counter(b"%d" % n for n in range(self.made))
        for repair in self.repairs:
            status = repair.status()
            found = status.counts
            assert found.left + found.sent + found.skipped + found.undone == status.letters
            dealt_with = [letter.sequence_number for letter in repair.letters()]
            assert len(dealt_with) == len(set(dealt_with)) == status.letters - found.left
        if self.sessions:
            for session in range(3):
                of_one = [int(body) for body in here if int(body) % 3 == session]
                assert len(of_one) == len(set(of_one))


@pytest.mark.parametrize("sessions", [False, True])
@pytest.mark.parametrize("seed", range(20 if SOAK else 1))
def test_walk(broker: Broker, clock: ManualClock, seed: int, sessions: bool) -> None:
    walk = Walk(broker, clock, seed, sessions=sessions)
    steps = [walk.die, walk.plan, walk.take, *[walk.direct] * 4, *[walk.step] * 8, walk.interfere]
    for number in range(STEPS):
        walk.draw.choice(steps)()
        if number % 10 == 9:
            walk.check()
    walk.check()
    assert broker.check() == []
    phases = {repair.status().phase for repair in walk.repairs}
    assert len(phases) > 2
    assert phases <= set(RepairPhase)
