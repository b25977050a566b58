"""Runs tests that know nothing of partitions with all queues and topics partitioned."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lazaretto.engine.entities import queues, topics

PARTITIONS = 4

#: Tests of what partitions change: the numbers of messages, their order, and the options of a queue.
NOT_PROMISED = {
    "in one order, though in several sessions or under several ids": (
        "test_duplicates_are_told_apart_by_partition",
        "test_none_is_dropped_as_a_duplicate",
        "test_partitions_tell_duplicates_apart_there",
        "TestSessions::test_by_number",
        "test_within_one_call",
    ),
    "numbers from 1 on, whoever sends": (
        "TestPeekAtASession::test_in_every_state_from_a_number_on",
        "TestSessions::test_a_held_session_is_left_out",
        "TestSessions::test_each_stands_in_one_shard",
        "test_a_queue_made_again_is_another_one",
        "test_closing_one_leaves_the_other",
        "test_cursors_and_numbers_follow",
        "test_their_numbers_are_not_given_again",
        "test_two_brokers_number_one_queue",
    ),
    "options as they were given": (
        "TestOpposites::test_options",
        "test_a_value_is_checked_and_nothing_changes",
        "test_all_options_survive_a_restart",
        "test_an_empty_queue_grows_and_never_uses_a_number_twice",
        "test_created_as_described",
        "test_only_what_is_named_changes",
    ),
}  # fmt: skip


def partition_all(patch: pytest.MonkeyPatch) -> None:
    """Make all queues and topics that this process creates partitioned, but for those that cannot be."""
    for kind in (queues.CreateQueues, topics.CreateTopic, topics.CreateSubscription):
        patch.setattr(kind, "run", _with_partitions(kind.run))


def _with_partitions(run: Any) -> Any:
    def run_partitioned(operation: Any, tx: Any) -> Any:
        options = operation.options
        if options.partitions == 1 and not getattr(options, "dialogs", False):
            operation.options = dataclasses.replace(options, partitions=PARTITIONS)
        return run(operation, tx)

    return run_partitioned


def not_promised(node: str) -> str | None:
    """Return what a test relies on that is not promised with partitions, None if nothing."""
    name = node.partition("[")[0]
    for what, tests in NOT_PROMISED.items():
        if any(name.endswith(f"::{test}") for test in tests):
            return what
    return None
