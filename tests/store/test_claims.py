"""Claims: numbered sets of messages, the same whoever asks again, settled once and as one."""

from __future__ import annotations

from pathlib import Path

import pytest

import lazaretto
from lazaretto import (
    Broker,
    ClaimFenced,
    Disposition,
    EntityError,
    EntityNotFound,
    ManualClock,
    Message,
    MessageNotReceivable,
    MessageState,
    NotAllowed,
    PoisonMessageError,
    PoisonPolicy,
    PoisonSession,
    QueueOptions,
    StoreUnavailable,
)
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.claims import end_claims, settle_claims
from lazaretto.engine.claims.end_claims import ClaimSummary
from lazaretto.engine.claims.outbox import ForgetStaged, SendStaged, StageMessages
from lazaretto.engine.claims.settle_claims import StagedRow, staged_rows
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.messages.prepare import prepare
from lazaretto.engine.timers import Sweep
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import Failure
from lazaretto.model.keys import sequence_of
from lazaretto.model.policy import Outcome
from lazaretto.store.addresses import copy_store
from lazaretto.store.postgres import schema
from lazaretto.store.postgres import store as served
from lazaretto.store.records.messages import FRESH, LOCKED
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

from .actions import stored
from .conftest import Connect

FAILED = Failure("ValueError", "no", "a stack")


@pytest.fixture
def queue(broker: Broker) -> str:
    broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=1)))
    broker.create_queue("out")
    return "work"


def send(broker: Broker, count: int, *, body: bytes = b"x", sessions: int = 0) -> list[int]:
    return broker.sender("work").send(
        [Message(body, session_id=f"s{n % sessions}" if sessions else None) for n in range(count)]
    )


def attached(broker: Broker, name: str = "job", **options: float) -> ClaimConsumer:
    consumer = ClaimConsumer(broker._store, "work", name, **options)  # type: ignore[arg-type]
    consumer.attach()
    return consumer


def keys_of(broker: Broker, consumer: ClaimConsumer, number: int) -> list[list[int]]:
    shards = consumer.shards(number - 1, number)
    return [broker._store.read(lambda tx, s=s: tx.claims.shard_keys(s, 1_000)) for _, s in shards]  # type: ignore[misc]


def stage_all(broker: Broker, consumer: ClaimConsumer, number: int, *others: StagedRow) -> None:
    """Stage all of a claim as completed, but for these."""
    left = {row.key for row in others}
    for _, shard in consumer.shards(number - 1, number):
        keys = broker._store.read(lambda tx, s=shard: tx.claims.shard_keys(s, 10_000))  # type: ignore[misc]
        mine = [row for row in others if row.key in keys]
        rows = staged_rows(shard.token, [k for k in keys if k not in left], mine, {"handler": 0.5})
        consumer.stage("a", rows)


class TestTaking:
    def test_it_is_numbered_frozen_and_locked(self, broker: Broker, queue: str) -> None:
        send(broker, 10)
        consumer = attached(broker)
        assert consumer.take(0, max_rows=4) == 1
        send(broker, 3)
        assert consumer.take(0, max_rows=100) == 1
        assert [len(keys) for keys in keys_of(broker, consumer, 1)] == [4]
        assert consumer.take(1, max_rows=100) == 2
        assert [len(keys) for keys in keys_of(broker, consumer, 2)] == [9]
        assert consumer.take(2) is None
        assert broker.queue("work").counts.locked == 13
        assert broker.receiver("work").receive(5) == []

    def test_shards_are_parts_in_order(self, broker: Broker, queue: str) -> None:
        send(broker, 10)
        consumer = attached(broker)
        consumer.take(0, shards=3)
        parts = keys_of(broker, consumer, 1)
        assert [len(part) for part in parts] == [4, 4, 2]
        assert [k for part in parts for k in part] == sorted(k for part in parts for k in part)

    def test_bytes_limit_it_but_one_always_fits(self, broker: Broker, queue: str) -> None:
        send(broker, 5, body=b"x" * 1_000)
        send(broker, 5, body=b"y" * 5_000)
        consumer = attached(broker)
        assert consumer.take(0, max_bytes=3_500) == 1
        assert consumer.take(1, max_bytes=10) == 2
        assert [c.rows for c in broker.claims("work")] == [1, 3]
        assert consumer.take(2, max_bytes=6_100) == 3
        assert [len(keys) for keys in keys_of(broker, consumer, 3)] == [2]

    def test_up_to_a_sequence_number(self, broker: Broker, queue: str) -> None:
        send(broker, 5)
        consumer = attached(broker)
        last = consumer.last_sequences()
        send(broker, 5)
        assert consumer.take(0, last=last) == 1
        assert consumer.take(1, last=last) is None

    @pytest.mark.parametrize("sessions", [False, True], ids=["messages", "sessions"])
    def test_up_to_a_sequence_number_of_each_partition(self, broker: Broker, sessions: bool) -> None:
        broker.create_queue("parts", QueueOptions(partitions=4, requires_session=sessions))
        before, later = (
            [
                Message(b"", session_id=key) if sessions else Message(b"", partition_key=key)
                for key in map(str, numbers)
            ]
            for numbers in (range(40), range(80))
        )
        broker.sender("parts").send(before)
        consumer = ClaimConsumer(broker._store, "parts", "job")
        consumer.attach()
        last = consumer.last_sequences()
        assert len({number >> 36 for number in last}) == 4
        broker.sender("parts").send(later)
        # Two of those that came later are suspects: their worker died.
        consumer.take(0, shards=2)
        for (_, shard), keys in zip(consumer.shards(0, 1), keys_of(broker, consumer, 1), strict=True):
            consumer.start(shard.token, "task")
            consumer.mark(shard.token, keys[-1])
        consumer.attach()
        consumer.revoke(1)
        assert broker.queue("parts").counts.suspect == 2
        taken: list[int] = []
        number = 1
        while (found := consumer.take(number, last=last)) is not None:
            number = found
            (keys,) = keys_of(broker, consumer, number)
            taken += keys
            consumer.stage(
                f"{number}", staged_rows(consumer.shards(number - 1, number)[0][1].token, keys, [], {})
            )
            consumer.settle([number], [f"{number}"])
        assert len(taken) == 40
        assert all(sequence_of(key) <= last[sequence_of(key) >> 36] for key in taken)
        assert broker.queue("parts").counts.total == 80
        assert broker.queue("parts").counts.suspect == 2

    def test_those_that_failed_before_go_first(self, broker: Broker, queue: str) -> None:
        send(broker, 3)
        with broker.receiver("work") as receiver:
            first, second = receiver.receive(2)
            receiver.abandon([first, second])
        consumer = attached(broker)
        assert consumer.take(0, max_rows=1) == 1
        assert keys_of(broker, consumer, 1) == [[first.key]]
        assert consumer.take(1, max_rows=9, shards=2) == 2
        assert [len(part) for part in keys_of(broker, consumer, 2)] == [1, 1]

    def test_a_halted_queue_says_so(self, broker: Broker, queue: str) -> None:
        broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=0, on_poison=Disposition.FAULT))
        send(broker, 2)
        with broker.receiver("work") as receiver:
            receiver.abandon(receiver.receive(1))
        consumer = attached(broker)
        with pytest.raises(PoisonMessageError):
            consumer.take(0)

    def test_dead_letters_are_not_claimed(self, broker: Broker, queue: str) -> None:
        with pytest.raises(NotAllowed):
            ClaimConsumer(broker._store, "work;poison", "job").attach()


class TestSettling:
    def test_all_at_once_and_once_only(self, broker: Broker, queue: str) -> None:
        send(broker, 5)
        consumer = attached(broker)
        consumer.take(0, shards=2)
        stage_all(broker, consumer, 1)
        (summary,) = consumer.settle([1], ["a"])
        assert (summary.state, summary.outcomes) == ("settled", {"completed": 5})
        assert (summary.seconds["handler"], set(summary.seconds)) == (1.0, {"handler", "settle"})
        assert consumer.settle([1], ["a"]) == [summary]
        assert broker.queue("work").counts.total == 0
        assert attached(broker).settle([1], []) == [summary]
        (event,) = broker.events(0, kind="claim_settled")
        assert event.detail["outcomes"] == {"completed": 5}

    def test_only_what_is_named_counts(self, broker: Broker, queue: str) -> None:
        send(broker, 4)
        consumer = attached(broker)
        consumer.take(0)
        stage_all(broker, consumer, 1)
        (summary,) = consumer.settle([1], ["another"])
        assert summary.outcomes == {"released": 4}
        assert [m.attempt for m in broker.peek("work", 9)] == [0] * 4
        assert broker.queue("work").counts.active == 4

    @pytest.mark.parametrize("every", [1_000, 2])
    def test_few_or_many_others_among_the_completed(self, broker: Broker, queue: str, every: int) -> None:
        """Runs of completed messages go at once, however many messages part them."""
        sent = 5_000
        broker.sender("work").send([Message(b"x") for _ in range(sent)])
        consumer = attached(broker)
        consumer.take(0, shards=2)
        keys = [
            key
            for _, shard in consumer.shards(0, 1)
            for key in broker._store.read(lambda tx, s=shard: tx.claims.shard_keys(s, sent))  # type: ignore[misc]
        ]
        bad, untouched = keys[every // 2 :: every], keys[1_201:1_204]
        rows = [StagedRow(key, "dead_lettered") for key in bad if key not in untouched]
        rows += [StagedRow(key, "released") for key in untouched]
        stage_all(broker, consumer, 1, *rows)
        (summary,) = consumer.settle([1], ["a"])
        dead = len({*bad} - {*untouched})
        left = sent - dead - len(untouched)
        assert summary.outcomes == {"completed": left, "dead_lettered": dead, "released": len(untouched)}
        counts = broker.queue("work").counts
        assert (counts.active, counts.dead_letter, counts.total) == (3, dead, 3 + dead)
        assert [m.sequence_number for m in broker.peek("work", 9)] == [sequence_of(k) for k in untouched]

    @pytest.mark.parametrize("stages", [["a", "b"], ["b", "a"]])
    def test_of_two_stages_of_a_shard_the_first_counts(
        self, broker: Broker, queue: str, stages: list[str]
    ) -> None:
        send(broker, 4)
        consumer = attached(broker)
        consumer.take(0)
        ((_, shard),) = consumer.shards(0, 1)
        ((one, two, three, four),) = keys_of(broker, consumer, 1)
        consumer.stage("a", staged_rows(shard.token, [one, two, three, four], [], {}))
        consumer.stage("b", staged_rows(shard.token, [one, two], [StagedRow(three, "dead_lettered")], {}))
        (summary,) = consumer.settle([1], stages)
        assert summary.stages == stages[:1]
        counts = broker.queue("work").counts
        of_each = {"a": (0, 0), "b": (1, 1)}
        assert (counts.active, counts.dead_letter) == of_each[stages[0]]
        assert broker.check() == []

    def test_each_outcome_has_its_end(self, broker: Broker, queue: str) -> None:
        send(broker, 6)
        consumer = attached(broker)
        consumer.take(0)
        ((a, b, c, d, e, _),) = keys_of(broker, consumer, 1)
        sent = [("out", [prepare(Message(b"hello"))])]
        stage_all(
            broker,
            consumer,
            1,
            StagedRow(a, "failed", FAILED),
            StagedRow(b, "invalid", FAILED),
            StagedRow(c, "deferred"),
            StagedRow(d, "dead_lettered", None, "because"),
            StagedRow(e, "completed", sends=sent),
        )
        (summary,) = consumer.settle([1], ["a"])
        assert summary.outcomes == {
            "failed": 1, "invalid": 1, "deferred": 1, "dead_lettered": 1, "completed": 2,
        }  # fmt: skip
        assert (summary.sent, summary.finals) == (1, 1)
        counts = broker.queue("work").counts
        assert (counts.active, counts.deferred, counts.dead_letter) == (1, 1, 2)
        assert {d.reason for d in broker.dead_letters("work")} == {"because", "InvalidMessage"}
        assert [m.body for m in broker.peek("out")] == [b"hello"]
        assert broker.attempts("work", 1)[0].error_message == "no"

    def test_how_far_a_consumer_is_behind(self, broker: Broker, queue: str) -> None:
        consumer = attached(broker)
        assert (consumer.lag(), consumer.last_claim()) == ((0, 0.0), 0)
        send(broker, 5)
        assert consumer.lag().messages == 5
        consumer.take(0, max_rows=3)
        lag = consumer.lag()
        assert (lag.messages, consumer.last_claim()) == (2, 1)
        assert 0 <= lag.seconds < 600
        consumer.settle_whole(1, {})
        assert consumer.lag().messages == 2

    def test_a_whole_claim_but_what_failed(self, broker: Broker, queue: str) -> None:
        send(broker, 5)
        consumer = attached(broker)
        consumer.take(0, shards=2)
        summary = consumer.settle_whole(1, dict.fromkeys((2, 5, 99), (Outcome.FAILED, FAILED)))
        assert summary is not None
        assert summary.outcomes == {"completed": 3, "failed": 2}
        assert consumer.settle_whole(1, {}) == summary
        assert consumer.settle_whole(7, {}) is None
        # What it was settled with stays known, so that results can be published after a death.
        (stage,) = summary.stages
        assert [one.stages for one in consumer.summaries()] == [[stage]]
        assert [m.sequence_number for m in broker.peek("work", 9)] == [2, 5]
        assert {m.delivery_count for m in broker.peek("work", 9)} == {1}

    def test_what_cannot_be_sent_is_its_own_messages_failure(self, broker: Broker, queue: str) -> None:
        send(broker, 3)
        consumer = attached(broker)
        consumer.take(0)
        ((a, _, _),) = keys_of(broker, consumer, 1)
        sends = [("out", [prepare(Message(b"1"))]), ("nowhere", [prepare(Message(b"2"))])]
        stage_all(broker, consumer, 1, StagedRow(a, "completed", sends=sends))
        (summary,) = consumer.settle([1], ["a"])
        assert summary.outcomes == {"failed": 1, "completed": 2}
        assert broker.peek("out") == []
        assert broker.attempts("work", 1)[0].error_type == "lazaretto.errors.EntityNotFound"

    def settle_two_sends(self, broker: Broker, first: str, second: str) -> ClaimSummary:
        """Settle a claim of three messages, whose first has sent two, each of which finds room in `out`."""
        broker.update_queue("out", max_size=1_024)
        send(broker, 3)
        consumer = attached(broker)
        consumer.take(0)
        ((a, _, _),) = keys_of(broker, consumer, 1)
        sends = [(path, [prepare(Message(b"x" * 600))]) for path in (first, second)]
        stage_all(broker, consumer, 1, StagedRow(a, "completed", sends=sends))
        (summary,) = consumer.settle([1], ["a"])
        return summary

    def test_nothing_is_sent_where_there_is_no_room_for_all(self, broker: Broker, queue: str) -> None:
        summary = self.settle_two_sends(broker, "out", "OUT")
        assert (summary.outcomes, summary.sent) == ({"failed": 1, "completed": 2}, 0)
        assert broker.peek("out") == []
        assert broker.attempts("work", 1)[0].error_type == "lazaretto.errors.QuotaExceeded"

    def test_a_message_that_is_forwarded_in_front_of_another_does_not_part_them(
        self, broker: Broker, queue: str
    ) -> None:
        broker.create_queue("through", QueueOptions(forward_to="out"))
        summary = self.settle_two_sends(broker, "through", "out")
        assert (summary.outcomes, summary.sent) == ({"completed": 3}, 2)
        assert len(broker.peek("out", 9)) == 2

    def test_large_bodies_and_histories_go_too(self, broker: Broker, queue: str) -> None:
        send(broker, 3, body=b"x" * 5_000)
        with broker.receiver("work") as receiver:
            receiver.abandon(receiver.receive(1))
        consumer = attached(broker)
        consumer.take(0)
        stage_all(broker, consumer, 1)
        consumer.settle([1], ["a"])
        tables = ("messages", "bodies", "attempts", "shards", "staged")
        left = {table: stored(broker, f"SELECT count(*) FROM lazaretto_{table}")[0][0] for table in tables}
        assert left == dict.fromkeys(tables, 0)

    def test_no_partition_gives_a_number_again(self, broker: Broker, queue: str, connect: Connect) -> None:
        broker.create_queue("parts", QueueOptions(partitions=2))
        messages = [Message(b"", partition_key=key) for key in "ga" for _ in range(250)]
        sent = broker.sender("parts").send(messages)
        assert len({number >> 36 for number in sent}) == 2
        held = broker.receiver("parts").receive_by_number(sent)
        # So many gaps that what stands between them is looked at, from one partition to the next.
        broker.receiver("parts").complete([message for message in held if message.sequence_number % 2])
        broker.receiver("parts").release([message for message in held if message.sequence_number % 2 == 0])
        consumer = ClaimConsumer(broker._store, "parts", "job")
        consumer.attach()
        consumer.take(0)
        stage_all(broker, consumer, 1)
        consumer.settle([1], ["a"])
        assert broker.queue("parts").counts.total == 0
        again = connect().sender("parts").send([Message(b"", partition_key=key) for key in "ga"])
        assert [number > max(sent[:250] if n == 0 else sent[250:]) for n, number in enumerate(again)] == [
            True,
            True,
        ]

    def test_trimmed_claims_are_forgotten_and_not_taken_again(self, broker: Broker, queue: str) -> None:
        send(broker, 2)
        consumer = attached(broker)
        for number in (1, 2):
            consumer.take(number - 1, max_rows=1)
            stage_all(broker, consumer, number)
            consumer.settle([number], ["a"])
        consumer.trim(2)
        assert broker.claims("work") == []
        assert attached(broker).take(2) is None
        send(broker, 1)
        assert attached(broker).take(2) == 3


class TestSessions:
    @pytest.fixture
    def queue(self, broker: Broker) -> str:
        policy = PoisonPolicy(receive_retry_count=0)
        broker.create_queue(
            "work", QueueOptions(requires_session=True, on_poison_session=PoisonSession.BLOCK, policy=policy)
        )
        return "work"

    def test_each_stands_in_one_shard(self, broker: Broker, queue: str) -> None:
        send(broker, 30, sessions=5)
        consumer = attached(broker)
        consumer.take(0, shards=2)
        found = [
            {n % 5 for k in keys for n in [(k & ((1 << 42) - 1)) - 1]}
            for keys in keys_of(broker, consumer, 1)
        ]
        assert found[0] & found[1] == set()
        assert found[0] | found[1] == set(range(5))
        assert broker.session("work", "s1").locked_until is not None

    def test_sessions_are_free_again_when_it_is_settled(self, broker: Broker, queue: str) -> None:
        send(broker, 10, sessions=5)
        consumer = attached(broker)
        consumer.take(0, max_rows=7)
        stage_all(broker, consumer, 1)
        consumer.settle([1], ["a"])
        assert consumer.take(1) == 2
        stage_all(broker, consumer, 2)
        consumer.settle([2], ["a"])
        assert broker.queue("work").counts.total == 0
        assert broker.sessions("work") == []

    def test_a_held_session_is_left_out(self, broker: Broker, queue: str) -> None:
        send(broker, 6, sessions=2)
        consumer = attached(broker)
        consumer.take(0)
        (keys,) = keys_of(broker, consumer, 1)
        mine = [k for k in keys if (sequence_of(k) - 1) % 2 == 0]
        stage_all(
            broker, consumer, 1,
            StagedRow(mine[0], "failed", FAILED), *(StagedRow(k, "released") for k in mine[1:]),
        )  # fmt: skip
        consumer.settle([1], ["a"])
        assert [h.session_id for h in broker.held_sessions("work")] == ["s0"]
        assert consumer.take(1) is None


class TestDrivers:
    def test_a_second_driver_fences_the_first_off(self, broker: Broker, queue: str) -> None:
        send(broker, 4)
        first = attached(broker)
        first.take(0)
        shard = first.shards(0, 1)[0][1]
        second = attached(broker)
        for call in (
            lambda: first.take(0),
            lambda: first.settle([1], []),
            lambda: first.renew(),
            lambda: first.start(shard.token, "w"),
            lambda: first.begin(shard.token),
            lambda: first.mark(shard.token, shard.first),
            lambda: first.mark(shard.token, None),
            lambda: first.stage("b", staged_rows(shard.token, [], [], {})),
        ):
            with pytest.raises(ClaimFenced):
                call()
        stage_all(broker, second, 1)
        assert second.settle([1], ["a"])[0].outcomes == {"completed": 4}

    def test_consumers_of_different_names_do_not_meet(self, broker: Broker, queue: str) -> None:
        send(broker, 4)
        one, two = attached(broker, "one"), attached(broker, "two")
        assert one.take(0, max_rows=2) == 1
        assert two.take(0) == 1
        assert sorted(c.rows for c in broker.claims("work")) == [2, 2]

    def test_a_lease_that_runs_out_unread_costs_nothing(
        self, broker: Broker, queue: str, clock: ManualClock
    ) -> None:
        send(broker, 4)
        consumer = attached(broker, lease=60)
        consumer.take(0)
        clock.advance(59)
        consumer.renew()
        clock.advance(59)
        assert broker.queue("work").counts.locked == 4
        clock.advance(2)
        assert len(broker.receiver("work").receive(9)) == 4
        assert [m.delivery_count for m in broker.peek("work", 9)] == [0] * 4
        (claim,) = broker.claims("work")
        assert (claim.state, claim.outcomes) == ("revoked", {"lock_expired": 4})

    def test_one_that_was_read_is_charged_and_settling_it_changes_nothing(
        self, broker: Broker, queue: str, clock: ManualClock
    ) -> None:
        send(broker, 700)
        consumer = attached(broker, lease=60)
        consumer.take(0)
        consumer.start(consumer.shards(0, 1)[0][1].token, "w")
        stage_all(broker, consumer, 1)
        clock.advance(61)
        for _ in range(4):
            # Whoever looks does a part of what is due.
            consumer = attached(broker)
        assert broker.queue("work").counts.locked == 0
        assert consumer.settle([1], ["a"])[0].state == "revoked"
        assert {m.delivery_count for m in broker.peek("work", 999)} == {1}

    def test_one_that_was_only_looked_at_costs_nothing(
        self, broker: Broker, queue: str, clock: ManualClock
    ) -> None:
        broker.update_queue("work", policy=PoisonPolicy(disable_after_rollbacks=1))
        send(broker, 4)
        consumer = attached(broker, lease=60)
        consumer.take(0, shards=2)
        one, two = (shard.token for _, shard in consumer.shards(0, 1))
        consumer.start(one, "w", begun=False)
        consumer.start(two, "w", begun=False)
        consumer.begin(two)
        clock.advance(61)
        attached(broker)
        assert [m.delivery_count for m in broker.peek("work", 9)] == [0, 0, 1, 1]

    def test_queries_that_look_and_end_are_no_deaths(
        self, broker: Broker, queue: str, clock: ManualClock
    ) -> None:
        broker.update_queue("work", policy=PoisonPolicy(disable_after_rollbacks=1))
        send(broker, 4)
        for _ in range(9):
            consumer = attached(broker, lease=60)
            assert consumer.take(0) == 1
            assert len(keys_of(broker, consumer, 1)[0]) == 4
            consumer.start(consumer.shards(0, 1)[0][1].token, "w", begun=False)
            assert consumer.take(1) is None
        clock.advance(61)
        attached(broker)
        assert {m.delivery_count for m in broker.peek("work", 9)} == {0}
        assert broker.queue("work").counts.active == 4

    def test_several_reads_by_one_query_are_no_deaths(self, broker: Broker, queue: str) -> None:
        """As of a batch with several actions: only that one query after the other goes away is suspicious."""
        send(broker, 64)
        for deaths in range(4):
            consumer = attached(broker)
            shards = consumer.shards(0, consumer.take(0) or 0)
            assert [shard.reads for _, shard in shards] == ([deaths] if deaths < 3 else [])
            for _, shard in shards:
                for action in range(5):
                    assert consumer.start(shard.token, "w", begun=False) is (deaths + action > 0)
        assert broker.claims("work")[0].state == "revoked"
        consumer.take(1)
        assert [shard.rows for _, shard in consumer.shards(1, 2)] == [2]

    def test_a_read_after_the_work_has_begun_is_a_death(self, broker: Broker, queue: str) -> None:
        send(broker, 4)
        consumer = attached(broker)
        consumer.take(0)
        ((_, shard),) = consumer.shards(0, 1)
        for _ in range(2):
            consumer.start(shard.token, "w", begun=False)
            consumer.begin(shard.token)
        consumer.mark(shard.token, shard.first)
        consumer.start(shard.token, "w", begun=False)
        assert broker.events(0, kind="killer_found")[0].detail["deaths"] == 2

    def test_revoked_by_an_operator(self, broker: Broker, queue: str) -> None:
        send(broker, 4)
        consumer = attached(broker)
        consumer.take(0)
        broker.revoke_claim("work", "job", 1)
        assert broker.queue("work").counts.active == 4
        assert broker.audit()[0].action == "revoke_claim"
        with pytest.raises(EntityError):
            broker.revoke_claim("work", "job", 1)
        assert consumer.take(1) == 2

    def test_a_restarted_broker_goes_on(self, connect, queue: str, broker: Broker) -> None:  # type: ignore[no-untyped-def]
        send(broker, 4)
        attached(broker).take(0)
        broker.close()
        again = connect()
        consumer = attached(again)
        assert consumer.take(0) == 1
        stage_all(again, consumer, 1)
        assert consumer.settle([1], ["a"])[0].outcomes == {"completed": 4}

    def test_a_queue_deleted_with_an_open_claim(self, broker: Broker, queue: str, clock: ManualClock) -> None:
        send(broker, 4)
        consumer = attached(broker, lease=60)
        consumer.take(0)
        broker.delete_queue("work")
        clock.advance(61)
        broker.create_queue("work")
        assert broker.claims("work") == []
        for table in ("consumers", "claims", "shards", "staged"):
            assert stored(broker, f"SELECT count(*) FROM lazaretto_{table}") == [(0,)]


class TestCrashLoops:
    def read(self, consumer: ClaimConsumer, number: int) -> tuple[int, bool | None]:
        ((_, shard),) = consumer.shards(number - 1, number)
        return shard.token, consumer.start(shard.token, "task")

    def test_a_killer_is_found_alone_and_set_aside(self, broker: Broker, queue: str) -> None:
        broker.update_queue("work", policy=PoisonPolicy())
        send(broker, 10)
        number, restarts, killer = 0, 0, 4
        done: set[int] = set()
        while broker.queue("work").counts.total - broker.queue("work").counts.dead_letter:
            consumer = attached(broker)
            number = consumer.summaries()[-1].number - 1 if consumer.summaries() else 0
            taken = consumer.take(number)
            if taken is None or consumer.summaries(taken - 1, taken)[0].state != "open":
                taken = consumer.take(taken or number)
            assert taken is not None
            ((_, shard),) = consumer.shards(taken - 1, taken)
            careful = consumer.start(shard.token, "task")
            keys = broker._store.read(lambda tx, s=shard: tx.claims.shard_keys(s, 99))  # type: ignore[misc]
            numbers = [sequence_of(k) for k in keys]
            for key, n in zip(keys, numbers, strict=True):
                if careful:
                    consumer.mark(shard.token, key)
                if n == killer:
                    restarts += 1
                    assert restarts <= 8
                    break
            else:
                consumer.stage("a", staged_rows(shard.token, keys, [], {}))
                consumer.settle([taken], ["a"])
                done.update(numbers)
        assert done == {n for n in range(1, 11) if n != killer}
        (dead,) = broker.dead_letters("work")
        assert (dead.sequence_number, dead.reason, dead.counters.worker_deaths) == (
            killer,
            "WorkerCrashed",
            4,
        )
        assert restarts == 4

    @pytest.mark.parametrize("sessions", [0, 40])
    def test_what_nobody_can_read_and_live_is_found_in_fewer_and_fewer_messages(
        self, broker: Broker, queue: str, sessions: int
    ) -> None:
        if sessions:
            broker.delete_queue("work")
            broker.create_queue("work", QueueOptions(requires_session=True))
        killer = send(broker, 2_000, sessions=sessions)[1_233]
        deaths = done = last = 0
        consumer = attached(broker)
        while (number := consumer.take(last, max_rows=1_000)) is not None:
            shards = [shard for _, shard in consumer.shards(number - 1, number)]
            for shard in shards:
                consumer.start(shard.token, "a task")
            keys = [sequence_of(key) for part in keys_of(broker, consumer, number) for key in part]
            if killer in keys:
                # Dead before a task has begun on any message.
                deaths += 1
                assert deaths <= 13
                consumer = attached(broker)
                if broker.claims("work")[0].state == "revoked" or not keys_of(broker, consumer, number):
                    last = number
                continue
            stage_all(broker, consumer, number)
            consumer.settle([number], ["a"])
            done += len(keys)
            last = number
        (letter,) = broker.dead_letters("work")
        assert (letter.sequence_number, letter.reason) == (killer, "WorkerCrashed")
        assert done == 1_999
        assert broker.queue("work").counts.total == 1
        send(broker, 600, sessions=sessions)
        number = consumer.take(last, max_rows=1_000)
        assert number is not None
        assert [len(keys) for keys in keys_of(broker, consumer, number)] == [600]

    def test_when_it_is_over_claims_are_soon_as_large_as_before(self, broker: Broker, queue: str) -> None:
        send(broker, 100)
        last = 0
        consumer = attached(broker)
        while consumer.take(last) is not None and broker.claims("work")[0].rows > 1:
            # Whoever reads goes down with it, whatever it reads: a deployment that is broken.
            for _, shard in consumer.shards(last, last + 1):
                consumer.start(shard.token, "a task")
            consumer = attached(broker)
            last = last if consumer.shards(last, last + 1) else last + 1
        sizes = []
        while (number := consumer.take(last)) is not None:
            stage_all(broker, consumer, number)
            sizes.append(consumer.settle([number], ["a"])[0].rows)
            last = number
        assert sizes == [1, 2, 4, 8, 16, 32, 37]

    def test_two_marks_make_suspects_that_nobody_is_charged_for(self, broker: Broker, queue: str) -> None:
        send(broker, 4)
        consumer = attached(broker)
        consumer.take(0, shards=2)
        for _, shard in consumer.shards(0, 1):
            consumer.start(shard.token, "task")
            consumer.mark(shard.token, shard.first)
        attached(broker)
        counts = broker.queue("work").counts
        assert (counts.suspect, counts.locked) == (2, 2)
        assert {m.delivery_count for m in broker.peek("work")} == {0}

    def test_a_second_attempt_of_a_task_blames_what_the_first_worked_on(
        self, broker: Broker, queue: str
    ) -> None:
        send(broker, 4)
        consumer = attached(broker)
        consumer.take(0)
        token, careful = self.read(consumer, 1)
        assert careful is False
        token, careful = self.read(consumer, 1)
        assert careful is True
        (keys,) = keys_of(broker, consumer, 1)
        consumer.mark(token, keys[2])
        self.read(consumer, 1)
        assert keys_of(broker, consumer, 1) == [[keys[0], keys[1], keys[3]]]
        assert broker.events(0, kind="killer_found")[0].detail["deaths"] == 2

    def task(self, broker: Broker, consumer: ClaimConsumer, number: int) -> ClaimConsumer:
        """Return what a task of a driver has, under its own number."""
        return ClaimConsumer(broker._store, "work", consumer.name, epoch=consumer.epoch, task=number)

    def test_tasks_that_were_cancelled_have_died_of_nothing_and_note_nothing_more(
        self, broker: Broker, queue: str, clock: ManualClock
    ) -> None:
        send(broker, 4)
        driver = attached(broker)
        driver.take(0, shards=2)
        one, two = (shard for _, shard in driver.shards(0, 1))
        for shard in (one, two):
            # Each was read before by one that died, so that a message which kills is charged for both.
            assert self.task(broker, driver, 5).start(shard.token, "task") is False
        cancelled, died = self.task(broker, driver, 6), self.task(broker, driver, 7)
        for task, shard in ((cancelled, one), (died, two)):
            assert task.start(shard.token, "task") is True
            task.mark(shard.token, shard.last)
        driver.note_cancellation(7)
        # It goes on for a while.
        cancelled.mark(one.token, one.first)
        assert [(s.reads, s.started) for _, s in driver.shards(0, 1)] == [(1, None), (2, two.last)]
        for shard in (one, two):
            self.task(broker, driver, 8).start(shard.token, "task")
        (found,) = broker.events(0, kind="killer_found")
        assert (found.sequence_number, found.detail["deaths"]) == (sequence_of(two.last), 2)
        # Nor does it take away what the next one notes.
        self.task(broker, driver, 8).mark(one.token, one.first)
        cancelled.mark(one.token, None)
        cancelled.note_error(one.token)
        assert driver.shards(0, 1)[0][1].started == one.first

    def test_a_claim_whose_tasks_were_cancelled_ends_without_a_charge(
        self, broker: Broker, queue: str, clock: ManualClock
    ) -> None:
        send(broker, 4)
        driver = attached(broker, lease=60)
        driver.take(0)
        self.read(driver, 1)
        driver.note_cancellation()
        clock.advance(61)
        attached(broker)
        assert {m.delivery_count for m in broker.peek("work", 9)} == {0}

    def test_a_task_that_ends_with_an_error_was_not_cancelled(self, broker: Broker, queue: str) -> None:
        send(broker, 64)
        driver = attached(broker)
        driver.take(0)
        for _ in range(3):
            token, _ = self.read(driver, 1)
            driver.note_error(token)
            driver.note_cancellation()
        # Its claim, which nobody can read, comes in smaller ones.
        attached(broker)
        assert broker.claims("work")[0].state == "revoked"

    def test_what_a_task_of_an_earlier_driver_goes_on_to_is_not_blamed(
        self, broker: Broker, queue: str
    ) -> None:
        send(broker, 4)
        first = attached(broker)
        first.take(0)
        for _ in range(2):
            # The second reader goes one message at a time.
            token, careful = self.read(first, 1)
        assert careful is True
        ((one, two, *_),) = keys_of(broker, first, 1)
        first.mark(token, one)
        second = attached(broker)
        with pytest.raises(ClaimFenced):
            first.mark(token, two)
        self.read(second, 1)
        assert broker.events(0, kind="killer_found") == []
        (suspect,) = (m for m in broker.peek("work", 9) if m.state is MessageState.SUSPECT)
        assert suspect.key == one
        # Nor is the note of what the later driver's task is at taken away.
        second.mark(token, two)
        with pytest.raises(ClaimFenced):
            first.mark(token, None)
        ((_, shard),) = second.shards(0, 1)
        assert shard.started == two


class TestOutbox:
    """What the tasks of a writer have prepared, and its commit sends."""

    def write(self, broker: Broker, batch: int, body: bytes) -> int:
        """Stage a batch of one message and send it, as a query's micro-batch."""
        store, path, stage = broker._store, EntityPath.parse("out"), f"{batch} {body!r}"
        store.run(StageMessages(path, stage, [prepare(Message(body))]))
        try:
            return store.run(SendStaged(path, [stage], "query", batch))
        except NotAllowed:
            store.run(ForgetStaged(path, [stage]))
            raise

    def test_a_batch_that_is_repeated_is_sent_once(self, broker: Broker, queue: str) -> None:
        sent = [self.write(broker, batch, b"%d" % batch) for batch in (0, 0, 1, 2, 2, 4)]
        assert sent == [1, 0, 1, 1, 0, 1]
        assert [m.body for m in broker.peek("out", 9)] == [b"0", b"1", b"2", b"4"]
        assert stored(broker, "SELECT count(*) FROM lazaretto_outbox") == [(0,)]

    def test_rows_of_a_query_whose_checkpoint_is_older_are_not_taken_for_sent(
        self, broker: Broker, queue: str
    ) -> None:
        for batch in range(8):
            self.write(broker, batch, b"%d" % batch)
        with pytest.raises(NotAllowed, match=r"expected micro-batch 7 again.*got 4: its checkpoint is older"):
            self.write(broker, 4, b"new")
        assert [m.body for m in broker.peek("out", 20)] == [b"%d" % batch for batch in range(8)]
        assert stored(broker, "SELECT count(*) FROM lazaretto_outbox") == [(0,)]


class ForgetShards(Operation[None]):
    """Forget the shards of a claim, as nothing does."""

    def run(self, tx: Transaction) -> None:
        queue = require_queue(tx, EntityPath.parse("work"))
        (claim,) = tx.claims.latest(queue.queue_id, 1)
        tx.context.run("delete_shards", (claim.token,))


class TestRanges:
    """Fresh messages of a claim are locked by ranges: rows stay as they are until a lock must be there."""

    def raw(self, broker: Broker) -> tuple[list[int], int]:
        """Return the states of all messages as they are stored, and how many ranges there are."""
        states = stored(broker, "SELECT state FROM lazaretto_messages ORDER BY key")
        ((ranges,),) = stored(broker, "SELECT count(*) FROM lazaretto_claimed_ranges")
        return [state for (state,) in states], ranges

    def test_taking_touches_no_message(self, broker: Broker, queue: str) -> None:
        send(broker, 10)
        consumer = attached(broker)
        consumer.take(0, max_rows=8, shards=2)
        assert self.raw(broker) == ([FRESH] * 10, 2)
        assert broker.queue("work").counts.locked == 8
        shown = broker.peek("work", 10)
        assert [m.state for m in shown] == [MessageState.LOCKED] * 8 + [MessageState.ACTIVE] * 2
        assert broker.check() == []
        stage_all(broker, consumer, 1)
        (summary,) = consumer.settle([1], ["a"])
        assert summary.outcomes == {"completed": 8}
        assert self.raw(broker) == ([FRESH] * 2, 0)
        assert [m.sequence_number for m in broker.receiver("work").receive(5)] == [9, 10]

    def test_exceptions_are_written_down(self, broker: Broker, queue: str) -> None:
        send(broker, 6)
        consumer = attached(broker)
        consumer.take(0)
        ((keys,)) = keys_of(broker, consumer, 1)
        stage_all(broker, consumer, 1, StagedRow(keys[2], "failed", FAILED), StagedRow(keys[4], "deferred"))
        (summary,) = consumer.settle([1], ["a"])
        assert summary.outcomes == {"failed": 1, "deferred": 1, "completed": 4}
        assert self.raw(broker)[1] == 0
        (again,) = broker.receiver("work").receive(5)
        assert (again.sequence_number, again.attempt) == (3, 2)
        (later,) = broker.receiver("work").receive_deferred(5)
        assert later.attempt == 2

    def test_what_looks_at_one_writes_that_one_alone(self, broker: Broker, queue: str) -> None:
        send(broker, 5)
        consumer = attached(broker)
        consumer.take(0)
        with pytest.raises(MessageNotReceivable, match="by a claim"):
            broker.receiver("work").receive_by_number(2)
        assert self.raw(broker) == ([FRESH, LOCKED, FRESH, FRESH, FRESH], 1)
        assert broker.queue("work").counts.locked == 5
        stage_all(broker, consumer, 1)
        assert consumer.settle([1], ["a"])[0].outcomes == {"completed": 5}

    def test_a_time_to_live_stops_while_it_is_locked(
        self, broker: Broker, queue: str, clock: ManualClock
    ) -> None:
        send(broker, 2)
        broker.sender("work").send([Message(b"short", time_to_live=5), Message(b"long")])
        consumer = attached(broker)
        consumer.take(0)
        assert self.raw(broker) == ([FRESH, FRESH, LOCKED, FRESH], 1)
        clock.advance(10)
        assert broker.receiver("work").receive(1) == []
        stage_all(broker, consumer, 1)
        assert consumer.settle([1], ["a"])[0].outcomes == {"completed": 4}

    def test_another_process_passes_over_them(self, broker: Broker, queue: str, connect: Connect) -> None:
        other = connect()
        send(broker, 3)
        (first,) = other.receiver("work").receive(1)
        consumer = attached(broker)
        consumer.take(0)
        send(broker, 1)
        assert [m.sequence_number for m in other.receiver("work").receive(5)] == [4]
        # A process that begins now has to find its place, too.
        assert connect().receiver("work").receive(5) == []
        consumer.revoke(1)
        assert [m.sequence_number for m in other.receiver("work").receive(5)] == [2, 3]
        assert first.sequence_number == 1

    def test_a_deleted_queue_leaves_none(self, broker: Broker, queue: str) -> None:
        send(broker, 3)
        attached(broker).take(0)
        broker.delete_queue("work")
        assert self.raw(broker)[1] == 0
        assert broker.check() == []

    def test_a_range_of_no_claim_is_a_problem(self, broker: Broker, queue: str) -> None:
        send(broker, 3)
        attached(broker).take(0)
        broker._store.run(ForgetShards())
        assert broker.check() == ["ranges of no claim: 1"]


class TestRemoving:
    """Large claims are settled in one commit, and what they have completed is removed by later ones."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(settle_claims, "_LARGE", 3)
        monkeypatch.setattr(end_claims, "_AT_ONCE", 4)

    def settled(self, broker: Broker, count: int = 20, shards: int = 2) -> ClaimConsumer:
        """Return a consumer with a claim that is settled, and keeps what it has completed."""
        send(broker, count)
        consumer = attached(broker)
        consumer.take(0, shards=shards)
        ((first, second, *_), *_) = keys_of(broker, consumer, 1)
        failed = [StagedRow(first, "failed", FAILED), StagedRow(second, "dead_lettered")]
        stage_all(broker, consumer, 1, *failed)
        (summary,) = consumer.settle([1], ["a"], keeps=True)
        assert summary.outcomes == {"failed": 1, "dead_lettered": 1, "completed": count - 2}
        return consumer

    def test_they_stay_locked_until_then(self, broker: Broker, queue: str, connect: Connect) -> None:
        consumer = self.settled(broker)
        counts = broker.queue("work").counts
        assert (counts.active, counts.locked, counts.dead_letter) == (1, 18, 1)
        assert [m.state for m in broker.peek("work", 30)] == [MessageState.ACTIVE] + [
            MessageState.LOCKED
        ] * 18
        send(broker, 1)
        assert [m.sequence_number for m in connect().receiver("work").receive(9)] == [1, 21]
        with pytest.raises(MessageNotReceivable, match="by a claim"):
            broker.receiver("work").receive_by_number(7)
        assert (consumer.lag().messages, consumer.take(1), broker.check()) == (2, None, [])
        store = broker._store
        left: list[int] = []
        any_left = True
        while any_left:
            any_left = store.run(end_claims.RemoveCompleted(consumer.path, "job"))
            left.append(broker.queue("work").counts.locked - 2)
            assert broker.check() == []
        assert left == [14, 10, 6, 2, 0]
        assert broker.claims("work")[0].lease_until is None
        assert stored(broker, "SELECT count(*) FROM lazaretto_claimed_ranges") == [(0,)]
        assert [m.sequence_number for m in broker.peek("work", 9)] == [1, 21]
        assert broker.rates("work")[-1].completed == 18

    def test_what_came_too_late_changes_nothing(self, broker: Broker, queue: str) -> None:
        send(broker, 8)
        consumer = attached(broker)
        consumer.take(0)
        ((_, shard),) = consumer.shards(0, 1)
        stage_all(broker, consumer, 1)
        (summary,) = consumer.settle([1], ["a"], keeps=True)
        assert consumer.start(shard.token, "late") is None
        consumer.stage("b", staged_rows(shard.token, [], [], {}))
        assert consumer.settle([1], ["b"]) == [summary]
        assert consumer.revoke() == 0
        assert broker.queue("work").counts.total == 0

    @pytest.mark.parametrize("comes", ["a driver", "the time"])
    def test_others_do_it_if_the_driver_dies(
        self, broker: Broker, queue: str, clock: ManualClock, connect: Connect, comes: str
    ) -> None:
        self.settled(broker)
        other = connect()
        if comes == "a driver":
            attached(other)
        else:
            clock.advance(29)
            assert other.receiver("work").receive(9)[0].sequence_number == 1
            assert other.queue("work").counts.locked == 19
            clock.advance(2)
        while other._store.run(Sweep()):
            pass
        assert [m.sequence_number for m in other.peek("work", 9)] == [1]
        assert stored(other, "SELECT count(*) FROM lazaretto_claimed_ranges") == [(0,)]
        assert other.check() == []

    def test_it_is_trimmed_when_all_are_removed(self, broker: Broker, queue: str) -> None:
        consumer = self.settled(broker)
        for left in (1, 0):
            consumer.trim(1)
            assert len(broker.claims("work")) == left
            consumer.remove_completed()

    def test_a_deleted_queue_leaves_none(self, broker: Broker, queue: str, clock: ManualClock) -> None:
        consumer = self.settled(broker)
        broker.delete_queue("work")
        with pytest.raises(EntityNotFound):
            consumer.remove_completed()
        clock.advance(60)
        assert (broker._store.run(Sweep()), broker.check()) == (0, [])

    def test_a_copy_has_none(self, broker: Broker, queue: str, url: str, tmp_path: Path) -> None:
        self.settled(broker)
        target = str(tmp_path / "copy.db")
        copy_store(url, target)
        with lazaretto.connect(target) as copied:
            assert [m.sequence_number for m in copied.peek("work", 9)] == [1]
            assert (copied.queue("work").counts.total, copied.check()) == (2, [])

    def test_samples_and_large_bodies(self, broker: Broker, queue: str) -> None:
        broker.update_queue("work", kept_samples=10)
        send(broker, 6, body=b"y" * 200_000)
        consumer = attached(broker)
        consumer.take(0)
        with pytest.raises(MessageNotReceivable):
            # It is locked by itself now, and goes all the same.
            broker.receiver("work").receive_by_number(3)
        stage_all(broker, consumer, 1)
        consumer.settle([1], ["a"])
        assert stored(broker, "SELECT count(*) FROM lazaretto_bodies") == [(0,)]
        assert (broker.queue("work").counts.total, broker.check()) == (0, [])
        assert send(broker, 1) == [7]

    def test_how_far_it_is_behind_meanwhile(
        self, broker: Broker, queue: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        consumer = self.settled(broker)
        assert not consumer.is_followed()
        broker.receiver("work").complete(broker.receiver("work").receive(1))
        clock.advance(5)
        send(broker, 7)
        clock.advance(3)
        lags, any_left = [consumer.lag()], True
        while any_left:
            any_left = broker._store.run(end_claims.RemoveCompleted(consumer.path, "job"))
            lags.append(consumer.lag())
        assert lags == [(7, 3.0)] * len(lags)
        assert len(lags) == 6
        monkeypatch.setattr(end_claims, "_FEW_KEPT", 1)
        send(broker, 20)
        consumer.take(1)
        stage_all(broker, consumer, 2)
        consumer.settle([2], ["a"], keeps=True)
        send(broker, 4)
        assert (consumer.lag().messages, consumer.is_followed()) == (4, True)

    @pytest.mark.parametrize("partitions", [1, 3])
    def test_no_number_is_given_again(
        self, broker: Broker, clock: ManualClock, connect: Connect, partitions: int
    ) -> None:
        """Some were delivered before, in partitions of which no range is locked."""
        broker.create_queue("work", QueueOptions(partitions=partitions))
        keys = [f"k{n}" for n in range(12)]
        broker.sender("work").send([Message(b"x", partition_key=key) for key in keys * 3])
        receiver = broker.receiver("work")
        receiver.abandon(receiver.receive(100))
        broker.sender("work").send([Message(b"x", partition_key=keys[0])] * 4)
        last = {m.partition_key: m.sequence_number for m in broker.peek("work", 100)}
        consumer = attached(broker)
        consumer.take(0)
        stage_all(broker, consumer, 1)
        consumer.settle([1], ["a"])
        assert broker.queue("work").counts.total == 0
        broker.close()
        again = connect()
        again.sender("work").send([Message(b"x", partition_key=key) for key in keys])
        after = {m.partition_key: m.sequence_number for m in again.peek("work", 100)}
        assert [key for key in keys if after[key] <= last[key]] == []

    def test_it_is_settled_even_if_they_cannot_be_removed(
        self, broker: Broker, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(consumer: ClaimConsumer) -> None:
            raise StoreUnavailable("away")

        send(broker, 5)
        consumer = attached(broker)
        consumer.take(0)
        stage_all(broker, consumer, 1)
        monkeypatch.setattr(ClaimConsumer, "remove_completed", fail)
        assert consumer.settle([1], ["a"])[0].state == "settled"

    @pytest.mark.parametrize(
        "why", ["few", "some are not staged", "read twice", "in sessions", "of limited size"]
    )
    def test_others_are_removed_at_once(self, broker: Broker, why: str) -> None:
        sessions = 2 if why == "in sessions" else 0
        size = 1 << 30 if why == "of limited size" else None
        broker.create_queue("work", QueueOptions(requires_session=bool(sessions), max_size=size))
        send(broker, 2 if why == "few" else 6, sessions=sessions)
        consumer = attached(broker)
        consumer.take(0)
        ((_, shard),) = consumer.shards(0, 1)
        ((one, *others),) = keys_of(broker, consumer, 1)
        for _ in range(2 if why == "read twice" else 1):
            consumer.start(shard.token, "w")
        completed = others if why == "some are not staged" else [one, *others]
        consumer.stage("a", staged_rows(shard.token, completed, [], {}))
        consumer.settle([1], ["a"], keeps=True)
        assert broker.queue("work").counts.locked == 0
        assert broker.queue("work").counts.total == (why == "some are not staged")
        assert broker.check() == []


@pytest.mark.stores("postgres")
def test_nobody_locks_ranges_while_older_workers_may_be_left(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for taken, since in ((LOCKED, 1_000), (FRESH, schema.CLAIMED_RANGES)):
        with monkeypatch.context() as patch:
            patch.setattr(served, "CLAIMED_RANGES", since)
            with lazaretto.connect(url) as broker:
                broker.create_queue(f"work{taken}")
                broker.sender(f"work{taken}").send([Message(b"1"), Message(b"2")])
                consumer = ClaimConsumer(broker._store, f"work{taken}", "job")
                consumer.attach()
                consumer.take(0)
                states = stored(broker, "SELECT state FROM lazaretto_messages ORDER BY key DESC LIMIT 2")
                assert states == [(taken,), (taken,)]
                assert broker.queue(f"work{taken}").counts.locked == 2
