"""What a handler does, and what becomes of its message."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from patience import PATIENCE, wait_until

from lazaretto import Broker, InvalidMessage, Message, Outcome, PoisonPolicy, ReceivedMessage
from lazaretto.host import Handler, HandlerContext, PoisonMessage, ServiceHost, handler
from lazaretto.host.handlers import GivenIsolation

from .serving import send, serve

GOOD = b"good"


def act(message: ReceivedMessage, context: HandlerContext) -> None:
    """Do what the body says."""
    match message.body:
        case b"fail":
            raise ValueError("no good")
        case b"exit":
            raise SystemExit(3)
        case b"invalid by error":
            raise InvalidMessage("nonsense")
        case b"invalid":
            context.invalid("Nonsense: not even wrong")
        case b"dead letter":
            context.dead_letter("Because", "of this")
        case b"reject":
            context.reject("Unwanted", "by this service")
        case b"defer":
            context.defer()
        case b"send":
            context.send("out", [Message(b"1", subject="s"), Message(b"2")])
        case b"send and fail":
            context.send("out", Message(b"never"))
            raise ValueError("after sending")
        case b"send and dead letter":
            context.send("out", Message(b"answer"))
            context.dead_letter("Answered")
        case b"send nowhere":
            context.send("nowhere", Message(b"x"))
        case b"send nonsense":
            context.send("out", "text")  # type: ignore[arg-type]
        case b"sql":
            context.execute("INSERT INTO done VALUES (:n)", {"n": 1})
        case b"bad sql":
            context.execute("INSERT INTO done VALUES (NULL)")
        case b"decide twice":
            context.defer()
            context.dead_letter()


def one(broker: Broker, isolation: GivenIsolation, body: bytes, **options: Any) -> int:
    """Have one message handled among good ones; return its sequence number."""
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS done (n NOT NULL)")
    _, number, _ = send(broker, "work", GOOD, body, GOOD)
    serve(broker, Handler("work", act, isolation=isolation, **options))
    return number


def dead(broker: Broker, number: int) -> tuple[str | None, str | None, list[Outcome]]:
    letter = broker.dead_letter("work", number)
    return letter.reason, letter.error_type, [a.outcome for a in letter.attempts]


def test_good_messages_are_completed(broker: Broker, isolation: GivenIsolation) -> None:
    one(broker, isolation, GOOD)
    assert broker.queue("work").counts.total == 0


FAILURES = {
    b"fail": ("MaxDeliveryCountExceeded", "ValueError", [Outcome.FAILED] * 2),
    b"exit": ("MaxDeliveryCountExceeded", "SystemExit", [Outcome.FAILED] * 2),
    b"invalid by error": ("InvalidMessage", "lazaretto.errors.InvalidMessage", [Outcome.INVALID]),
    b"invalid": ("InvalidMessage", "Nonsense", [Outcome.INVALID]),
    b"dead letter": ("Because", None, [Outcome.DEAD_LETTERED]),
    b"send and fail": ("MaxDeliveryCountExceeded", "ValueError", [Outcome.FAILED] * 2),
    b"send and dead letter": ("Answered", None, [Outcome.DEAD_LETTERED]),
    b"send nowhere": (
        "MaxDeliveryCountExceeded",
        "lazaretto.errors.EntityNotFound",
        [Outcome.FAILED] * 2,
    ),
    b"send nonsense": (
        "MaxDeliveryCountExceeded",
        "lazaretto.errors.TransactionError",
        [Outcome.FAILED] * 2,
    ),
    b"bad sql": ("MaxDeliveryCountExceeded", "sqlite3.IntegrityError", [Outcome.FAILED] * 2),
    b"decide twice": ("MaxDeliveryCountExceeded", "lazaretto.errors.NotAllowed", [Outcome.FAILED] * 2),
}


@pytest.mark.parametrize("body", FAILURES, ids=lambda b: b.decode())
def test_each_failure_has_its_end(broker: Broker, isolation: GivenIsolation, body: bytes) -> None:
    number = one(broker, isolation, body)
    assert dead(broker, number) == FAILURES[body]
    assert broker.queue("work").counts.total == 1
    assert [m.body for m in broker.peek("out", 9)] == (
        [b"answer"] if b"answer" in body or b"and dead" in body else []
    )


def test_a_failure_keeps_its_stack(broker: Broker, isolation: GivenIsolation) -> None:
    letter = broker.dead_letter("work", one(broker, isolation, b"fail"))
    assert letter.error_message == "no good"
    assert all("in act" in (a.stack or "") and "no good" in (a.stack or "") for a in letter.attempts)


def test_a_rejected_message_goes_back_to_its_sender(broker: Broker, isolation: GivenIsolation) -> None:
    number = one(broker, isolation, b"reject")
    (back,) = broker.peek("$system/deadletter", 5)
    assert back.negative_acknowledgement is not None
    assert back.negative_acknowledgement.text == "Unwanted: by this service"
    assert back.enqueued_sequence_number == number


def test_a_deferred_message_waits_for_its_number(broker: Broker, isolation: GivenIsolation) -> None:
    number = one(broker, isolation, b"defer")
    with broker.receiver("work") as receiver:
        (message,) = receiver.receive_deferred(number)
        assert message.body == b"defer"


def test_sends_and_sql_take_effect_with_the_settlement(broker: Broker, isolation: GivenIsolation) -> None:
    one(broker, isolation, b"send")
    one(broker, isolation, b"sql")
    assert [(m.body, m.subject) for m in broker.peek("out", 9)] == [(b"1", "s"), (b"2", None)]
    with broker.transaction() as tx:
        assert tx.execute("SELECT n FROM done").fetchall() == [(1,)]


def test_only_the_culprit_of_a_commit_is_charged(broker: Broker, isolation: GivenIsolation) -> None:
    """A batch whose commit fails is committed one by one."""
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE done (n NOT NULL)")
    send(broker, "work", *[b"sql"] * 20, b"bad sql", *[b"sql"] * 20, b"send nowhere", *[b"send"] * 5)
    (report,) = serve(broker, Handler("work", act, isolation=isolation))
    assert broker.queue("work").counts.dead_letter == 2
    assert (report.completed, report.retried, report.dead) == (45, 2, 2)
    with broker.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM done").fetchone() == (40,)
    assert broker.queue("out").counts.active == 10


class TestContext:
    def test_it_tells_of_the_attempts_before(self, broker: Broker, isolation: GivenIsolation) -> None:
        broker.update_queue(
            "work", policy=PoisonPolicy(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=0.01)
        )

        def tell(message: ReceivedMessage, context: HandlerContext) -> None:
            last = context.last_error
            facts = (context.attempt, context.delivery_count, context.cycle, context.move_count)
            if context.attempt == 4:
                context.dead_letter("Told", repr((facts, last and (last.type, last.message))))
                return
            raise KeyError(context.attempt)

        (number,) = send(broker, "work", b"x")
        serve(broker, Handler("work", tell, isolation=isolation))
        assert broker.dead_letter("work", number).description == "((4, 3, 1, 2), ('KeyError', '3'))"

    def test_the_message_is_whole(self, broker: Broker, isolation: GivenIsolation) -> None:
        def tell(message: ReceivedMessage, context: HandlerContext) -> None:
            facts = (message.message_id, message.subject, message.properties, message.sequence_number)
            context.dead_letter("Told", repr((facts, message.body)))

        fields = {"message_id": "m1", "subject": "s", "properties": {"a": 1, "b": b"\xff"}}
        (number,) = send(broker, "work", b"\xff\x00", **fields)
        serve(broker, Handler("work", tell, isolation=isolation))
        described = broker.dead_letter("work", number).description
        assert described == repr((("m1", "s", {"a": 1, "b": b"\xff"}, number), b"\xff\x00"))


class TestAsync:
    def test_a_coroutine_is_awaited(self, broker: Broker, isolation: GivenIsolation) -> None:
        async def act(message: ReceivedMessage, context: HandlerContext) -> None:
            await asyncio.sleep(0)
            if message.body == b"fail":
                raise ValueError("later")
            context.send("out", Message(message.body))

        _, number = send(broker, "work", b"1", b"fail")
        serve(broker, Handler("work", act, isolation=isolation))
        assert [m.body for m in broker.peek("out", 9)] == [b"1"]
        assert dead(broker, number)[1] == "ValueError"

    def test_its_deadline_holds(self, broker: Broker, isolation: GivenIsolation) -> None:
        async def hang(message: ReceivedMessage) -> None:
            if message.body == b"hang":
                await asyncio.sleep(3600)

        number, *_ = send(broker, "work", b"hang", b"good")
        serve(broker, Handler("work", hang, isolation=isolation, deadline=2))
        assert dead(broker, number) == ("HandlerTimeout", "HandlerTimeout", [Outcome.LOCK_EXPIRED] * 2)
        assert broker.queue("work").counts.total == 1


class TestValidators:
    @pytest.mark.parametrize(
        "validator",
        [
            lambda message: message.body.startswith(b"{"),
            lambda message: 1 / message.body.startswith(b"{"),
            {"type": "object"},
        ],
        ids=["returns False", "raises", "schema"],
    )
    def test_what_it_refuses_is_never_tried(
        self, broker: Broker, isolation: GivenIsolation, validator: Any
    ) -> None:
        def act(message: ReceivedMessage, context: HandlerContext) -> None:
            context.send("out", Message(message.body))

        bad, *_ = send(broker, "work", b"nonsense", b"{}")
        serve(broker, Handler("work", act, isolation=isolation, validator=validator))
        reason, _, outcomes = dead(broker, bad)
        assert (reason, outcomes) == ("InvalidMessage", [Outcome.INVALID])
        assert [m.body for m in broker.peek("out", 9)] == [b"{}"]

    def test_a_schema_says_what_is_wrong(self, broker: Broker) -> None:
        schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
        (number,) = send(broker, "work", b'{"amount": "much"}')
        serve(broker, Handler("work", lambda m: None, validator=schema))
        said = broker.dead_letter("work", number).error_message or ""
        assert 'amount: "much" is not of type "integer"' in said


def test_middleware_stands_around_the_handler(broker: Broker, isolation: GivenIsolation) -> None:
    def outer(message: ReceivedMessage, context: HandlerContext, call_next: Callable[[], object]) -> None:
        context.send("out", Message(b"before"))
        call_next()
        context.send("out", Message(b"after"))

    def inner(message: ReceivedMessage, context: HandlerContext, call_next: Callable[[], object]) -> None:
        if message.body != b"hidden":
            call_next()

    def act(message: ReceivedMessage, context: HandlerContext) -> None:
        context.send("out", Message(message.body))

    send(broker, "work", b"seen", b"hidden")
    serve(broker, Handler("work", act, isolation=isolation, middleware=[outer, inner]))
    bodies = [m.body for m in broker.peek("out", 9)]
    assert bodies == [b"before", b"seen", b"after", b"before", b"after"]


def test_each_poison_message_is_told_of_once(broker: Broker, isolation: GivenIsolation) -> None:
    told: list[PoisonMessage] = []

    def broken(poison: PoisonMessage) -> None:
        raise RuntimeError("the hook itself")

    number = one(broker, isolation, b"fail", on_poison=[broken, told.append])
    (poison,) = told
    assert (poison.queue, poison.message.sequence_number) == ("work", number)
    assert (poison.reason, poison.disposition.value) == ("MaxDeliveryCountExceeded", "move")
    assert poison.failure is not None
    assert poison.failure.message == "no good"


def test_a_policy_of_its_own_is_set_on_the_queue(broker: Broker, isolation: GivenIsolation) -> None:
    number = one(broker, isolation, b"fail", policy=PoisonPolicy(receive_retry_count=3))
    assert len(dead(broker, number)[2]) == 4
    assert broker.queue("work").options.policy.receive_retry_count == 3


def test_what_a_handler_returns_is_of_no_concern(broker: Broker, isolation: GivenIsolation) -> None:
    send(broker, "work", b"1", b"2")
    (report,) = serve(broker, Handler("work", lambda message: {"rubbish": object()}, isolation=isolation))
    assert report.completed == 2


def test_dead_letters_are_a_queue_like_any_other(broker: Broker, isolation: GivenIsolation) -> None:
    one(broker, isolation, b"fail")

    @handler("work;poison", isolation=isolation)
    def mourn(message: ReceivedMessage, context: HandlerContext) -> None:
        context.send("out", Message(f"{message.dead_letter_reason}".encode()))

    with ServiceHost(broker, mourn):
        wait_until(lambda: broker.queue("work").counts.dead_letter == 0)
    assert [m.body for m in broker.peek("out", 9)] == [b"MaxDeliveryCountExceeded"]


def test_an_inline_function_that_does_not_come_back_costs_only_itself(broker: Broker) -> None:
    """It cannot be stopped: its lock runs out, and those behind it are given to others meanwhile."""
    broker.update_queue("work", lock_duration=3)
    waiting = []
    over = threading.Event()

    def hang(message: ReceivedMessage) -> None:
        if message.body == b"hang":
            waiting.append(message)
            over.wait(PATIENCE)

    number, *_ = send(broker, "work", b"hang", *[b"good"] * 20)
    handler = Handler("work", hang, isolation="inline", concurrency=4, deadline=1)
    (report,) = serve(broker, handler, grace=0.0)
    over.set()
    assert dead(broker, number) == ("MaxDeliveryCountExceeded", None, [Outcome.LOCK_EXPIRED] * 2)
    assert report.completed == 20
    assert len(waiting) == 2
