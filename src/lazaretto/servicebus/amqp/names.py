"""The names of a connection's links: in each direction, there is one link of a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lazaretto.servicebus.amqp.link import Link


class Names:
    """Which link has a name. The same name in the other direction is another."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, bool], Link] = {}

    def give(self, link: Link) -> Link | None:
        """Give a link its name, and return the link that had it until now, if any."""
        key = link.name, link.sends
        before = self._links.get(key)
        self._links[key] = link
        return before

    def free(self, link: Link) -> None:
        """Take the name from a link that is gone, unless another has it by now."""
        key = link.name, link.sends
        if self._links.get(key) is link:
            del self._links[key]
