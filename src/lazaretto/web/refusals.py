"""Why a request is refused before it reaches the broker."""

from __future__ import annotations

from lazaretto.errors import LazarettoError


class NotAuthenticated(LazarettoError):
    """The request names nobody that the server knows: send `Authorization: Bearer` with a token."""

    code = "not_authenticated"


class NotPermitted(LazarettoError):
    """The token does not grant this."""

    code = "not_permitted"


class HttpError(LazarettoError):
    """A request is not what it should be."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.told = code
