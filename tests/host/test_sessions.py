"""Sessions worked on by a service host: in order, several at once, poison in each of the four ways."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from patience import PATIENCE, wait_until

import lazaretto
from lazaretto import (
    Broker,
    InvalidMessage,
    Message,
    PoisonPolicy,
    PoisonSession,
    QueueOptions,
    ReceivedMessage,
)
from lazaretto.host import Handler, HandlerContext, ServiceHost
from lazaretto.host.handlers import GivenIsolation, HandlerFunction

from .serving import send, serve

SESSIONS, EACH, BAD = 20, 6, b"2"


def act(message: ReceivedMessage, context: HandlerContext) -> None:
    """Tell of each message that is done, in the commit that does it."""
    if message.body == BAD:
        raise ValueError("poison")
    context.execute("INSERT INTO done (session, n) VALUES (?, ?)", (message.session_id, int(message.body)))


def act_on_valid(message: ReceivedMessage, context: HandlerContext) -> None:
    if message.body == BAD:
        raise InvalidMessage("never")
    act(message, context)


async def act_at_once(message: ReceivedMessage, context: HandlerContext) -> None:
    act_on_valid(message, context)


def make(store: Path, mode: PoisonSession, retries: int = 1) -> Broker:
    broker = lazaretto.connect(store)
    policy = PoisonPolicy(receive_retry_count=retries)
    # What one queue's sessions have in common is poison, here on purpose: no outage.
    options = QueueOptions(requires_session=True, on_poison_session=mode, policy=policy, breaker=None)
    broker.create_queue("steps", options)
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE done (id INTEGER PRIMARY KEY, session TEXT, n INTEGER)")
    for n in range(EACH):
        broker.sender("steps").send([Message(b"%d" % n, session_id=f"s{s}") for s in range(SESSIONS)])
    return broker


def done(broker: Broker) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    with broker.transaction() as tx:
        for session, n in tx.execute("SELECT session, n FROM done ORDER BY id").fetchall():
            found[session].append(n)
    return found


#: What is done of each session, and how many dead letters and held sessions there are in the end.
EXPECTED = {
    PoisonSession.SKIP: ([0, 1, 3, 4, 5], SESSIONS, 0),
    PoisonSession.BLOCK: ([0, 1], 0, SESSIONS),
    PoisonSession.PARK: ([0, 1], SESSIONS, SESSIONS),
    PoisonSession.WHOLE: ([], SESSIONS * EACH, 0),
}


@pytest.mark.parametrize(
    ("function", "batch_size"), [(act, 1), (act, 100), (act_on_valid, 100), (act_at_once, 100)]
)
@pytest.mark.parametrize("mode", EXPECTED)
def test_each_mode_keeps_its_promise(
    store: Path, isolation: GivenIsolation, mode: PoisonSession, function: HandlerFunction, batch_size: int
) -> None:
    order, dead, held = EXPECTED[mode]
    with make(store, mode) as broker:
        handler = Handler("steps", function, isolation=isolation, concurrency=3, batch_size=batch_size)
        left = SESSIONS * (EACH - len(order) - (mode is PoisonSession.PARK)) if held else 0
        with ServiceHost(broker, handler, on_output=lambda text: None):

            def over() -> bool:
                counts = broker.queue("steps").counts
                held_now = broker.queue("steps").held_sessions
                return (counts.locked, counts.active, counts.dead_letter, held_now) == (0, left, dead, held)

            wait_until(over)
        assert dict(done(broker)) == ({f"s{s}": order for s in range(SESSIONS)} if order else {})
        reasons = {d.reason for d in broker.dead_letters("steps")}
        why = "MaxDeliveryCountExceeded" if function is act else "InvalidMessage"
        expected = {why} if dead else set()
        assert reasons == expected | ({"SessionPoisoned"} if mode is PoisonSession.WHOLE else set())


def test_a_session_that_is_one_unit_completes_as_one(store: Path) -> None:
    """What was done before a failure is done again with the rest, once that goes through."""
    with make(store, PoisonSession.WHOLE, retries=5) as broker:

        def act_late(message: ReceivedMessage, context: HandlerContext) -> None:
            if message.body == BAD and context.delivery_count < 2:
                raise ValueError("not yet")
            context.execute(
                "INSERT INTO done (session, n) VALUES (?, ?)", (message.session_id, int(message.body))
            )

        serve(broker, Handler("steps", act_late, concurrency=2))
        assert dict(done(broker)) == {f"s{s}": list(range(EACH)) for s in range(SESSIONS)}
        assert broker.queue("steps").counts.total == 0


@pytest.mark.parametrize("way", ["dead_letter", "sql"])
def test_a_session_that_is_one_unit_ends_as_one(store: Path, way: str) -> None:
    """Nothing of it is kept where a handler sets one aside, or where one asks for what cannot be done."""
    with make(store, PoisonSession.WHOLE, retries=0) as broker:

        def act_but_one(message: ReceivedMessage, context: HandlerContext) -> None:
            if message.body != BAD:
                row = (message.session_id, int(message.body))
                context.execute("INSERT INTO done (session, n) VALUES (?, ?)", row)
            elif way == "sql":
                context.execute("INSERT INTO nowhere (n) VALUES (?)", (1,))
            else:
                context.dead_letter("mine")

        serve(broker, Handler("steps", act_but_one, concurrency=2))
        assert dict(done(broker)) == {}
        letters = list(broker.dead_letters("steps"))
        assert len(letters) == SESSIONS * EACH
        causes = {d.reason for d in letters} - {"SessionPoisoned"}
        assert causes == {"mine" if way == "dead_letter" else "MaxDeliveryCountExceeded"}


def test_a_repaired_message_lets_its_session_go_on_in_order(store: Path) -> None:
    with make(store, PoisonSession.PARK) as broker:
        with ServiceHost(broker, Handler("steps", act), on_output=lambda text: None):
            wait_until(lambda: broker.queue("steps").held_sessions == SESSIONS)
            numbers = [d.sequence_number for d in broker.dead_letters("steps")]
            broker.resubmit("steps", numbers, edit=lambda d: Message(b"22", session_id=d.message.session_id))  # type: ignore[union-attr]
            wait_until(lambda: broker.queue("steps").counts.total == 0)
        assert dict(done(broker)) == {f"s{s}": [0, 1, 22, 3, 4, 5] for s in range(SESSIONS)}


def test_one_that_never_ends_does_not_starve_the_others(broker: Broker, isolation: GivenIsolation) -> None:
    broker.create_queue("turns", QueueOptions(requires_session=True))

    def go_on(message: ReceivedMessage, context: HandlerContext) -> None:
        if message.session_id == "hot":
            context.send("turns", Message(b"", session_id="hot"))
        else:
            context.send("out", Message(b""))

    broker.sender("turns").send([Message(b"", session_id="hot") for _ in range(200)])
    broker.sender("turns").send([Message(b"", session_id=f"s{n}") for n in range(20)])
    with ServiceHost(broker, Handler("turns", go_on, isolation=isolation)):
        wait_until(lambda: broker.queue("out").counts.active == 20)
    assert broker.queue("turns").counts.active == 200


@pytest.mark.parametrize("grace", [0.0, 30.0])
def test_a_session_that_is_one_unit_is_not_completed_in_part_by_a_stop(
    broker: Broker, tmp_path: Path, isolation: GivenIsolation, grace: float
) -> None:
    """The host is stopped while the handler is at work on the second of three messages."""
    broker.create_queue("unit", QueueOptions(requires_session=True, on_poison_session=PoisonSession.WHOLE))
    send(broker, "unit", b"1", b"2", b"3", session_id="s")
    begun, go_on = tmp_path / "begun", tmp_path / "go_on"

    def act_slowly(message: ReceivedMessage, context: HandlerContext) -> None:
        context.send("out", Message(message.body))
        if message.body == b"2":
            begun.touch()
            while not go_on.exists():
                time.sleep(0.005)

    host = ServiceHost(broker, Handler("unit", act_slowly, isolation=isolation), on_output=lambda text: None)
    with host:
        wait_until(begun.exists)
        stopper = threading.Thread(target=host.stop, args=(grace,))
        stopper.start()
        wait_until(lambda: host._slots[0]._stopping.is_set())
        if grace:
            go_on.touch()
        stopper.join(PATIENCE)
        go_on.touch()
    counts = broker.queue("unit").counts
    assert (counts.active, counts.locked, counts.dead_letter) == (3, 0, 0)
    assert broker.queue("out").counts.total == 0
    serve(broker, Handler("unit", act_slowly, isolation=isolation))
    assert broker.queue("unit").counts.total == 0
    assert broker.queue("out").counts.active == 3
