"""Lets requests in: by a token, by a browser's session, or by the word of a proxy.

A page asks so who is there, and whether they may:

    who = await door.admit(request)                  # raises NotAuthenticated (show /login), HttpError
    who.may(Permission.OPERATE, "shop/orders")       # draw the button, or draw it disabled
    who.require(Permission.OPERATE, "shop/orders")   # before anything is done; raises NotPermitted
    await broker.run(command, actor=who.actor)       # the audit log then has name and address

`who.csrf` is None unless a session's cookie was sent. A page repeats it with each change: in the header
`X-CSRF-Token` (htmx: `hx-headers` on the body), or as a form's field, which it gives to `admit` as `csrf`.
`admit` has checked the host, the origin and the token of a change when it returns.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from lazaretto.aio import AsyncBroker
from lazaretto.aio.visits import Visits
from lazaretto.engine.access import SESSION, TOKEN
from lazaretto.web.access import Access, Identity, all_grants
from lazaretto.web.origin import SAFE, check_host, check_origin
from lazaretto.web.refusals import NotAuthenticated, StaleForm

CSRF_HEADER: Final = "x-csrf-token"


class AccessDoor:
    """Who may come in at a server. `host_names`: those that requests may give in `Host`."""

    def __init__(self, broker: AsyncBroker, access: Access, host_names: Iterable[str]) -> None:
        self._visits = Visits(broker)
        self._access = access
        self.host_names = frozenset(name.lower() for name in host_names)

    async def admit(self, request: Request, *, csrf: str | None = None) -> Identity:
        """Return who makes a request. `csrf`: the field of a form; None: the header.

        Raises NotAuthenticated, and HttpError for a foreign host, another site's page, or a change by a
        session without its token (StaleForm).
        """
        check_host(request.headers.get("host"), self.host_names)
        check_origin(request.method, request.headers)
        found, by_browser = await self._identify(request)
        found = dataclasses.replace(found, origin=self._address(request))
        if by_browser and request.method not in SAFE:
            # Browsers send the cookie, and proxies the name, with requests that no page of ours has made.
            given = request.headers.get(CSRF_HEADER) if csrf is None else csrf
            if found.csrf is None:
                check_origin(request.method, request.headers, from_browser=True)
            elif not hmac.compare_digest(found.csrf.encode(), (given or "").encode("utf-8", "replace")):
                # What no browser says to be a page of ours may not be shown the token.
                check_origin(request.method, request.headers, from_browser=True)
                raise StaleForm(found.csrf)
        return found

    async def open_session(self, request: Request, secret: str) -> Response | None:
        """Open a session for whoever has a token or a link's code, and end the one that the browser had.

        Return the answer that sets the cookie, without a body; None if there is no such secret.
        """
        made = await self._visits.open_session(secret, self._cookie(request), self._address(request))
        if made is None:
            return None
        response = Response(status_code=303, headers={"Location": self._home(request)})
        response.set_cookie(
            self._cookie_name(request), made.secret, path="/", secure=self._access.secure, httponly=True,
            samesite="strict",
        )  # fmt: skip
        return response

    async def close_session(self, request: Request) -> Response:
        """End the session of a browser, and return the answer that removes the cookie."""
        cookie = self._cookie(request)
        if cookie is not None:
            await self._visits.close_session(cookie)
        response = Response(status_code=303, headers={"Location": f"{self._home(request)}login"})
        response.delete_cookie(
            self._cookie_name(request), path="/", secure=self._access.secure, httponly=True, samesite="strict"
        )
        return response

    # -- who it is ------------------------------------------------------------------------------

    async def _identify(self, request: Request) -> tuple[Identity, bool]:
        """Return who it is, and whether a browser says so without being asked."""
        authorization = request.headers.get("authorization")
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            found = await self._by_token(token.strip()) if scheme.lower() == "bearer" else None
            if found is None:
                raise NotAuthenticated("expected a token that the server knows, got another")
            return found, False
        cookie = self._cookie(request)
        if cookie is not None:
            visitor = await self._visits.find(cookie, SESSION)
            if visitor is not None:
                return Identity(visitor.name, visitor.grants, csrf=_csrf_of(cookie)), True
        proxies = self._access.proxies
        names = [] if proxies is None else proxies.names_of(_peer(request), request.headers)
        if names:
            return all_grants(names, await self._visits.grants(names)), True
        if self._access.anonymous is None:
            raise NotAuthenticated
        return self._access.anonymous, False

    async def _by_token(self, token: str) -> Identity | None:
        found = self._access.by_token(token)
        if found is not None:
            return found
        visitor = await self._visits.find(token, TOKEN)
        return None if visitor is None else Identity(visitor.name, visitor.grants)

    # -- what a request says --------------------------------------------------------------------

    def _address(self, request: Request) -> str:
        peer, proxies = _peer(request), self._access.proxies
        return peer if proxies is None else proxies.address_of(peer, request.headers)

    def _cookie(self, request: Request) -> str | None:
        return request.cookies.get(self._cookie_name(request))

    def _cookie_name(self, request: Request) -> str:
        if self._access.secure:
            # Browsers take it from this host alone, over TLS.
            return "__Host-lazaretto"
        # Cookies of one host are those of all its ports.
        server = request.scope.get("server")
        return f"lazaretto-{server[1]}" if server else "lazaretto"

    def _home(self, request: Request) -> str:
        return f"{request.scope.get('root_path', '').rstrip('/')}/"


def _peer(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _csrf_of(session: str) -> str:
    return hashlib.sha256(f"csrf of {session}".encode("utf-8", "surrogateescape")).hexdigest()
