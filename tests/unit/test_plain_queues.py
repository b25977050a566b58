"""Plain queues: those where nothing is asked of a message that comes or goes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lazaretto import PoisonPolicy, QueueOptions
from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE, EntityKind, QueueStatus
from lazaretto.store.records.messages import QueueRecord

PLAIN = QueueRecord(1, "work", QueueOptions(), QueueStatus.ACTIVE, None, None, None, 0, 0)
#: What an option is set to so that messages are looked at as they come or go.
SPECIAL: dict[str, Any] = {
    "partitions": 2,
    "max_size": 1_000_000,
    "auto_delete_on_idle": 600.0,
    "forward_to": "elsewhere",
    "forward_dead_lettered_messages_to": "elsewhere",
    "policy": PoisonPolicy(disable_after_rollbacks=3),
    "requires_session": True,
    "requires_duplicate_detection": True,
}
#: Those that say what happens to a message later, or are read wherever they apply.
OTHERS = {
    "lock_duration",
    "default_time_to_live",
    "dead_letter_on_expiration",
    "duplicate_detection_window",
    "max_message_size",
    "dead_letter_policy",
    "breaker",
    "blame_clients",
    "dead_letter_on_filter_errors",
    "kept_samples",
    "annotations",
    # Those of queues with sessions, and of services.
    "on_poison_session",
    "dialogs",
    "retention",
}


@pytest.mark.parametrize("option", SPECIAL)
def test_a_queue_with_a_special_option_is_not_plain(option: str) -> None:
    options = dataclasses.replace(QueueOptions(), **{option: SPECIAL[option]})
    assert PLAIN.plain
    assert not dataclasses.replace(PLAIN, options=options).plain


def test_each_option_is_considered() -> None:
    assert {field.name for field in dataclasses.fields(QueueOptions)} == OTHERS | SPECIAL.keys()


@pytest.mark.parametrize("status", [status for status in QueueStatus if status is not QueueStatus.ACTIVE])
def test_a_queue_that_is_not_active_is_not_plain(status: QueueStatus) -> None:
    assert not dataclasses.replace(PLAIN, status=status).plain


def test_other_entities_are_not_plain() -> None:
    for kind in (EntityKind.TOPIC, EntityKind.SUBSCRIPTION):
        assert not dataclasses.replace(PLAIN, kind=kind).plain
    assert not dataclasses.replace(PLAIN, path=SYSTEM_DEAD_LETTER_QUEUE).plain
    assert not dataclasses.replace(PLAIN, halted_by="{}").plain
