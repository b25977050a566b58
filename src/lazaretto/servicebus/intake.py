"""Credit for what a client sends on a link: as it uses it up, it gets more."""

from __future__ import annotations

from lazaretto.servicebus.amqp import Link


class Intake:
    """A link on which a client sends. `most`: messages that it may have sent and not seen answered."""

    def __init__(self, link: Link, most: int) -> None:
        self._link = link
        self._most = most

    def open(self) -> None:
        """Let the client send."""
        self._link.session.grant(self._link, self._most)

    def top_up(self) -> None:
        """Let the client send more if it has used half of what it may."""
        if self._link.credit < self._most // 2:
            self.open()
