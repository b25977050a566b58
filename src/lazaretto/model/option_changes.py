"""Options that can change later. Written by tests/gates/test_option_tables.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.checks import GivenDuration
from lazaretto.model.entities import GivenPoisonSession
from lazaretto.model.policy import PoisonPolicy


class TopicChanges(TypedDict, total=False):
    """Options of a topic that can change, as in TopicOptions."""

    default_time_to_live: GivenDuration | None
    duplicate_detection_window: GivenDuration
    max_message_size: int
    max_size: int | None
    auto_delete_on_idle: GivenDuration | None
    partitions: int
    annotations: Mapping[str, str] | None


class QueueChanges(TopicChanges, total=False):
    """Options of a queue that can change, as in QueueOptions."""

    lock_duration: GivenDuration
    dead_letter_on_expiration: bool
    policy: PoisonPolicy
    dead_letter_policy: PoisonPolicy | None
    breaker: BreakerPolicy | None
    blame_clients: bool
    on_poison_session: GivenPoisonSession
    dead_letter_on_filter_errors: bool
    forward_to: str | None
    forward_dead_lettered_messages_to: str | None
    kept_samples: int
    retention: bool
