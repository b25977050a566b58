"""A program of every verb, which `mypy --strict` finds nothing wrong with."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import lazaretto
from lazaretto import Backoff, Message, PoisonPolicy, QueueOptions, ReceivedMessage
from lazaretto.host import HandlerContext, ServiceHost, handler

OPTIONS = QueueOptions(
    lock_duration=timedelta(minutes=1),
    default_time_to_live=timedelta(days=1),
    requires_session=True,
    on_poison_session="park",
    policy=PoisonPolicy(
        receive_retry_count=2,
        max_retry_cycles=1,
        retry_cycle_delay=Backoff(initial=timedelta(seconds=5), growth="linear"),
        on_poison="reject",
        on_invalid=lazaretto.Disposition.DROP,
    ),
    breaker=lazaretto.BreakerPolicy(messages=20, window=timedelta(minutes=2)),
)
LOCK: float = OPTIONS.lock_duration
MODE: lazaretto.PoisonSession = OPTIONS.on_poison_session


@handler("orders", batch_size=10, deadline=timedelta(seconds=5), isolation="inline")
def book(message: ReceivedMessage, context: HandlerContext) -> None:
    context.send("shipping", [Message(message.body)])


def serve(url: str) -> int:
    with lazaretto.connect(url, timeout=timedelta(seconds=5)) as broker:
        broker.create_queue("orders", OPTIONS)
        broker.create_queues(["shipping", "billing"])
        broker.create_topic("events", lazaretto.TopicOptions(max_size=1 << 20))
        broker.create_subscription("events", "audit", rules=[lazaretto.Rule(filter=lazaretto.TrueFilter())])
        with broker.sender("orders") as sender:
            numbers = sender.send([Message(b"a", session_id="s", time_to_live=timedelta(hours=1))])
            sender.cancel(sender.schedule(Message(b"b", session_id="s"), broker.queue("orders").created))
        with broker.receiver("shipping", mode="peek_lock") as receiver:
            settle(receiver, receiver.receive(max_messages=6, max_wait=timedelta(0)))
        with broker.transaction() as tx:
            tx.complete(tx.receive("billing", max_messages=1))
            tx.send("shipping", Message(b"c"))
            tx.execute("SELECT 1")
        report = broker.consume("billing", lambda message: None, stop_when_idle=True)
        for letter in broker.dead_letters("orders", limit=5):
            broker.resubmit("orders", lazaretto.DeadLetterFilter(sequence_numbers=(letter.sequence_number,)))
        broker.update_queue("shipping", lock_duration=timedelta(seconds=30))
        ServiceHost(broker, [book], grace=timedelta(seconds=1)).stop(grace=timedelta(seconds=1))
        events = [event.kind for event in broker.events(limit=10)]
        return len(numbers) + report.completed + len(events) + len(broker.peek("orders"))


def settle(receiver: lazaretto.Receiver, messages: Sequence[ReceivedMessage]) -> None:
    for message in messages:
        match message.delivery_count:
            case 1:
                receiver.complete(message)
            case 2:
                receiver.abandon(message, error=ValueError("no"), delay=1.5)
            case 3:
                receiver.dead_letter(message, reason="Stale", description="too old")
            case 4:
                receiver.defer(message)
            case 5:
                receiver.invalid(message, error="no such item")
            case _:
                receiver.release(message)
