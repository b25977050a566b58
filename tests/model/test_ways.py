"""Messages go where the model of forwarding says, whatever forwards to what, and whatever is switched off."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from memory import memory_folder

import lazaretto
from lazaretto import (
    DeadLetterFilter,
    LazarettoError,
    ManualClock,
    Message,
    QueueOptions,
    Rule,
    SqlFilter,
    TopicOptions,
)
from lazaretto.model.clock import MICROSECONDS, to_datetime

from .records import Refused
from .test_model import soaking
from .ways import Entity, One, Ways

START = 1_700_000_000
QUEUES = ("a", "b", "c", "d", "e", "f")
TOPICS = ("s", "t")
#: Those that detect duplicates.
UNIQUE = ("c", "f", "t")
_EVEN = "n % 2 = 0"
#: What each subscription gets.
WANTS: dict[str, tuple[str | None, Callable[[bytes], bool]]] = {
    f"{topic}/subscriptions/{name}": wants
    for topic in TOPICS
    for name, wants in {
        "all": (None, lambda body: True),
        "even": (_EVEN, lambda body: int(body.split()[0]) % 2 == 0),
    }.items()
}
TRANSFER = "/$Transfer/$deadletterqueue"

queues = st.sampled_from(QUEUES)
holders = st.sampled_from(QUEUES + tuple(WANTS))
paths = st.sampled_from(QUEUES + TOPICS)
anything = st.sampled_from(QUEUES + TOPICS + tuple(WANTS))
destinations = st.sampled_from((None, *QUEUES, *QUEUES, *TOPICS))
statuses = st.sampled_from(("active",) * 4 + ("disabled", "send_disabled", "receive_disabled"))


class WaysMachine(RuleBasedStateMachine):
    """Drives a broker and the model side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="lazaretto-ways-", dir=memory_folder()))
        self.clock = ManualClock(START)
        self.broker = lazaretto.connect(self.folder / "store.db", clock=self.clock)
        self.broker.create_queue("idle")
        self.model = Ways(START, {path: wants for path, (_, wants) in WANTS.items()})
        self.sent = 0

    def teardown(self) -> None:
        self.broker.close()
        shutil.rmtree(self.folder)

    def both(self, real: Callable[[], Any], model: Callable[[], Any]) -> tuple[Any, Any] | None:
        refusal = expected = None
        found: tuple[Any, Any] = (None, None)
        try:
            found = real(), None
        except LazarettoError as error:
            refusal = type(error).__name__
        try:
            found = found[0], model()
        except Refused as error:
            expected = error.error
        assert refusal == expected
        return None if refusal else found

    @initialize(
        ways=st.lists(st.tuples(queues, destinations, destinations), max_size=6),
        chain=st.integers(0, len(QUEUES)),
    )
    def build(self, ways: list[tuple[str, str | None, str | None]], chain: int) -> None:
        for path in TOPICS:
            self.broker.create_topic(path, _of_topic(path))
            self.model.create(path, None, None, topic=True, unique=path in UNIQUE)
        for path in (*QUEUES, *WANTS):
            self._create(path, None, None)
        for path, following in itertools.pairwise(QUEUES[:chain]):
            self.update(path, following, None)
        for path, forward_to, forward_dead in ways:
            self.update(path, forward_to, forward_dead)

    def _create(self, path: str, forward_to: str | None, forward_dead: str | None) -> None:
        unique = path in UNIQUE
        options = QueueOptions(
            forward_to=forward_to,
            forward_dead_lettered_messages_to=forward_dead,
            requires_duplicate_detection=unique,
            duplicate_detection_window=86_400,
        )

        def real() -> None:
            topic, _, name = path.partition("/subscriptions/")
            if not name:
                self.broker.create_queue(path, options)
                return
            expression = WANTS[path][0]
            rules = None if expression is None else [Rule("r", SqlFilter(expression))]
            self.broker.create_subscription(topic, name, options, rules)

        self.both(real, lambda: self.model.create(path, forward_to, forward_dead, unique=unique))

    # -- entities -------------------------------------------------------------------------------

    @rule(path=holders, forward_to=destinations, forward_dead=destinations)
    def create(self, path: str, forward_to: str | None, forward_dead: str | None) -> None:
        self._create(path, forward_to, forward_dead)

    @rule(path=holders, forward_to=destinations, forward_dead=destinations)
    def update(self, path: str, forward_to: str | None, forward_dead: str | None) -> None:
        self.both(
            lambda: self.broker.update_queue(
                path, forward_to=forward_to, forward_dead_lettered_messages_to=forward_dead
            ),
            lambda: self.model.update(path, forward_to, forward_dead),
        )

    @rule(path=holders)
    def delete(self, path: str) -> None:
        self.both(lambda: self.broker.delete_queue(path), lambda: self.model.delete(path))

    @rule(path=anything, status=statuses)
    def set_status(self, path: str, status: str) -> None:
        self.both(lambda: self.broker.set_status(path, status), lambda: self.model.set_status(path, status))

    # -- messages -------------------------------------------------------------------------------

    def messages(self, count: int) -> tuple[list[bytes], list[str], list[Message]]:
        """Return bodies, small ones and large ones, ids, some of them the same, and messages with these."""
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        bodies = [b"%d" % n if n % 5 else b"%d %3000d" % (n, n) for n in numbers]
        ids = [f"m{n // 2 % 7}" for n in numbers]
        made = zip(bodies, ids, numbers, strict=True)
        return bodies, ids, [Message(b, message_id=i, properties={"n": n}) for b, i, n in made]

    @rule(path=paths, count=st.integers(1, 3), after=st.sampled_from((None, None, None, -5, 30)))
    def send(self, path: str, count: int, after: int | None) -> None:
        bodies, ids, messages = self.messages(count)
        at = None if after is None else self.model.now + after
        if at is not None:
            for message in messages:
                message.scheduled_enqueue_time = to_datetime(at * MICROSECONDS)
        found = self.both(
            lambda: self.broker.sender(path).send(messages), lambda: self.model.send(path, bodies, ids, at=at)
        )
        assert found is None or found[0] == found[1]

    @rule(path=queues, count=st.integers(1, 3), after=st.sampled_from((None, 30)))
    def send_while_closed(self, path: str, count: int, after: int | None) -> None:
        """Send to a queue that hands nothing on, and open it again."""
        self.set_status(path, "receive_disabled")
        self.send(path, count, after)
        self.same()
        self.set_status(path, "active")

    @rule(path=st.sampled_from((*QUEUES, *TOPICS, "nowhere")), via=paths)
    def send_via(self, path: str, via: str) -> None:
        bodies, ids, messages = self.messages(2)
        found = self.both(
            lambda: self.broker.sender(path, via=via).send(messages),
            lambda: self.model.send(path, bodies, ids, via=via),
        )
        assert found is None or found[0] == found[1]

    @rule(path=holders, bury=st.booleans())
    def receive(self, path: str, bury: bool) -> None:
        """Receive one message and complete it, or set it aside."""
        receiver = self.broker.receiver(path)
        found = self.both(receiver.receive, lambda: self.model.receivable(path))
        if not found or not found[0]:
            assert not found or not found[1]
            return
        (message,), (expected, *_) = found
        assert (message.sequence_number, message.body) == (expected.number, expected.body)
        if bury:
            receiver.dead_letter(message, reason="bad")
            self.model.bury(path, expected)
        else:
            receiver.complete(message)
            self.model.entities[path].here.remove(expected)

    @rule(path=holders, rounds=st.integers(1, 6))
    def bury_again_and_again(self, path: str, rounds: int) -> None:
        """Set messages aside wherever they are forwarded to from there."""
        for _ in range(rounds):
            self.receive(path, True)
            path = getattr(self.model.entities.get(path), "forward_dead", None) or path
            if path in TOPICS:
                path += "/subscriptions/all"

    @rule(path=holders, transfer=st.booleans())
    def resubmit(self, path: str, transfer: bool) -> None:
        found = self.both(
            lambda: self.broker.resubmit(path + TRANSFER if transfer else path, DeadLetterFilter()),
            lambda: self.model.resubmit(path, transfer=transfer),
        )
        assert found is None or list(found[0].resubmitted) == found[1]

    @rule(span=st.sampled_from((1, 30, 60)))
    def advance(self, span: int) -> None:
        self.clock.advance(span)
        self.model.now += span

    # -- comparing ------------------------------------------------------------------------------

    @invariant()
    def same(self) -> None:
        """Let both do what is due, and compare all that can be seen."""
        self.broker.receiver("idle").receive()
        self.model.pass_time()
        for path, entity in self.model.entities.items():
            self._compare(path, entity)
        check_bodies(self.folder / "store.db")

    def _compare(self, path: str, entity: Entity) -> None:
        here = [(m.sequence_number, m.body, m.enqueued_sequence_number) for m in self.broker.peek(path, 1000)]
        assert here == [_shown(one) for one in entity.here], path
        if entity.topic:
            topic = self.broker.topic(path)
            assert (topic.unmatched, topic.scheduled) == (entity.unmatched, len(entity.here)), path
            return
        for suffix, part in (("", entity.dead), (TRANSFER, entity.transfer)):
            letters = [
                (m.sequence_number, m.message.body, m.message.enqueued_sequence_number, m.reason)
                for m in self.broker.dead_letters(path + suffix)
                if m.message is not None
            ]
            assert letters == [(*_shown(one), one.reason) for one in part], path + suffix
        counts = self.broker.queue(path).counts
        assert (counts.dead_letter, counts.transfer_dead_letter) == (len(entity.dead), len(entity.transfer))
        assert counts.total == len(entity.here) + len(entity.dead) + len(entity.transfer), path


def _of_topic(path: str) -> TopicOptions:
    return TopicOptions(requires_duplicate_detection=path in UNIQUE, duplicate_detection_window=86_400)


def check_bodies(store: Path) -> None:
    """Fail unless every body that stands by itself is some message's, and it is known of how many."""
    with contextlib.closing(sqlite3.connect(store)) as connection:
        messages = (
            "SELECT body_id, count(*) FROM lazaretto_messages WHERE body_id IS NOT NULL GROUP BY body_id"
        )
        used = dict(connection.execute(messages))
        shared = dict(connection.execute("SELECT body_id, uses FROM lazaretto_shared_bodies"))
        bodies = {body_id for (body_id,) in connection.execute("SELECT body_id FROM lazaretto_bodies")}
        deleted = connection.execute("SELECT 1 FROM lazaretto_deleted_queues").fetchone()
    if deleted is None:
        assert bodies == set(used)
    assert bodies >= set(used)
    assert {i: n for i, n in shared.items() if n > 1} == {i: n for i, n in used.items() if n > 1}


def _shown(one: One) -> tuple[int, bytes, int | None]:
    return one.number, one.body, one.came_from


@pytest.mark.parametrize("steps", [40])
def test_messages_go_where_the_model_says(steps: int) -> None:
    profile = settings.get_profile("soak" if soaking() else "gate")
    examples = 2_000 if soaking() else 70
    run_state_machine_as_test(
        WaysMachine, settings=settings(profile, max_examples=examples, stateful_step_count=steps)
    )
