"""Watches one connection: who says nothing, reads nothing, or talks without effect. Pure."""

from __future__ import annotations

from lazaretto.servicebus.limits import DoorLimits

#: Seconds over which frames without a message are counted.
_SPAN = 1.0


class Watch:
    """Activity of one client. Times are on the monotonic clock."""

    def __init__(self, limits: DoorLimits, now: float) -> None:
        self._limits = limits
        self._opened = False
        self._linked = now
        self._heard = now
        self._received = 0
        self._read = 0
        self._moved = now
        self._flows = 0
        self._total = 0
        self._span = now

    def take(self, size: int, flows: int, now: float, *, opened: bool) -> float:
        """Note bytes that came, and frames without a message so far. Return for how long to read nothing."""
        self._heard = now
        self._received += size
        self._total = flows
        if opened and not self._opened:
            self._opened, self._linked = True, now
        if now - self._span >= _SPAN:
            self._span, self._flows = now, flows
        return max(0.0, self._span + _SPAN - now) if flows - self._flows > self._limits.flows else 0.0

    @property
    def overfull(self) -> bool:
        """Whether the client has sent more than it may before it has logged in."""
        return self._received > self._limits.opening_size or self._total > self._limits.opening_frames

    def overdue(self, now: float, *, linked: bool, read: int, waiting: int) -> str | None:
        """Return what the client should have done by now; None: nothing.

        `linked`: whether it has links. `read`: the bytes that it has read so far. `waiting`: those that wait.
        """
        limits = self._limits
        if linked:
            self._linked = now
        if not waiting or read != self._read:
            self._read, self._moved = read, now
        for since, allowed, what in (
            (self._heard, limits.idle_seconds, "was inactive"),
            (self._linked, limits.linking_seconds, "had no link"),
            (self._moved, limits.stalled_seconds, "read nothing"),
        ):
            if now - since > allowed:
                return f"the connection {what} for more than the allowed {allowed * 1000:.0f} milliseconds"
        return None
