"""Helpers for your own tests: a temporary broker or Service Bus, a host run to its end, assertions."""

from lazaretto.model.clock import ManualClock
from lazaretto.testing.hosts import assert_dead_letter, assert_no_dead_letters, drain, temporary_broker
from lazaretto.testing.service_bus import LocalEmulator, ServiceBus, service_bus

__all__ = [
    "LocalEmulator",
    "ManualClock",
    "ServiceBus",
    "assert_dead_letter",
    "assert_no_dead_letters",
    "drain",
    "service_bus",
    "temporary_broker",
]
