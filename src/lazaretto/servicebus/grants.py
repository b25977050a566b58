"""Rights of one client: those that its tokens and its login give."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Collection, Iterator
from typing import Final

from lazaretto.model.actors import Actor, NameKind, client_name
from lazaretto.model.grants import KEY
from lazaretto.servicebus.keys import Keys, stands
from lazaretto.servicebus.signatures import AccessPolicy, Grant, Right, Unauthorized
from lazaretto.serving.guard import Guard, Seat

#: What the audit log calls this door, and who comes where no key is asked for.
DOOR: Final = "amqp"
ANYBODY: Final = "servicebus"


class Grants:
    """The rights of one connection, or of one request over HTTP. `seat`: the place of the connection.

    Without policies of the server everybody may do everything.
    """

    def __init__(self, keys: Keys, guard: Guard, seat: Seat | None) -> None:
        self._keys = keys
        self._guard = guard
        self._seat = seat
        self._held: list[Grant] = []

    async def log_in(self, response: bytes) -> None:
        """Take a name and a key, as SASL PLAIN has them. Raises Unauthorized."""
        if self._keys.wanted:
            await self._take(self._keys.log_in(response))

    async def take_token(self, token: str, audience: str) -> Grant | None:
        """Take a token for an audience, and return what it gives; None: no key is asked for.

        Raises Unauthorized, after a while.
        """
        if not self._keys.wanted:
            self.know()
            return None
        if not token:
            # Nobody guesses a key by that. Pages of other sites can make a browser send it.
            raise Unauthorized("expected a shared access signature, got none")
        return await self._take(self._keys.check(token, audience))

    async def _take(self, checking: Awaitable[Grant]) -> Grant:
        try:
            grant = await checking
        except Unauthorized:
            await self._keys.witness.refused(self.address, DOOR)
            await self._guard.refuse_login(self.address)
            raise
        self._held.append(grant)
        self.know()
        return grant

    @property
    def address(self) -> str:
        """The client's address; empty: not known."""
        return "" if self._seat is None else self._seat.address

    def know(self) -> None:
        """Note that the client has logged in, or need not."""
        if self._seat is not None:
            self._seat.know()

    def policies(self) -> Iterator[AccessPolicy]:
        """Yield the policies of entities that tokens were signed with."""
        return (one.policy for one in self._held if one.policy is not None and one.policy.scope)

    def keep(self, current: Collection[AccessPolicy]) -> None:
        """Withdraw what was given by policies of entities that are not there any more, or have other keys."""
        self._held = [one for one in self._held if stands(one, self._keys.policies, current)]

    def require(self, path: str, right: Right) -> None:
        """Raise Unauthorized unless a grant that has not expired gives a right on a path."""
        now = time.time()
        self._held = [grant for grant in self._held if grant.until > now]
        if self._keys.wanted and not any(grant.allows(path, right, now) for grant in self._held):
            raise Unauthorized(f"expected a token with the right {right.value} on {path!r}, got none")

    def actor(self, path: str, right: Right) -> Actor:
        """Return whom the audit log names for what a grant allows: the key, never a person of its name."""
        now = time.time()
        grants = (one for one in self._held if one.allows(path, right, now))
        policy = next((one.policy for one in grants if one.policy is not None), None)
        if not self._keys.wanted or policy is None:
            return Actor.at(ANYBODY, self.address, door=DOOR, kind=NameKind.PROCESS)
        # An entity's key is named with its entity: others may have one of the same name.
        name = "/".join(part for part in (policy.scope, policy.name) if part)
        return Actor.at(f"{KEY}{name}", self.address, door=DOOR, kind=NameKind.KEY)

    def name_on(self, path: str, own: str = "") -> str:
        """Return a name for who receives from a path: what it calls itself, its key, and where it is."""
        actor = self.actor(path, Right.LISTEN)
        who = [one for one in (own, str(actor) if actor.kind is NameKind.KEY else "") if one]
        return client_name(" with ".join(who) or "somebody", actor.origin)

    def sees(self, path: str) -> bool:
        """Return whether the client may know of an entity: whether it has any right on it."""
        now = time.time()
        return not self._keys.wanted or any(grant.until > now and grant.covers(path) for grant in self._held)
