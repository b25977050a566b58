"""Transfer frames that a session sends, as the peer's window allows."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from lazaretto.amqp.carrier import Carrier
from lazaretto.amqp.windows import Windows

if TYPE_CHECKING:
    from lazaretto.amqp.link import Link


class Outgoing:
    """Frames go out in the order in which they came; those that do not fit the window wait."""

    def __init__(self, carrier: Carrier, windows: Windows) -> None:
        self._carrier = carrier
        self._windows = windows
        self._waiting: collections.deque[tuple[Link, bytes]] = collections.deque()

    @property
    def waits(self) -> bool:
        """Whether frames wait for the peer's window."""
        return bool(self._waiting)

    def send(self, link: Link, frame: bytes) -> None:
        """Send a frame of a link, now or when the window opens."""
        if self._waiting or not self._windows.take():
            self._waiting.append((link, frame))
        else:
            self._carrier.write(frame)

    def flush(self) -> None:
        """Send what waits, as far as the window allows."""
        while self._waiting and self._windows.take():
            self._carrier.write(self._waiting.popleft()[1])

    def drop(self, link: Link) -> None:
        """Forget what waits of a link."""
        self._waiting = collections.deque(one for one in self._waiting if one[0] is not link)

    def clear(self) -> None:
        """Forget all that waits."""
        self._waiting.clear()
