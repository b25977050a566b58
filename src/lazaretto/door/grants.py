"""What one client may do: the rights that its tokens and its login give."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from lazaretto.door.refusals import Refusals
from lazaretto.door.signatures import AccessPolicy, Grant, Right, Unauthorized, check_login, check_token


class Grants:
    """The rights of one connection. Without policies everybody may do everything."""

    def __init__(self, policies: Mapping[str, AccessPolicy], refusals: Refusals) -> None:
        self._policies = policies
        self._refusals = refusals
        #: Where the client is.
        self.address = ""
        self._held: list[Grant] = []

    def log_in(self, response: bytes) -> None:
        """Take a name and a key, as SASL PLAIN has them. Raises Unauthorized."""
        if self._policies:
            self._take(lambda: check_login(response, self._policies))

    def take_token(self, token: str, audience: str) -> None:
        """Take a token for an audience. Raises Unauthorized."""
        if self._policies:
            self._take(lambda: check_token(token, audience, self._policies, time.time()))

    def _take(self, check: Callable[[], Grant]) -> None:
        if self._refusals.too_many(self.address, time.monotonic()):
            raise Unauthorized("expected no more wrong keys from this address: wait a minute")
        try:
            self._held.append(check())
        except Unauthorized:
            self._refusals.note(self.address, time.monotonic())
            raise

    def require(self, path: str, right: Right) -> None:
        """Raise Unauthorized unless a grant that has not expired gives a right on a path."""
        if not self._policies:
            return
        now = time.time()
        self._held = [grant for grant in self._held if grant.until > now]
        if not any(grant.allows(path.lower(), right, now) for grant in self._held):
            raise Unauthorized(f"expected a token with the right {right.value} on {path!r}, got none")
