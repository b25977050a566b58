"""Administration of entities as Service Bus has it: ATOM entries over HTTP."""

from __future__ import annotations

from lazaretto.servicebus.atom.application import Administration

__all__ = ["Administration"]
