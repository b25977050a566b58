"""The emulator of a Service Bus: namespaces that are made, moved in time and thrown away."""

from __future__ import annotations

from lazaretto.emulator.server import Emulator, EmulatorOptions, open_emulator

__all__ = ["Emulator", "EmulatorOptions", "open_emulator"]
