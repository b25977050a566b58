"""Links by the handles of both ends, and by name."""

from __future__ import annotations

from lazaretto.servicebus.amqp.conditions import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    RESOURCE_LIMIT_EXCEEDED,
    UNATTACHED_HANDLE,
    AmqpError,
    SessionError,
)
from lazaretto.servicebus.amqp.link import Link
from lazaretto.servicebus.amqp.performatives import Attach


class Handles:
    """Links of a session by handle. `most`: the highest handle that this end takes."""

    def __init__(self, most: int) -> None:
        self._most = most
        #: The highest handle that the peer takes.
        self.remote_most = 0xFFFFFFFF
        #: Links by this end's handles, and by the peer's.
        self.ours: dict[int, Link] = {}
        self.theirs: dict[int, Link] = {}

    def give(self, link: Link) -> int:
        """Give a link a handle of this end. Raises SessionError if the peer takes no more."""
        ours = self.ours
        handle = next((at for at in range(len(ours) + 1) if at not in ours), 0)
        if handle > self.remote_most:
            raise SessionError(RESOURCE_LIMIT_EXCEEDED, f"expected at most {handle} links, got one more")
        ours[handle] = link
        return handle

    def check(self, handle: int) -> None:
        """Raise AmqpError for a handle of the peer that is too high, SessionError for one that is in use."""
        if handle > self._most:
            raise AmqpError(FRAMING_ERROR, f"expected a handle up to {self._most}, got {handle}")
        if handle in self.theirs:
            raise SessionError(HANDLE_IN_USE, f"expected a free handle, got {handle}")

    def answered(self, attach: Attach) -> Link | None:
        """Return the link of this end that an attach answers; None: the peer attaches one."""
        for link in self.ours.values():
            if link.remote_handle is None and link.name == attach.name and link.sends == attach.role:
                return link
        return None

    def find(self, handle: int) -> Link:
        """Return the link that a handle of the peer stands for. Raises SessionError if there is none."""
        link = self.theirs.get(handle)
        if link is None:
            raise SessionError(UNATTACHED_HANDLE, f"expected the handle of a link, got {handle}")
        return link

    def drop(self, handle: int, link: Link) -> None:
        """Free the handles of a link that the peer has detached: its own, and this end's if there is one."""
        del self.theirs[handle]
        if link.handle is not None:
            del self.ours[link.handle]


class Names:
    """Links of a connection by name: in each direction, there is one of a name."""

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
