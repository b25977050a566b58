"""Helpers for your own tests: a temporary broker, a host run to its end, assertions on dead letters."""

from lazaretto.model.clock import ManualClock
from lazaretto.testing.assertions import assert_dead_letter, assert_no_dead_letters
from lazaretto.testing.brokers import temporary_broker
from lazaretto.testing.hosts import drain

__all__ = ["ManualClock", "assert_dead_letter", "assert_no_dead_letters", "drain", "temporary_broker"]
