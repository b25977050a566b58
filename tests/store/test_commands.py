"""Commands: changes as values, run at most once under an idempotency key."""

from __future__ import annotations

import threading
import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from lazaretto import (
    Backoff,
    Broker,
    ChangedMeanwhile,
    ConversationNotFound,
    CorrelationFilter,
    DeadLetterFilter,
    DefinitionError,
    EntityExists,
    EntityNotFound,
    FalseFilter,
    IdempotencyConflict,
    InvalidOption,
    ManualClock,
    PoisonPolicy,
    QueueOptions,
    Rule,
    SqlAction,
    SqlFilter,
    TopicOptions,
)
from lazaretto import commands as c
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.model.actors import Actor

from .actions import create, send
from .conftest import Connect

TOPIC: dict[str, Any] = {"topic": "t", "subscription": "s"}
#: One of each kind, in an order in which each has what it needs; and what is done before some.
EACH: list[c.Command] = [
    c.CreateQueue(path="new", options={"lock_duration": 5, "policy": {"receive_retry_count": 1}}),
    c.UpdateQueue(path="new", changes={"policy": {"max_retry_cycles": 2}}),
    c.DeleteQueue(path="new"),
    c.CreateQueues(paths=("bulk",), options={"lock_duration": 5}),
    c.CreateTopic(path="t"),
    c.UpdateTopic(path="t", changes={"max_message_size": 5000}),
    c.CreateSubscription(**TOPIC, rules=[{"name": "r", "filter": {"kind": "true"}}]),
    c.UpdateSubscription(**TOPIC, changes={"lock_duration": 7}),
    c.Republish(path="q", sequence_numbers=(5,), topic="t"),
    c.AddRule(**TOPIC, rule={"name": "big", "filter": {"kind": "sql", "expression": "size > 5"}}),
    c.RemoveRule(**TOPIC, rule="big"),
    c.DeleteSubscription(**TOPIC),
    c.DeleteTopic(path="t"),
    c.SetStatus(path="q", status="disabled"),
    c.ResumeQueue(path="q"),
    c.SetBreaker(path="q", verb="open"),
    c.NoteCause(path="q", number=1, note="known"),
    c.AcknowledgeCause(path="q", number=1, until=None),
    c.MergeCauses(path="q", numbers=(1, 2)),
    c.RecountCauses(path="q"),
    c.Purge(path="q", sequence_numbers=(1,)),
    c.Restore(path="q", sequence_numbers=(1,)),
    c.Purge(path="q", sequence_numbers=(1, 2)),
    c.DeletePurged(path="q", count=2),
    c.Resubmit(path="q", sequence_numbers=(3,)),
    c.MoveDeadLetters(path="q", sequence_numbers=(4,), to="other"),
    c.PurgeCause(path="q", number=1),
    c.RestorePurged(path="q"),
    c.SendMessage(path="q", body="more", properties={"urgent": True}),
    c.DeleteMessages(path="q", count=1),
    c.PlanRepair(path="q", name="mend", everything=True, canary=1),
    c.PaceRepair(name="mend", in_flight=5, rate=None),
    c.CanaryRepair(name="mend"),
    c.CancelRepair(name="mend"),
    c.PlanRepair(path="q", name="again", everything=True),
    c.ApplyRepair(name="again"),
    c.PauseRepair(name="again"),
    c.ResumeRepair(name="again"),
    c.UndoRepair(name="again"),
    c.GrantRole(person="ana", role="viewer", queue="q"),
    c.WithdrawRole(person="ana", role="viewer", queue="q"),
    c.EndSessions(person="ana"),
    c.RemovePerson(person="ana"),
    c.SetRedaction(field="body.card", queue="q"),
    c.RemoveRedaction(field="body.card", queue="q"),
    c.SetFourEyes(letters=10),
]


@pytest.fixture
def stocked(broker: Broker) -> Broker:
    """A queue with six dead letters of two causes, and another queue."""
    create(broker)
    create(broker, "other")
    send(broker, *(b"%d" % n for n in range(6)))
    receiver = broker.receiver("q")
    for message in receiver.receive(6):
        receiver.dead_letter(message, reason="A" if message.sequence_number % 2 else "B")
    broker.triage("q")
    return broker


def entries(broker: Broker) -> int:
    return len(broker.audit(limit=1000))


def test_each_runs_once(stocked: Broker) -> None:
    """The same command under its key gives the first answer, and changes nothing."""
    answers = []
    for number, command in enumerate(EACH):
        key = f"key-{number}"
        first = stocked.run(command, actor="ann", idempotency_key=key)
        answers.append(first)
        before = (entries(stocked), stocked.last_event())
        assert stocked.run(command, actor="ann", idempotency_key=key) == first, command
        assert (entries(stocked), stocked.last_event()) == before, command
    assert {entry.actor for entry in stocked.audit(limit=20)} == {"ann"}
    assert stocked.check() == []
    for path in ("q", "other", "bulk"):
        stocked.delete_queue(path)
    for number, (command, first) in enumerate(zip(EACH, answers, strict=True)):
        assert stocked.run(command, actor="ann", idempotency_key=f"key-{number}") == first, command


@pytest.mark.parametrize("entity", ["queue", "subscription", "pace"])
def test_changes_of_one_thing_at_once_are_both_kept(stocked: Broker, connect: Connect, entity: str) -> None:
    stocked.run(c.CreateTopic(path="t"))
    stocked.run(c.CreateSubscription(**TOPIC))
    stocked.run(c.PlanRepair(path="q", name="mend", everything=True))
    brokers = [connect(), connect()]

    def change(name: str, number: int) -> c.Command:
        match entity:
            case "queue":
                return c.UpdateQueue(path="q", changes={"policy": {name: number}})
            case "subscription":
                return c.UpdateSubscription(**TOPIC, changes={"policy": {name: number}})
        given: Any = {"receive_retry_count": "in_flight", "max_retry_cycles": "rate"}[name]
        return c.PaceRepair(name="mend", **{given: number})

    def found() -> tuple[object, object]:
        if entity == "pace":
            status = stocked.repair("mend").status()
            return status.in_flight, status.rate
        options = stocked.queue("q").options
        if entity == "subscription":
            options = stocked.subscription("t", "s").queue.options
        return options.policy.receive_retry_count, options.policy.max_retry_cycles

    for number in range(1, 11):
        barrier = threading.Barrier(2)

        def run(
            broker: Broker, name: str, number: int = number, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait(120)
            broker.run(change(name, number))

        threads = [
            threading.Thread(target=run, args=(broker, name))
            for broker, name in zip(brokers, ("receive_retry_count", "max_retry_cycles"), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert found() == (number, number)


def test_each_is_in_the_audit_log(stocked: Broker) -> None:
    """Who made a change, and from where: one entry each, in the commit of the change."""
    for command in EACH:
        before = entries(stocked)
        stocked.run(command, actor=Actor.at("ann", "10.0.0.1"))
        new = stocked.audit(limit=entries(stocked) - before) if entries(stocked) > before else []
        noted = [(e.actor, e.detail.get("origin"), e.action) for e in new]
        assert noted == [("ann", "10.0.0.1", type(command).action)], command
    with pytest.raises(EntityExists):
        stocked.run(c.CreateQueue(path="q"))
    assert stocked.audit(limit=1)[0].action == "access: four eyes"


def test_without_a_key(stocked: Broker) -> None:
    """It runs each time, and says what the broker's verb says."""
    made = stocked.run(c.CreateQueue(path="new"))
    assert made["path"] == "new"
    with pytest.raises(EntityExists):
        stocked.run(c.CreateQueue(path="new"))
    assert stocked.run(c.Resubmit(path="q", sequence_numbers=(1, 2)))["resubmitted"] == {"1": 7, "2": 8}


def test_queues_are_created_together_or_not_at_all(broker: Broker) -> None:
    paths = ("a", "b/c", "d")
    made = broker.run(c.CreateQueues(paths=paths, options={"lock_duration": 5}), actor="ann")
    assert tuple(queue["path"] for queue in made) == paths
    assert [broker.queue(path).options.lock_duration for path in paths] == [5.0] * 3
    assert [(e.actor, e.action, e.queue) for e in broker.audit(limit=3)] == [
        ("ann", "create", path) for path in reversed(paths)
    ]
    with pytest.raises(EntityExists):
        broker.run(c.CreateQueues(paths=("e", "a")))
    with pytest.raises(EntityNotFound):
        broker.queue("e")


def test_dialogs_and_claims(broker: Broker) -> None:
    """Definitions, ends of dialogs and claims are changed under keys, too."""
    tables = {
        "message_types": {"note": {}},
        "contracts": {"talk": {"note": "any"}},
        "services": {name: {"queue": f"of-{name}", "contracts": ["talk"]} for name in ("a", "b")},
    }
    create(broker)
    send(broker, b"1")
    consumer = ClaimConsumer(broker._store, "q", "job")
    consumer.attach()
    assert consumer.take(0) == 1
    each: list[c.Command] = [
        c.ApplyDefinitions(definitions=tables),
        c.RevokeClaim(path="q", consumer="job", number=1),
    ]
    for number, command in enumerate(each):
        first = broker.run(command, actor="ann", idempotency_key=f"{number}")
        before = entries(broker)
        assert broker.run(command, actor="ann", idempotency_key=f"{number}") == first
        assert entries(broker) == before
    with broker.dialogs.transaction() as work:
        handles = [work.begin_dialog("a", "b", "talk") for _ in range(2)]
    each = [
        c.EndConversation(handle=handles[0], error=(5, "closed")),
        c.CleanUpConversation(handle=handles[1]),
    ]
    for number, command in enumerate(each):
        broker.run(command, actor="ann", idempotency_key=f"end-{number}")
        before = entries(broker)
        broker.run(command, actor="ann", idempotency_key=f"end-{number}")
        assert entries(broker) == before
    assert [entry.actor for entry in broker.audit(limit=4)] == ["ann"] * 4
    with pytest.raises(ConversationNotFound):
        broker.run(c.ResumeConversation(handle=handles[1], verdict="retry"))
    with pytest.raises(DefinitionError):
        broker.run(c.DropDefinition(kind="contract", name="talk"))
    assert broker.check() == []


class TestKeys:
    """What a key stands for, and how long."""

    def test_another_command_is_refused(self, stocked: Broker) -> None:
        stocked.run(c.CreateQueue(path="a"), actor="ann", idempotency_key="k")
        for command, actor in (
            (c.CreateQueue(path="b"), "ann"),
            (c.DeleteQueue(path="a"), "ann"),
            (c.CreateQueue(path="a"), "bob"),
        ):
            with pytest.raises(IdempotencyConflict):
                stocked.run(command, actor=actor, idempotency_key="k")
        assert stocked.queue("a").path == "a"

    def test_a_failure_is_not_kept(self, stocked: Broker) -> None:
        command = c.CreateQueue(path="q")
        with pytest.raises(EntityExists):
            stocked.run(command, idempotency_key="k")
        stocked.delete_queue("q")
        assert stocked.run(command, idempotency_key="k")["path"] == "q"

    def test_for_a_day(self, stocked: Broker, clock: ManualClock) -> None:
        command = c.CreateQueue(path="a")
        stocked.run(command, idempotency_key="k")
        clock.advance(86_399)
        assert stocked.run(command, idempotency_key="k")["path"] == "a"
        clock.advance(2)
        with pytest.raises(EntityExists):
            stocked.run(command, idempotency_key="k")

    def test_of_many_at_once(self, stocked: Broker, connect: Connect) -> None:
        """Threads of two brokers run one command under one key: it happens once, and all have its answer."""
        command = c.Resubmit(path="q", sequence_numbers=(1, 2, 3))
        answers: list[Any] = []
        with connect() as other:
            threads = [
                threading.Thread(
                    target=lambda b=b: answers.append(b.run(command, actor="a", idempotency_key="k"))
                )
                for b in (stocked, other) * 4
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
        assert len(answers) == 8
        assert all(answer == answers[0] for answer in answers)
        assert stocked.queue("q").counts.active == 3

    @pytest.mark.parametrize("key", ["", "x" * 201, 5, b"k"], ids=["empty", "long", "number", "bytes"])
    def test_wrong_ones(self, stocked: Broker, key: Any) -> None:
        with pytest.raises(InvalidOption):
            stocked.run(c.DeleteQueue(path="q"), idempotency_key=key)
        assert stocked.queue("q").path == "q"


@pytest.mark.parametrize(
    "command",
    [
        "resubmit", None, c.Command, QueueOptions(), DeadLetterFilter(),
        c.CreateQueue(path="x", options={"lok": 1}), c.SetStatus(path="q", status="x"),
        c.PlanRepair(path="q", name="n"), c.PlanRepair(path="q", name="n", filter={"x": 1}),
        c.Resubmit(path="q", sequence_numbers=(0,)), c.Purge(path="q", sequence_numbers=()),
        c.Resubmit(path="q", sequence_numbers=tuple(range(1, 502))),
    ],
    ids=[
        "text", "none", "class", "options", "filter", "unknown", "status", "all", "part", "zero", "empty",
        "many",
    ],
)  # fmt: skip
def test_what_is_wrong(stocked: Broker, command: Any) -> None:
    before = entries(stocked)
    with pytest.raises(InvalidOption):
        stocked.run(command, idempotency_key="k")
    assert entries(stocked) == before


class TestOpposites:
    """The audit log keeps what was, so that most actions can be taken back by a command."""

    def back(self, broker: Broker) -> None:
        """Take the latest action back."""
        opposite = c.opposite_of(broker.audit(limit=1)[0])
        assert opposite is not None
        broker.run(opposite)

    def test_options(self, stocked: Broker) -> None:
        before = stocked.queue("q").options
        policy = PoisonPolicy(receive_retry_count=3, retry_cycle_delay=Backoff(initial=7.0))
        stocked.update_queue("q", lock_duration=5, policy=policy, breaker=None)
        self.back(stocked)
        assert stocked.queue("q").options == before
        self.back(stocked)
        assert stocked.queue("q").options.policy == policy
        stocked.create_topic("t")
        stocked.create_subscription("t", "s")
        stocked.update_topic("t", max_message_size=5000)
        self.back(stocked)
        assert stocked.topic("t").options == TopicOptions()
        stocked.update_subscription("t", "s", lock_duration=7)
        self.back(stocked)
        assert stocked.subscription("t", "s").queue.options.lock_duration == 60

    def test_status(self, stocked: Broker) -> None:
        stocked.set_status("q", "send_disabled")
        self.back(stocked)
        assert stocked.queue("q").status.value == "active"

    def test_notes(self, stocked: Broker) -> None:
        until = datetime(2030, 1, 1, tzinfo=UTC)
        stocked.note_cause("q", 1, "first")
        stocked.note_cause("q", 1, "second")
        self.back(stocked)
        assert stocked.cause("q", 1).note == "first"
        stocked.acknowledge_cause("q", 1, until)
        stocked.acknowledge_cause("q", 1, None)
        self.back(stocked)
        assert stocked.cause("q", 1).acknowledged_until == until

    def test_purged(self, stocked: Broker) -> None:
        stocked.purge("q", [1, 2, 3, 5])
        self.back(stocked)
        assert stocked.queue("q").counts.dead_letter == 6
        self.back(stocked)
        assert stocked.purged("q") == [1, 2, 3, 5]

    def test_repairs(self, stocked: Broker) -> None:
        repair = stocked.plan_repair("q", DeadLetterFilter(), everything=True)
        self.back(stocked)
        assert repair.status().phase.value == "cancelled"

    def test_rules(self, broker: Broker) -> None:
        broker.create_topic("t")
        values: dict[str, Any] = {
            "u": uuid.uuid4(),
            "at": datetime(2030, 1, 1, tzinfo=UTC),
            "b": b"\0",
            "n": 1,
        }
        rules = [
            Rule("sql", SqlFilter("a > @least", {"least": 5}), SqlAction("SET a = @a", {"a": values["at"]})),
            Rule("same", CorrelationFilter(subject="x", properties=values)),
            Rule("none", FalseFilter()),
        ]
        before = broker.create_subscription("t", "s").rules
        for rule in rules:
            broker.add_rule("t", "s", rule)
            self.back(broker)
            assert broker.subscription("t", "s").rules == before
            # What takes that back adds the rule again, with the types of its values.
            self.back(broker)
            assert broker.subscription("t", "s").rules == (*before, rule)
            broker.remove_rule("t", "s", rule.name)

    def test_breakers(self, stocked: Broker) -> None:
        for verb, status in (("open", "held_open"), ("close", "held_closed"), ("auto", "closed")):
            before = stocked.breaker("q").status
            stocked.set_breaker("q", verb)
            assert stocked.breaker("q").status.value == status
            self.back(stocked)
            assert stocked.breaker("q").status is before
            stocked.set_breaker("q", verb)
        stocked.set_breaker("q", "auto")
        assert c.opposite_of(stocked.audit(limit=1)[0]) is None

    def test_pace(self, stocked: Broker) -> None:
        repair = stocked.plan_repair("q", [1, 2], name="r", in_flight=7)
        repair.set_pace(in_flight=None, rate=5)
        self.back(stocked)
        assert (repair.status().in_flight, repair.status().rate) == (7, None)

    def test_half_a_pace(self, stocked: Broker) -> None:
        """What is not given stays as it is, and a key gives the answer again whatever changed since."""
        repair = stocked.plan_repair("q", [1, 2], name="r", in_flight=7)
        faster = c.PaceRepair(name="r", rate=5)
        first = stocked.run(faster, idempotency_key="k")
        assert (repair.status().in_flight, repair.status().rate) == (7, 5)
        stocked.run(c.PaceRepair(name="r", in_flight=None))
        assert (repair.status().in_flight, repair.status().rate) == (None, 5)
        assert stocked.run(faster, idempotency_key="k") == first
        repair.set_pace(in_flight=3)
        assert (repair.status().in_flight, repair.status().rate) == (3, 5)

    def test_causes(self, stocked: Broker) -> None:
        def letters() -> list[int]:
            return sorted(cause.letters for cause in stocked.triage("q").causes)

        stocked.merge_causes("q", [1, 2])
        assert letters() == [6]
        self.back(stocked)
        assert letters() == [3, 3]
        self.back(stocked)
        assert letters() == [6]
        send(stocked, *(b"x", b"y"))
        with stocked.receiver("q") as receiver:
            for number, message in enumerate(receiver.receive(2)):
                receiver.dead_letter(message, reason=f"R{number}")
        numbers = [cause.number for cause in stocked.triage("q").causes]
        assert len(numbers) == 3
        stocked.merge_causes("q", numbers)
        assert letters() == [8]
        stocked.note_cause("q", numbers[1], "of all")
        merged = stocked.audit(limit=2)[1]
        again = c.opposite_of(merged)
        assert isinstance(again, c.UnmergeCauses)
        stocked.run(again)
        # All of them have their numbers and letters again, and stay apart.
        assert sorted(cause.number for cause in stocked.triage("q").causes) == sorted(numbers)
        assert letters() == [1, 1, 6]
        self.back(stocked)
        assert letters() == [8]
        self.back(stocked)
        assert letters() == [1, 1, 6]
        with pytest.raises(InvalidOption, match="merged into"):
            stocked.run(again)
        assert stocked.check() == []

    def test_a_part_that_went_elsewhere_meanwhile(self, stocked: Broker) -> None:
        """It stays where it is, and so do causes of which nothing is left to part."""
        stocked.merge_causes("q", [1, 2])
        unmerge = c.opposite_of(stocked.audit(limit=1)[0])
        assert isinstance(unmerge, c.UnmergeCauses)
        stocked.split_cause("q", 1, unmerge.parts[2])
        with pytest.raises(InvalidOption, match="to part"):
            stocked.run(unmerge)
        for wrong in ({1: ["x"]}, {9: ["x"]}, {}, [1]):
            with pytest.raises(InvalidOption):
                stocked.unmerge_causes("q", 1, wrong)  # type: ignore[arg-type]
        assert sorted(cause.letters for cause in stocked.triage("q").causes) == [3, 3]

    def test_one_of_several_parts_that_went_elsewhere(self, stocked: Broker) -> None:
        """The others are parted all the same."""
        send(stocked, b"x")
        with stocked.receiver("q") as receiver:
            receiver.dead_letter(receiver.receive(), reason="third")
        assert sorted(cause.number for cause in stocked.triage("q").causes) == [1, 2, 3]
        stocked.merge_causes("q", [1, 2, 3])
        unmerge = c.opposite_of(stocked.audit(limit=1)[0])
        assert isinstance(unmerge, c.UnmergeCauses)
        away = stocked.split_cause("q", 1, unmerge.parts[3])
        stocked.run(unmerge)
        found = {cause.number: cause.letters for cause in stocked.triage("q").causes}
        assert found == {1: 3, 2: 3, away: 1}
        assert stocked.audit(limit=1)[0].detail["parts"] == {"2": list(unmerge.parts[2])}
        assert stocked.check() == []

    def test_a_merge_that_an_older_version_noted(self, stocked: Broker) -> None:
        stocked.merge_causes("q", [1, 2])
        (entry,) = stocked.audit(limit=1)
        (names,) = entry.detail["fingerprints"].values()
        older = msgspec.structs.replace(entry, detail={**entry.detail, "fingerprints": names})
        split = c.SplitCause(path="q/$deadletterqueue", number=1, fingerprints=tuple(names))
        assert c.opposite_of(older) == split

    def test_there_is_none(self, stocked: Broker) -> None:
        stocked.resubmit("q", [1])
        assert c.opposite_of(stocked.audit(limit=1)[0]) is None
        stocked.delete_queue("other")
        assert c.opposite_of(stocked.audit(limit=1)[0]) is None


class TestVersions:
    """A command that changes what was seen, and nothing else."""

    def test_of_a_queue(self, stocked: Broker) -> None:
        seen = stocked.queue("q").version
        assert seen in {queue.version for queue in stocked.queues()}
        send(stocked, b"counts are no settings")
        assert stocked.queue("q").version == seen
        stocked.run(c.UpdateQueue(path="q", changes={"lock_duration": 5}), version=seen)
        for command in (
            c.UpdateQueue(path="q", changes={"lock_duration": 6}),
            c.SetStatus(path="q/$deadletterqueue", status="disabled"),
            c.DeleteQueue(path="q"),
        ):
            with pytest.raises(ChangedMeanwhile):
                stocked.run(command, version=seen)
        assert stocked.queue("q").options.lock_duration == 5
        stocked.run(
            c.UpdateQueue(path="q", changes={"lock_duration": 60}), version=stocked.queue("q").version
        )
        stocked.run(c.SetStatus(path="q", status="disabled"), version=stocked.queue("q").version)
        stocked.run(c.DeleteQueue(path="q"), version=stocked.queue("q").version)

    def test_of_a_subscription(self, broker: Broker) -> None:
        topic = broker.create_topic("t")
        made = broker.create_subscription("t", "s")
        assert made.version == broker.subscription("t", "s").version
        assert topic.version == broker.topic("t").version
        rule = {"name": "r", "filter": {"kind": "sql", "expression": "a > 5"}}
        broker.run(c.AddRule(**TOPIC, rule=rule), version=made.version)
        found = broker.subscription("t", "s").version
        assert found == broker.subscriptions("t")[0].version != made.version
        for command in (c.RemoveRule(**TOPIC, rule="r"), c.UpdateSubscription(**TOPIC, changes={})):
            with pytest.raises(ChangedMeanwhile):
                broker.run(command, version=made.version)
        broker.run(c.RemoveRule(**TOPIC, rule="r"), version=found)
        assert broker.subscription("t", "s").version == made.version
        broker.run(c.UpdateTopic(path="t", changes={"max_message_size": 5000}), version=topic.version)
        with pytest.raises(ChangedMeanwhile):
            broker.run(c.DeleteTopic(path="t"), version=topic.version)

    def test_two_at_once(self, broker: Broker) -> None:
        """Of many who saw the same, one changes it."""
        broker.create_queue("q")
        seen, done, refused = broker.queue("q").version, [], []

        def change(number: int) -> None:
            try:
                broker.run(c.UpdateQueue(path="q", changes={"lock_duration": number}), version=seen)
                done.append(number)
            except ChangedMeanwhile:
                refused.append(number)

        threads = [threading.Thread(target=change, args=(number,)) for number in range(5, 15)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(done), len(refused)) == (1, 9)
        assert [broker.queue("q").options.lock_duration] == done

    def test_asked_again_under_its_key(self, broker: Broker) -> None:
        broker.create_queue("q")
        command, seen = c.UpdateQueue(path="q", changes={"lock_duration": 5}), broker.queue("q").version
        first = broker.run(command, idempotency_key="k", version=seen)
        assert broker.run(command, idempotency_key="k", version=seen) == first

    def test_what_has_none(self, broker: Broker) -> None:
        with pytest.raises(InvalidOption):
            broker.run(c.GrantRole(person="ana", role="viewer"), version="x")
        with pytest.raises(EntityNotFound):
            broker.run(c.CreateQueue(path="new"), version="x")
