"""The page where a browser logs in: by a link that is used once, by a token, or at an identity provider."""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as Place

from lazaretto.errors import LazarettoError
from lazaretto.web.access_door import AccessDoor
from lazaretto.web.answers import STATUSES, problem_of
from lazaretto.web.bounded import content_of
from lazaretto.web.console.render import PAGE_HEADERS, base_of, command_line, render
from lazaretto.web.origin import check_host, check_origin
from lazaretto.web.refusals import NotAuthenticated, told_code

if TYPE_CHECKING:
    from lazaretto.web.oidc import Provider

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
