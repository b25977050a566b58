"""The poison policy: which verdict falls at which failure."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazaretto.errors import InvalidOption
from lazaretto.model.policy import (
    UNLIMITED,
    Backoff,
    Counters,
    Disposition,
    Final,
    Growth,
    Outcome,
    PoisonPolicy,
    Retry,
    Verdict,
    charge,
    decide,
)


def _drive(policy: PoisonPolicy, outcome: Outcome = Outcome.FAILED) -> list[Verdict]:
    """Return the verdicts on a message that always fails, up to the final one."""
    counters, verdicts = Counters(), list[Verdict]()
    while not verdicts or isinstance(verdicts[-1], Retry):
        counters = charge(counters._replace(deliveries=counters.deliveries + 1), outcome)
        verdicts.append(verdict := decide(policy, counters, outcome))
        if isinstance(verdict, Retry) and verdict.new_cycle:
            counters = counters._replace(cycle=counters.cycle + 1, cycle_attempts=0)
    return verdicts


class TestTotalAttempts:
    """(R + 1)(C + 1) attempts, whatever R and C."""

    @pytest.mark.parametrize("cycles", [0, 1, 2, 3, 5])
    @pytest.mark.parametrize("retries", [0, 1, 2, 5, 9])
    def test_over_a_grid(self, retries: int, cycles: int) -> None:
        policy = PoisonPolicy(receive_retry_count=retries, max_retry_cycles=cycles)
        verdicts = _drive(policy)
        assert len(verdicts) == policy.total_attempts == (retries + 1) * (cycles + 1)
        new_cycles = [i + 1 for i, v in enumerate(verdicts) if isinstance(v, Retry) and v.new_cycle]
        assert new_cycles == [(retries + 1) * n for n in range(1, cycles + 1)]

    def test_lock_expiries_and_worker_deaths_count_like_failures(self) -> None:
        policy = PoisonPolicy(receive_retry_count=2, max_retry_cycles=1, max_worker_deaths=None)
        assert len(_drive(policy, Outcome.LOCK_EXPIRED)) == len(_drive(policy, Outcome.LOST)) == 6

    def test_the_final_verdict_names_the_reason_and_the_count(self) -> None:
        verdict = _drive(PoisonPolicy.service_bus())[-1]
        assert verdict == Final(
            Disposition.MOVE,
            "MaxDeliveryCountExceeded",
            "Message could not be consumed after 10 delivery attempts.",
        )


def _wcf(retries: int, cycles: int) -> PoisonPolicy:
    return PoisonPolicy(
        receive_retry_count=retries, max_retry_cycles=cycles, on_poison=Disposition.FAULT, retry_cycle_delay=7
    )


class TestMsmqMoveCounts:
    """WCF decides by MSMQ's counters, AbortCount and MoveCount; the same verdicts fall here."""

    @pytest.mark.parametrize(
        ("retries", "cycles", "moves", "final"),
        [(5, 2, 0, False), (5, 2, 1, False), (5, 2, 2, False), (5, 2, 3, False), (5, 2, 4, True),
         (5, 2, 5, True), (5, 2, 6, True), (0, 1, 0, False), (0, 1, 2, True)],
    )  # fmt: skip
    def test_transactional_receive(self, retries: int, cycles: int, moves: int, final: bool) -> None:
        """AbortCount above R: one cycle is two moves, to `;retry` and back."""
        counters = Counters(cycle_attempts=retries + 1, cycle=moves // 2, moves=moves)
        verdict = decide(_wcf(retries, cycles), counters, Outcome.FAILED)
        assert isinstance(verdict, Final) is final
        if not final:
            assert verdict == Retry(7.0, new_cycle=True)

    @pytest.mark.parametrize(
        ("retries", "cycles", "falls"),
        [(5, 2, [(13, "retry"), (28, "retry"), (43, "final")]), (0, 1, [(3, "retry"), (8, "final")])],
    )
    def test_peek_lock(self, retries: int, cycles: int, falls: list[tuple[int, str]]) -> None:
        """Each try moves the message to the lock subqueue and back; the check is at the next receive."""
        moves, seen = 0, []
        for verdict in _drive(_wcf(retries, cycles)):
            moves += 2
            if isinstance(verdict, Final):
                seen.append((moves + 1, "final"))
            elif verdict.new_cycle:
                seen.append((moves + 1, "retry"))
                # From the lock subqueue to ";retry", and from there back to the queue.
                moves += 1 + 2
        assert seen == falls


def test_track_message_ends_the_conversation_at_the_fourth_failure() -> None:
    """The stored procedure inserts 1, adds 1 at once, and ends when it finds a count above 3."""
    count: int | None = None
    failures = 0
    while True:
        failures += 1
        if count is None:
            count = 1
        elif count > 3:
            break
        count += 1
    assert failures == len(_drive(PoisonPolicy(receive_retry_count=3))) == 4


class TestPresets:
    """The policies of the systems Lazaretto follows."""

    @pytest.mark.parametrize(
        ("policy", "attempts", "disposition"),
        [
            (PoisonPolicy(), 10, Disposition.MOVE),
            (PoisonPolicy.service_bus(), 10, Disposition.MOVE),
            (PoisonPolicy.service_bus(1), 1, Disposition.MOVE),
            (PoisonPolicy.wcf(), 18, Disposition.FAULT),
            (PoisonPolicy.wcf(Disposition.MOVE), 18, Disposition.MOVE),
            (PoisonPolicy.wcf_msmq3(), 6, Disposition.FAULT),
            (PoisonPolicy.wcf_msmq3(Disposition.DROP), 6, Disposition.DROP),
            (PoisonPolicy.nservicebus(), 24, Disposition.MOVE),
        ],
    )
    def test_attempts_and_disposition(
        self, policy: PoisonPolicy, attempts: int, disposition: Disposition
    ) -> None:
        verdicts = _drive(policy)
        assert len(verdicts) == attempts
        final = verdicts[-1]
        assert isinstance(final, Final)
        assert final.disposition is disposition

    def test_the_default_is_service_bus(self) -> None:
        assert PoisonPolicy() == PoisonPolicy.service_bus()

    def test_nservicebus_waits_ten_seconds_longer_each_time(self) -> None:
        delays = [v.delay for v in _drive(PoisonPolicy.nservicebus()) if isinstance(v, Retry) and v.new_cycle]
        assert delays == [10, 20, 30]

    def test_wcf_waits_half_an_hour(self) -> None:
        delays = [v.delay for v in _drive(PoisonPolicy.wcf()) if isinstance(v, Retry) and v.new_cycle]
        assert delays == [1800, 1800]

    def test_service_broker_counts_rollbacks_of_the_queue_alone(self) -> None:
        policy = PoisonPolicy.service_broker()
        assert policy.disable_after_rollbacks == 5
        assert decide(policy, Counters(cycle_attempts=1_000_000), Outcome.FAILED) == Retry()

    @pytest.mark.parametrize("disposition", [Disposition.MOVE, Disposition.REJECT, "move"])
    def test_msmq3_has_nowhere_to_move_or_reject_to(self, disposition: Disposition) -> None:
        with pytest.raises(InvalidOption, match="fault or drop"):
            PoisonPolicy.wcf_msmq3(disposition)


class TestOutcomes:
    """What each outcome adds to which counter."""

    @pytest.mark.parametrize(
        ("outcome", "counted"),
        [
            (Outcome.COMPLETED, {}),
            (Outcome.FAILED, {"failures": 1, "delivery_count": 1, "cycle_attempts": 1}),
            (Outcome.INVALID, {"failures": 1}),
            (Outcome.LOST, {"worker_deaths": 1, "delivery_count": 1, "cycle_attempts": 1}),
            (Outcome.LOCK_EXPIRED, {"lock_expiries": 1, "delivery_count": 1, "cycle_attempts": 1}),
            (Outcome.DEFERRED, {"delivery_count": 1, "cycle_attempts": 1}),
            (Outcome.RELEASED, {}),
            (Outcome.DEAD_LETTERED, {}),
        ],
    )
    def test_charges(self, outcome: Outcome, counted: dict[str, int]) -> None:
        assert charge(Counters(), outcome) == Counters()._replace(**counted)

    def test_every_outcome_is_charged_for(self) -> None:
        for outcome in Outcome:
            charge(Counters(), outcome)

    @given(st.lists(st.sampled_from(list(Outcome)), max_size=30))
    def test_counters_never_fall(self, outcomes: list[Outcome]) -> None:
        counters = Counters()
        for outcome in outcomes:
            after = charge(counters, outcome)
            assert all(new >= old for new, old in zip(after, counters, strict=True))
            counters = after

    def test_invalid_is_final_at_once(self) -> None:
        policy = PoisonPolicy(on_poison=Disposition.FAULT, on_invalid=Disposition.DROP, max_retry_cycles=5)
        verdict = decide(policy, Counters(failures=1), Outcome.INVALID)
        assert verdict == Final(Disposition.DROP, "InvalidMessage", "The message can never be processed.")

    def test_worker_deaths_have_a_limit_of_their_own(self) -> None:
        policy = PoisonPolicy(receive_retry_count=9, max_worker_deaths=2)
        assert isinstance(decide(policy, Counters(worker_deaths=1, cycle_attempts=1), Outcome.LOST), Retry)
        verdict = decide(policy, Counters(worker_deaths=2, cycle_attempts=2), Outcome.LOST)
        assert verdict == Final(
            Disposition.MOVE, "WorkerCrashed", "2 workers died while holding the message."
        )


class TestBackoff:
    """The delay before each retry cycle."""

    @pytest.mark.parametrize(
        ("growth", "delays"),
        [
            (Growth.CONSTANT, [3, 3, 3, 3]),
            (Growth.LINEAR, [3, 6, 9, 12]),
            (Growth.EXPONENTIAL, [3, 6, 12, 24]),
        ],
    )
    def test_growth(self, growth: Growth, delays: list[float]) -> None:
        backoff = Backoff(initial=3, growth=growth)
        assert [backoff.delay(cycle, 0.5) for cycle in (1, 2, 3, 4)] == delays

    def test_the_cap(self) -> None:
        assert [Backoff(initial=3, maximum=10).delay(c, 0) for c in (1, 2, 3, 4, 5000)] == [3, 6, 10, 10, 10]

    def test_jitter_is_a_share_of_the_delay(self) -> None:
        backoff = Backoff(initial=10, growth=Growth.CONSTANT, jitter=0.25)
        assert [backoff.delay(1, draw) for draw in (0, 0.5, 1)] == [10, 8.75, 7.5]

    @given(
        initial=st.floats(0, 1e6),
        growth=st.sampled_from(list(Growth)),
        maximum=st.floats(0, 1e6),
        jitter=st.floats(0, 1),
        cycle=st.integers(1, UNLIMITED),
        draw=st.floats(0, 1),
    )
    def test_bounds(
        self, initial: float, growth: Growth, maximum: float, jitter: float, cycle: int, draw: float
    ) -> None:
        backoff = Backoff(initial=initial, growth=growth, maximum=maximum, jitter=jitter)
        whole = backoff.delay(cycle, 0)
        assert 0 <= backoff.delay(cycle, draw) <= whole <= maximum
        assert backoff.delay(cycle, draw) >= whole * (1 - jitter) * (1 - 1e-9)
        assert backoff.delay(cycle + 1, 0) >= whole

    def test_a_policy_draws_from_it(self) -> None:
        policy = PoisonPolicy(
            receive_retry_count=0, max_retry_cycles=3, retry_cycle_delay=Backoff(initial=4, jitter=0.5)
        )
        counters = Counters(cycle_attempts=1, cycle=1)
        assert decide(policy, counters, Outcome.FAILED, 1.0) == Retry(4.0, new_cycle=True)
        assert decide(policy, counters, Outcome.FAILED, 0.0) == Retry(8.0, new_cycle=True)


class TestForDeadLetters:
    """A policy as it applies to reading a dead-letter subqueue."""

    def test_cycles_are_ignored(self) -> None:
        policy = PoisonPolicy(
            receive_retry_count=3,
            max_retry_cycles=7,
            on_poison=Disposition.DROP,
            on_invalid=Disposition.FAULT,
        )
        assert policy.for_dead_letters() == dataclasses.replace(policy, max_retry_cycles=0)
        assert policy.for_dead_letters().total_attempts == 4

    @pytest.mark.parametrize("name", ["on_poison", "on_invalid"])
    def test_move_is_refused_by_name(self, name: str) -> None:
        changes = {"on_poison": Disposition.DROP, "on_invalid": Disposition.DROP, name: Disposition.MOVE}
        with pytest.raises(InvalidOption, match=f"expected {name} of a dead-letter policy .* got move"):
            PoisonPolicy(**changes).for_dead_letters()  # type: ignore[arg-type]


class TestOptions:
    """What a policy refuses."""

    def test_a_disposition_may_be_named(self) -> None:
        assert PoisonPolicy(on_poison="drop").on_poison is Disposition.DROP

    @pytest.mark.parametrize(
        "options",
        [
            {"receive_retry_count": -1},
            {"receive_retry_count": 1.5},
            {"receive_retry_count": True},
            {"receive_retry_count": UNLIMITED + 1},
            {"max_retry_cycles": "2"},
            {"retry_cycle_delay": -0.1},
            {"retry_cycle_delay": float("nan")},
            {"retry_cycle_delay": None},
            {"on_poison": "bury"},
            {"on_invalid": None},
            {"max_worker_deaths": 0},
            {"disable_after_rollbacks": 0},
        ],
        ids=str,
    )
    def test_refusals_say_what_was_expected_and_what_came(self, options: dict[str, object]) -> None:
        (name,) = options
        with pytest.raises(InvalidOption, match=rf"^expected {name} to be .+, got "):
            PoisonPolicy(**options)  # type: ignore[arg-type]

    def test_a_misspelt_option_gets_a_suggestion(self) -> None:
        with pytest.raises(
            InvalidOption, match=r"'receive_retries' of PoisonPolicy; did you mean 'receive_retry_count'\?"
        ):
            PoisonPolicy(receive_retries=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("outcome", Outcome)
def test_an_outcome_is_found_by_the_name_it_is_stored_as(outcome: Outcome) -> None:
    assert Outcome(outcome.stored) is outcome


def test_workers_of_earlier_versions_know_the_stored_name_of_a_lock_that_expired() -> None:
    assert Outcome.LOCK_EXPIRED.stored == "expired"
