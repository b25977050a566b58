"""Why a request is refused before it reaches the broker."""

from __future__ import annotations

from lazaretto.errors import LazarettoError


class NotAuthenticated(LazarettoError):
    """The request names nobody that the server knows: send `Authorization: Bearer` with a token."""

    code = "not_authenticated"


class NotPermitted(LazarettoError):
    """The token does not grant this."""

    code = "not_permitted"


class ServerReadOnly(LazarettoError):
    """The server was started to be looked at only."""

    code = "server_read_only"


class HttpError(LazarettoError):
    """A request is not what it should be."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.told = code


def told_code(error: LazarettoError) -> str:
    """Return the code that an answer gives for an error."""
    return error.told if isinstance(error, HttpError) else error.code


class StaleForm(HttpError):
    """A form of this site's own page without the token of the session, such as one of an ended session.

    `csrf`: the token of the session, for the same form once more.
    """

    def __init__(self, csrf: str) -> None:
        super().__init__("cross_site", "expected X-CSRF-Token of this session, got none or another one")
        self.csrf = csrf
