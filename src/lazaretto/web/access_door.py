"""Lets requests in: by a token, by a browser's session, or by the word of a proxy; and browsers log in.

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
import urllib.parse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as Place

from lazaretto.aio import AsyncBroker
from lazaretto.aio.visits import Visits
from lazaretto.aio.witness import Witness
from lazaretto.engine.access import SESSION, TOKEN
from lazaretto.errors import LazarettoError
from lazaretto.model.actors import NameKind
from lazaretto.model.grants import join_grants
from lazaretto.serving.http import seat_of
from lazaretto.web.access import Access, Identity
from lazaretto.web.answers import STATUSES, problem_of, tag_of
from lazaretto.web.bounded import content_of
from lazaretto.web.console.render import PAGE_HEADERS, base_of, command_line, render
from lazaretto.web.origin import SAFE, check_host, check_origin
from lazaretto.web.refusals import NotAuthenticated, StaleForm, told_code

if TYPE_CHECKING:
    from lazaretto.web.oidc import Provider

SameSite = Literal["lax", "strict"]

CSRF_HEADER: Final = "x-csrf-token"


class AccessDoor:
    """Admission to a server. `host_names`: those that requests may give in `Host`."""

    def __init__(self, broker: AsyncBroker, access: Access, host_names: Iterable[str]) -> None:
        self._visits = Visits(broker)
        self._witness = Witness(broker)
        self._access = access
        self.host_names = frozenset(name.lower() for name in host_names)

    @property
    def provider(self) -> Provider | None:
        """The provider where people may log in with OpenID Connect."""
        return self._access.provider

    async def admit(self, request: Request, *, csrf: str | None = None, again: bool = False) -> Identity:
        """Return who makes a request. `csrf`: the field of a form; None: the header.

        `again`: whether it was asked before for this request, which therefore counts as no sign of life.

        Raises NotAuthenticated, and HttpError for a foreign host, another site's page, or a change by a
        session without its token (StaleForm).
        """
        check_host(request.headers.get("host"), self.host_names)
        check_origin(request.method, request.headers)
        visitor, by_browser = await self._identify(request, notes=not again)
        seat = seat_of(request.scope)
        if seat is not None:
            seat.know()
        origin, read_only = self._address(request), self._access.read_only
        visitor = dataclasses.replace(visitor, origin=origin, read_only=read_only)
        if by_browser and request.method not in SAFE:
            # Browsers send the cookie, and proxies the name, with requests that no page of ours has made.
            sent = request.headers.get(CSRF_HEADER) if csrf is None else csrf
            if visitor.csrf is None:
                check_origin(request.method, request.headers, from_browser=True)
            elif not hmac.compare_digest(visitor.csrf.encode(), (sent or "").encode("utf-8", "replace")):
                # What no browser says to be a page of ours may not be shown the token.
                check_origin(request.method, request.headers, from_browser=True)
                raise StaleForm(visitor.csrf)
        return visitor

    async def refuse_login(self, request: Request) -> None:
        """Note that a request came with a wrong token, and wait before its client hears of it."""
        await self._witness.refused(self._address(request), "http")
        seat = seat_of(request.scope)
        if seat is not None:
            await seat.refuse_login(self._address(request))

    async def tag(self, request: Request, who: Identity) -> str | None:
        """Return the entity tag of what is read next for somebody; None if nothing can be told."""
        return tag_of(await self._visits.mark_of_commits(), who, request)

    async def open_session(self, request: Request, secret: str) -> Response | None:
        """Open a session for whoever has a token or a link's code, and end the one that the browser had.

        Return the answer that sets the cookie, without a body; None if there is no such secret.
        """
        made = await self._visits.open_session(secret, self.cookie(request), self._address(request))
        if made is None:
            return None
        response = Response(status_code=303, headers={"Location": f"{base_of(request)}/"})
        self.set_cookie(request, response, "", made.secret)
        return response

    async def open_vouched_session(
        self, request: Request, names: Sequence[str], by: str, response: Response
    ) -> bool:
        """Open a session for a person, who is the first of the names, and the groups after it.

        `response`: what sets the cookie. Return False if nothing was granted to any of the names.
        """
        cookie, address = self.cookie(request), self._address(request)
        made = await self._visits.open_vouched_session(names, by, cookie, address)
        if made is None:
            await self.refuse_login(request)
            return False
        self.set_cookie(request, response, "", made.secret)
        return True

    async def close_session(self, request: Request) -> Response:
        """End the session of a browser, and return the answer that removes the cookie."""
        cookie = self.cookie(request)
        if cookie is not None:
            await self._visits.close_session(cookie)
        response = Response(status_code=303, headers={"Location": f"{base_of(request)}/login"})
        self.delete_cookie(request, response, "")
        return response

    # -- cookies --------------------------------------------------------------------------------

    def scheme(self, request: Request) -> str:
        """Return how browsers reach the server."""
        return "https" if self._access.secure else request.url.scheme

    def cookie(self, request: Request, kind: str = "") -> str | None:
        """Return a cookie of a browser. `kind`: "" for its session."""
        if request.headers.get("cookie") is None:
            return None
        return request.cookies.get(self._cookie_name(request, kind))

    def set_cookie(
        self,
        request: Request,
        response: Response,
        kind: str,
        value: str,
        *,
        same_site: SameSite = "strict",
        seconds: int | None = None,
    ) -> None:
        """Have a browser keep a cookie that no script sees: until it ends, or for some seconds."""
        response.set_cookie(
            self._cookie_name(request, kind), value, max_age=seconds, path="/", secure=self._access.secure,
            httponly=True, samesite=same_site,
        )  # fmt: skip

    def delete_cookie(
        self, request: Request, response: Response, kind: str, *, same_site: SameSite = "strict"
    ) -> None:
        """Have a browser forget a cookie."""
        response.delete_cookie(
            self._cookie_name(request, kind), path="/", secure=self._access.secure, httponly=True,
            samesite=same_site,
        )  # fmt: skip

    # -- who it is ------------------------------------------------------------------------------

    async def _identify(self, request: Request, *, notes: bool) -> tuple[Identity, bool]:
        """Return who it is, and whether a browser says so without being asked."""
        authorization = request.headers.get("authorization")
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            identity = (
                await self._by_token(token.strip(), notes=notes) if scheme.lower() == "bearer" else None
            )
            if identity is None:
                await self.refuse_login(request)
                raise NotAuthenticated("expected a token that the server knows, got another")
            return identity, False
        cookie = self.cookie(request)
        if cookie is not None:
            visitor = await self._visits.find(cookie, SESSION, notes=notes)
            if visitor is not None:
                csrf = _csrf_of(cookie)
                return Identity(visitor.name, visitor.grants, csrf=csrf, makers=visitor.makers), True
        proxies = self._access.proxies
        names = [] if proxies is None else proxies.names_of(_peer(request), request.headers)
        if names:
            return Identity(names[0], join_grants(await self._visits.grants(names))), True
        if self._access.anonymous is None:
            raise NotAuthenticated
        return dataclasses.replace(self._access.anonymous, kind=NameKind.PROCESS), False

    async def _by_token(self, token: str, *, notes: bool) -> Identity | None:
        identity = self._access.by_token(token)
        if identity is not None:
            return identity
        visitor = await self._visits.find(token, TOKEN, notes=notes)
        if visitor is None:
            return None
        return Identity(visitor.name, visitor.grants, makers=visitor.makers, kind=NameKind.TOKEN)

    # -- what a request says --------------------------------------------------------------------

    def _address(self, request: Request) -> str:
        peer, proxies = _peer(request), self._access.proxies
        return peer if proxies is None else proxies.address_of(peer, request.headers)

    def _cookie_name(self, request: Request, kind: str) -> str:
        # Stores of one server have names of their own, since a browser sends the cookies of all paths above.
        base = request.scope.get("root_path", "").strip("/").replace("/", "!")
        end = "".join(f"-{part}" for part in (base, kind) if part)
        if self._access.secure:
            # Browsers take it from this host alone, over TLS.
            return f"__Host-lazaretto{end}"
        # Cookies of one host are those of all its ports.
        server = request.scope.get("server")
        return f"lazaretto-{server[1]}{end}" if server else f"lazaretto{end}"


def _peer(request: Request) -> str:
    client = request.scope.get("client")
    return str(client[0]) if client else ""


def _csrf_of(session: str) -> str:
    return hashlib.sha256(f"csrf of {session}".encode("utf-8", "surrogateescape")).hexdigest()


#: Bytes of a form with a token.
_MOST: Final = 4096
_FIRST: Final = "Paste a token that you were given."
_WRONG: Final = "This link or token is not known any more. A link works once, and for a minute."
#: How long somebody may take at the identity provider, in seconds.
_PATIENCE: Final = 600


def login_places(door: AccessDoor) -> list[Place]:
    """Return the routes `/login` and `/logout`, and those to the identity provider and back."""

    async def show(request: Request) -> Response:
        code = request.query_params.get("code")
        if code is None:
            check_host(request.headers.get("host"), door.host_names)
            return _page(door, request, _FIRST, 200)
        return await opened(request, code)

    async def take(request: Request) -> Response:
        check_origin(request.method, request.headers, from_browser=True)
        fields = urllib.parse.parse_qs((await content_of(request, _MOST)).decode("utf-8", "replace"))
        return await opened(request, fields.get("token", [""])[0].strip())

    async def opened(request: Request, secret: str) -> Response:
        check_host(request.headers.get("host"), door.host_names)
        entered = await door.open_session(request, secret)
        if entered is None:
            await door.refuse_login(request)
        return entered or _page(door, request, _WRONG, 401)

    async def login(request: Request) -> Response:
        try:
            return _secured(await (take if request.method == "POST" else show)(request))
        except LazarettoError as error:
            return _secured(problem_of(error, base_of(request)))

    async def logout(request: Request) -> Response:
        try:
            form = urllib.parse.parse_qs((await content_of(request, _MOST)).decode("utf-8", "replace"))
            await door.admit(request, csrf=form.get("csrf", [None])[0])
            return _secured(await door.close_session(request))
        except LazarettoError as error:
            return _secured(problem_of(error, base_of(request)))

    places = [Place("/login", login, methods=["GET", "POST"]), Place("/logout", logout, methods=["POST"])]
    return places if door.provider is None else [*places, *_provider_places(door, door.provider)]


def _provider_places(door: AccessDoor, provider: Provider) -> list[Place]:
    def back(request: Request) -> str:
        return f"{door.scheme(request)}://{request.headers['host']}{base_of(request)}/login/oidc/done"

    async def go(request: Request) -> Response:
        try:
            check_host(request.headers.get("host"), door.host_names)
            address, pending = await provider.begin(back(request))
        except LazarettoError as error:
            return _secured(_refused(door, request, error))
        response = RedirectResponse(address, 303)
        # The way back begins on another site, and only Lax cookies come along then.
        value = urllib.parse.quote(msgspec.json.encode(pending))
        door.set_cookie(request, response, "oidc", value, same_site="lax", seconds=_PATIENCE)
        return _secured(response)

    async def done(request: Request) -> Response:
        try:
            response = await finish(request)
        except LazarettoError as error:
            response = _refused(door, request, error)
        door.delete_cookie(request, response, "oidc", same_site="lax")
        return _secured(response)

    async def finish(request: Request) -> Response:
        from lazaretto.web.oidc import Pending

        check_host(request.headers.get("host"), door.host_names)
        query = request.query_params
        try:
            kept = urllib.parse.unquote(door.cookie(request, "oidc") or "")
            pending = msgspec.json.decode(kept, type=Pending)
        except ValueError:
            raise NotAuthenticated("expected a login that this browser has begun; begin it again") from None
        pending.check(query.get("state", ""))
        if "error" in query:
            raise NotAuthenticated(f"the identity provider says: {query['error'][:200]}")
        names = await provider.finish(back(request), pending, query.get("code", ""))
        response = Response(render("entered.html", request), media_type="text/html")
        if not await door.open_vouched_session(request, names, provider.label, response):
            raise NotAuthenticated(
                f"{names[0]!r} has no role here: an administrator can grant one, "
                f"as with {command_line('access', 'grant', names[0], 'viewer')}"
            )
        return response

    return [Place("/login/oidc", go), Place("/login/oidc/done", done)]


def _refused(door: AccessDoor, request: Request, error: LazarettoError) -> Response:
    code = told_code(error)
    return _page(door, request, str(error), STATUSES.get(code, 500))


def _page(door: AccessDoor, request: Request, why: str, status: int) -> Response:
    provider = None if door.provider is None else door.provider.label
    content = render(
        "login.html", request, visit=None, here="", title="Log in", done=None, why=why, wrong=status != 200,
        provider=provider,
    )  # fmt: skip
    return Response(content, status, media_type="text/html")


def _secured(response: Response) -> Response:
    # The address of a link has its code.
    response.headers.update({**PAGE_HEADERS, "Referrer-Policy": "no-referrer"})
    return response
