"""A program of every verb, which `mypy --strict` finds nothing wrong with."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import lazaretto
from lazaretto import (
    Backoff,
    Message,
    PoisonPolicy,
    QueueOptions,
    ReceivedMessage,
    RedactionForm,
    RedactionRule,
    commands,
)
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
        start: bytes = broker.dead_letter_page("orders", limit=5).letters[0].preview
        troubled: int = broker.status(limit=10, name_contains="orders").troubled
        sent: int = broker.rates("orders", span="hour", limit=24)[-1].sent
        print(sent)
        print(troubled, start, broker.queues(limit=5, name_contains="orders"))
        for letter in broker.dead_letters("orders", limit=5):
            broker.resubmit("orders", lazaretto.DeadLetterFilter(sequence_numbers=(letter.sequence_number,)))
        broker.update_queue("shipping", lock_duration=timedelta(seconds=30))
        ServiceHost(broker, [book], grace=timedelta(seconds=1)).stop(grace=timedelta(seconds=1))
        events = [event.kind for event in broker.events(limit=10)]
        return len(numbers) + report.completed + len(events) + len(broker.peek("orders"))


def administer(broker: lazaretto.Broker) -> None:
    """Use every other verb of a broker."""
    broker.update_topic("events", max_size=1 << 21, default_time_to_live=timedelta(hours=1))
    broker.update_subscription("events", "audit", breaker=None, forward_to="billing", actor="ann")
    broker.add_rule("events", "audit", lazaretto.Rule("lamps", lazaretto.SqlFilter("item = 'lamp'")))
    broker.update_rule("events", "audit", lazaretto.Rule("lamps"), actor="eve")
    rules = broker.remove_rule("events", "audit", "lamps").rules
    paths = [q.path for q in broker.queues()] + [t.path for t in broker.topics()]
    names = [s.name for s in broker.subscriptions("events")]
    active: int = (
        broker.subscription("events", names[0]).queue.counts.active + broker.topic("events").scheduled
    )
    status: lazaretto.QueueStatus = broker.set_status(paths[0], "send_disabled")
    broker.resume_queue("orders", "retry")
    opened = broker.set_breaker("orders", "open").status is broker.breaker("orders").status
    held = [h.session_id for h in broker.held_sessions("orders")] + broker.sessions("orders", active=True)
    state: bool = broker.session("orders", held[0]).has_state
    broker.resume_session("orders", held[0], "skip")
    claims = [claim.number for claim in broker.claims("orders", limit=1)]
    broker.revoke_claim("orders", "spark", claims[0])
    letter = broker.dead_letter("orders", broker.dead_letter_groups("orders")[0].example or 1)
    outcomes = [attempt.outcome.value for attempt in broker.attempts("orders", letter.sequence_number)]
    outcomes += [one.state for one in broker.message_history("orders", 1).generations]
    moved: dict[int, int | None] = broker.move_dead_letters("orders", [1], "billing").moved
    copies = broker.count_republished("events/subscriptions/audit", [1]).copies
    copies += broker.republish("events/subscriptions/audit", [1], topic="events").copies
    purged: list[int] = broker.purge("orders", lazaretto.DeadLetterFilter(), everything=True)
    purged += broker.restore("orders", purged).restored + broker.purged("orders")
    deleted: int = broker.delete_purged("orders", 0) + broker.delete_messages("orders", 5, subqueue="retry")
    causes = deleted + len(broker.explain("orders", good=[Message(b"{}")], leave_out=["properties.n"]))
    repair: lazaretto.Repair = broker.plan_repair("orders", lazaretto.DeadLetterFilter(cause=1), canary=5)
    repair.canary(actor="me")
    planned: lazaretto.RepairStatus = broker.repair(repair.name).status()
    broker.run_repairs(until=lambda: planned.phase is lazaretto.RepairPhase.DONE)
    fates = [*broker.repairs("orders", limit=1), *repair.letters(skipped=True), *repair.left(messages=True)]
    triage: lazaretto.Triage = broker.triage("orders", since=broker.queue("orders").created, over=True)
    broker.note_cause("orders", 1, "ask the shop")
    broker.acknowledge_cause("orders", 1, None)
    causes += broker.unmerge_causes("orders", 1, {2: ["ab"]})
    causes += broker.merge_causes("orders", [1, 2]) + broker.split_cause("orders", 1, ["ab"])
    broker.recount_causes("orders")
    notes = [broker.cause("orders", 1).note, triage.queue]
    print(notes, list(broker.workers()))
    log = [entry.action for entry in broker.audit(queue="orders", limit=5, actor="ann", before=9)]
    print(
        rules,
        active,
        status,
        opened,
        state,
        outcomes,
        moved,
        copies,
        purged,
        fates,
        causes,
        log,
        broker.last_event(),
    )
    print(broker.check(), dict(broker.facts()), broker.dialogs)
    broker.delete_subscription("events", "audit")
    broker.delete_topic("events")
    made = broker.run(commands.CreateQueue(path="again"), actor="ann", idempotency_key="once")
    note: str = broker.queue("again").version
    broker.run(commands.UpdateQueue(path="again", changes={"lock_duration": 5}), version=note)
    print(made["path"], broker.people(), broker.tokens("ann"), broker.browser_sessions(), broker.four_eyes())
    print(broker.four_eyes_wish())
    hidden: list[RedactionRule] = broker.redaction()
    print([rule.form is RedactionForm.MASK for rule in hidden])
    broker.delete_queue("orders", actor="ann")
    broker.close()


def sessions(broker: lazaretto.Broker) -> None:
    """Use every other verb of receivers, senders and transactions."""
    with broker.receiver("orders", session=lazaretto.NEXT_SESSION) as receiver:
        session: str | None = receiver.accept_session(timedelta(seconds=1), name="of the lock")
        assert session is not None
        broker.receiver("orders").join_session(session, "of the lock")
        receiver.set_session_state((receiver.get_session_state() or b"") + b"x")
        until: datetime = max(receiver.renew_session_lock(), receiver.renew_lock(receiver.receive()))
        receiver.defer(receiver.receive_by_number([1]), properties={"why": "later"})
        receiver.complete(receiver.receive_deferred(1))
        receiver.complete(receiver.messages_held([m.lock_token for m in receiver.receive() if m.lock_token]))
        seen = [m.state for m in receiver.peek(5)]
        print(until, seen, receiver.session_id, receiver.session_locked_until)
        receiver.leave_session()
        receiver.close()
    sender: lazaretto.Sender = broker.sender("orders", via="billing")
    sender.close()
    tx: lazaretto.BrokerTransaction = broker.transaction()
    tx.execute("SELECT :x" if tx.paramstyle == "named" else "SELECT 1")
    savepoint = tx.savepoint()
    tx.defer(tx.receive_by_number("billing", 1))
    savepoint.rollback()
    tx.abandon(tx.receive("billing"), error="no")
    tx.dead_letter(tx.receive("billing"), reason="Stale")
    tx.invalid(tx.receive("billing"))
    tx.release(tx.receive("billing"))
    tx.rollback()
    tx.commit()


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
