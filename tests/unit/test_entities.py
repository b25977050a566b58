"""Paths, subqueues and a queue's options."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lazaretto.errors import InvalidOption, InvalidPath
from lazaretto.model.descriptions import MessageCounts
from lazaretto.model.entities import EntityPath, QueueOptions, Subqueue
from lazaretto.model.policy import Disposition, PoisonPolicy


class TestPaths:
    """What a path addresses."""

    @pytest.mark.parametrize(
        ("path", "queue", "subqueue"),
        [
            ("orders", "orders", Subqueue.MAIN),
            ("shop/orders", "shop/orders", Subqueue.MAIN),
            ("Shop/Orders.2-b_c", "Shop/Orders.2-b_c", Subqueue.MAIN),
            ("orders/$deadletterqueue", "orders", Subqueue.DEAD_LETTER),
            ("orders/$DeadLetterQueue", "orders", Subqueue.DEAD_LETTER),
            ("orders;poison", "orders", Subqueue.DEAD_LETTER),
            ("orders;POISON", "orders", Subqueue.DEAD_LETTER),
            ("orders;retry", "orders", Subqueue.RETRY),
            ("orders/$Transfer/$deadletterqueue", "orders", Subqueue.TRANSFER_DEAD_LETTER),
            ("orders/$transfer/$DeadLetterQueue", "orders", Subqueue.TRANSFER_DEAD_LETTER),
            ("$system/deadletter", "$system/deadletter", Subqueue.MAIN),
            ("$System/DeadLetter;poison", "$System/DeadLetter", Subqueue.DEAD_LETTER),
        ],
    )
    def test_suffixes_and_aliases(self, path: str, queue: str, subqueue: Subqueue) -> None:
        assert EntityPath.parse(path) == (queue, subqueue)

    @pytest.mark.parametrize(
        ("name", "subqueue"),
        [
            ("dead_letter", Subqueue.DEAD_LETTER),
            ("transfer_dead_letter", Subqueue.TRANSFER_DEAD_LETTER),
            ("retry", Subqueue.RETRY),
            (Subqueue.DEAD_LETTER, Subqueue.DEAD_LETTER),
        ],
    )
    def test_a_subqueue_by_name(self, name: str, subqueue: Subqueue) -> None:
        assert EntityPath.parse("orders", name).subqueue is subqueue

    def test_the_same_subqueue_twice_is_no_contradiction(self) -> None:
        assert EntityPath.parse("orders;poison", "dead_letter") == EntityPath.parse("orders;poison")

    def test_two_different_subqueues_are(self) -> None:
        with pytest.raises(InvalidPath, match="already names a subqueue"):
            EntityPath.parse("orders;poison", "retry")

    def test_an_unknown_subqueue(self) -> None:
        with pytest.raises(InvalidPath, match=r"expected subqueue to be one of .* got 'dead'"):
            EntityPath.parse("orders", "dead")

    def test_case_is_kept_and_not_compared(self) -> None:
        path = EntityPath.parse("Shop/Orders")
        assert path.queue == "Shop/Orders"
        assert path.key == EntityPath.parse("sHOP/oRDERS").key

    @pytest.mark.parametrize(
        "path",
        ["orders", "orders/$deadletterqueue", "orders;retry", "orders/$Transfer/$deadletterqueue",
         # As frameworks name the queues of generic and array messages.
         "Ns/Fault--Ping--", "batcheditem__", "_", "-", "-a", "a.", ".a", "..a..", "txt/.-_123",
         "-t-/subscriptions/_s_", "a_;retry", "a-/$deadletterqueue"],
    )  # fmt: skip
    def test_text_parses_back(self, path: str) -> None:
        assert str(EntityPath.parse(path)) == path

    @pytest.mark.parametrize(
        "path",
        ["", "/", "orders/", "/orders", "a//b", ".", "..", "a/../b", "a/.", "a b", "a\nb", "a\n", "ä", "a;b",
         "a$b", ";poison", "$deadletterqueue", "$system/other", "a/$deadletterqueue/$deadletterqueue",
         "a;retry;retry", "subscriptions/audit", "events/subscriptions", "a/subscriptions/b/c",
         "a/subscriptions/b/subscriptions/c", "x" * 261],
    )  # fmt: skip
    def test_refused(self, path: str) -> None:
        with pytest.raises(InvalidPath):
            EntityPath.parse(path)

    def test_the_longest_path(self) -> None:
        assert EntityPath.parse("x" * 260).queue == "x" * 260

    @pytest.mark.parametrize("path", [None, 7, b"orders", ["orders"]])
    def test_other_types(self, path: object) -> None:
        with pytest.raises(InvalidPath, match="expected a path to be text, got"):
            EntityPath.parse(path)  # type: ignore[arg-type]


class TestQueueOptions:
    """A queue's options are checked in one place."""

    def test_durations_are_seconds_or_timedeltas(self) -> None:
        options = QueueOptions(lock_duration=timedelta(minutes=1), default_time_to_live=timedelta(days=1))
        assert (options.lock_duration, options.default_time_to_live) == (60.0, 86_400.0)
        assert options == QueueOptions(lock_duration=60, default_time_to_live=86_400)

    @pytest.mark.parametrize(
        "options",
        [
            {"lock_duration": 0.9},
            {"lock_duration": 86_401},
            {"lock_duration": timedelta(seconds=-5)},
            {"lock_duration": None},
            {"lock_duration": True},
            {"default_time_to_live": 0},
            {"default_time_to_live": float("inf")},
            {"dead_letter_on_expiration": 1},
            {"requires_session": "yes"},
            {"requires_duplicate_detection": None},
            {"duplicate_detection_window": 0.5},
            {"duplicate_detection_window": 7 * 86_400 + 1},
            {"max_message_size": 1023},
            {"max_message_size": 104_857_601},
            {"max_message_size": 2048.0},
            {"policy": "wcf"},
            {"policy": None},
            {"dead_letter_policy": 5},
        ],
        ids=str,
    )
    def test_refusals_say_what_was_expected_and_what_came(self, options: dict[str, object]) -> None:
        (name,) = options
        with pytest.raises(InvalidOption, match=rf"^expected {name} to be .+, got "):
            QueueOptions(**options)  # type: ignore[arg-type]

    def test_a_misspelt_option_gets_a_suggestion(self) -> None:
        with pytest.raises(
            InvalidOption, match=r"'lock_duraton' of QueueOptions; did you mean 'lock_duration'\?"
        ):
            QueueOptions(lock_duraton=3)  # type: ignore[call-arg]

    def test_a_dead_letter_policy_loses_its_cycles(self) -> None:
        policy = PoisonPolicy(max_retry_cycles=3, on_poison=Disposition.DROP, on_invalid=Disposition.DROP)
        kept = QueueOptions(dead_letter_policy=policy).dead_letter_policy
        assert kept is not None
        assert kept.max_retry_cycles == 0

    def test_a_dead_letter_policy_that_moves_is_refused(self) -> None:
        with pytest.raises(InvalidOption, match="got move"):
            QueueOptions(dead_letter_policy=PoisonPolicy())

    @pytest.mark.parametrize("limit", [{"lock_duration": 1}, {"lock_duration": 86_400}])
    def test_the_limits_themselves_are_allowed(self, limit: dict[str, float]) -> None:
        QueueOptions(**limit)  # type: ignore[arg-type]


def test_the_total_of_counts() -> None:
    assert MessageCounts(1, 2, 3, 4, 5, 6, 7).total == 28


@pytest.mark.parametrize(
    "given",
    [[], {"": "x"}, {"a": 1}, {1: "a"}, {"a": None}, {"a": "x" * 5_000}, {"a" * 129: ""}, {"a": "\ud800"}],
)
def test_annotations_are_texts_by_name(given: Any) -> None:
    with pytest.raises(InvalidOption):
        QueueOptions(annotations=given)
    assert QueueOptions(annotations={"team": "é"}).annotations == {"team": "é"}
    assert QueueOptions(annotations={}).annotations is None
