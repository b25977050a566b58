"""Plain queues: those where nothing is asked of a message that comes or goes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lazaretto import PoisonPolicy, QueueOptions
from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE, EntityKind, QueueStatus
from lazaretto.model.options import options_of
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


@pytest.mark.parametrize("option", SPECIAL)
def test_a_queue_with_a_special_option_is_not_plain(option: str) -> None:
    options = dataclasses.replace(QueueOptions(), **{option: SPECIAL[option]})
    assert PLAIN.plain
    assert not dataclasses.replace(PLAIN, options=options).plain


def test_an_option_is_asked_for_each_message_unless_its_declaration_says_otherwise() -> None:
    options = options_of(QueueOptions)
    assert {name for name, one in options.items() if one.per_message} >= SPECIAL.keys() - {"policy"}


@pytest.mark.parametrize("status", [status for status in QueueStatus if status is not QueueStatus.ACTIVE])
def test_a_queue_that_is_not_active_is_not_plain(status: QueueStatus) -> None:
    assert not dataclasses.replace(PLAIN, status=status).plain


def test_other_entities_are_not_plain() -> None:
    for kind in (EntityKind.TOPIC, EntityKind.SUBSCRIPTION):
        assert not dataclasses.replace(PLAIN, kind=kind).plain
    assert not dataclasses.replace(PLAIN, path=SYSTEM_DEAD_LETTER_QUEUE).plain
    assert not dataclasses.replace(PLAIN, halted_by="{}").plain
